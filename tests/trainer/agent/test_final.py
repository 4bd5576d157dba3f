"""After the final manifest the job is finished, however the rest of its script ends."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from spotd import wire
from tests.trainer.agent.node import Node

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).with_name('worker.py')}"


def test_a_code_after_the_final_manifest_is_a_warning(node: Node) -> None:
    node.run()
    wait = "until [ -e go ]; do sleep 0.02; done"
    node.start(run=f"{WORKER} --steps 3; {wait}; echo oops; exit 4", engine="spotd")
    assert node.wait_for(wire.CHECKPOINT).data["final"] is True
    (node.paths.workdir / "go").touch()
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == wire.EXIT_FINISHED
    assert exited["ranks"]["0"] == 4
    assert "ended with code 4 after that" in node.wait_for(wire.WARNING).data["text"]


def test_what_a_program_leaves_that_nobody_saved_is_named(node: Node) -> None:
    node.run()
    node.start(run="mkdir out && echo weights > out/model.pt", engine="none")
    exited = node.wait_for(wire.EXITED).data
    assert (exited["code"], exited["tail"]) == (wire.EXIT_FINISHED, "out/model.pt (8 B)")


def test_nothing_is_named_of_a_folder_that_is_saved(node: Node) -> None:
    node.run()
    node.start(run="echo weights > out/model.pt", directory="out")
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == wire.EXIT_FINISHED
    assert "model.pt" not in exited["tail"]
    assert node.entries(wire.CHECKPOINT)[-1].data["bytes"] == 8


def test_files_that_nobody_saves_are_reported_while_it_runs(node: Node) -> None:
    node.environ["SPOTD_LEFT_FILES_S"] = "0.2"
    node.run()
    wait = "until [ -e go ]; do sleep 0.02; done"
    node.start(run=f"echo weights > model.pt; {wait}", engine="none")
    warning = node.wait_for(wire.WARNING).data
    assert "model.pt (8 B)" in warning["text"]
    assert warning["alert"] is True
    (node.paths.workdir / "go").touch()
    node.wait_for(wire.EXITED)
    assert len(node.entries(wire.WARNING)) == 1
