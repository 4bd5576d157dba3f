"""How a program that trains with spotd_hook ends: success is recorded once it has ended well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.stores import open_store
from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from tests.trainer.rig import ROOT
from trainer.fence import read_head

STAGES = f"{sys.executable} {ROOT}/tests/trainer/hook/stages.py"
LAST = 24  # both trainings of it


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "home") as machine:
        yield machine


def final_in_head(node: Node) -> bool:
    entry = read_head(open_store(f"file://{node.store_root}"), "job-1")
    assert entry is not None
    assert entry[0].current is not None
    assert entry[0].current.step == LAST
    return entry[0].final


def finals(node: Node) -> list[int]:
    return [e.data["step"] for e in node.entries(wire.CHECKPOINT) if e.data["final"]]


def test_success_is_recorded_once_the_program_has_ended(node: Node) -> None:
    node.run()
    node.start(run=f"{STAGES}; touch after", engine="spotd")
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    assert finals(node) == [LAST]
    assert final_in_head(node)
    assert (node.paths.workdir / "after").exists()


def test_a_program_that_fails_after_its_last_training_has_not_succeeded(node: Node) -> None:
    """Another machine repeats what follows the training: the results of it are kept."""
    node.run()
    node.start(run=f"{STAGES}; exit 3", engine="spotd")
    assert node.wait_for(wire.EXITED).data["code"] == 3, node.log()
    assert finals(node) == []
    assert not final_in_head(node)


@pytest.mark.parametrize("code", [75, 76])
@pytest.mark.parametrize("engine", ["none", "spotd"])
def test_a_code_of_ours_from_anybody_is_reported_as_the_programs_own(
    node: Node, code: int, engine: str
) -> None:
    node.run()
    node.start(run=f"echo hello; exit {code}", engine=engine)
    ended = node.wait_for(wire.EXITED).data
    assert (ended["code"], ended["part"]) == (code, "program")


WRAPPER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
TRAIN = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path("up").touch()
while True:
    time.sleep(0.05)
"""


def test_the_program_below_an_unknown_launcher_is_asked_to_stop(node: Node) -> None:
    node.home.mkdir(exist_ok=True)
    (node.home / "wrapper.py").write_text(WRAPPER)
    (node.home / "train.py").write_text(TRAIN)
    node.run()
    python = sys.executable
    node.start(run=f"{python} {node.home}/wrapper.py {python} {node.home}/train.py")
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == 75, node.log()
    assert (node.paths.workdir / "saved").exists(), "it heard of it"


def test_a_program_that_ends_as_asked_is_reported_so(node: Node) -> None:
    node.run()
    node.start(run="trap 'exit 75' TERM; touch up; while :; do sleep 0.05; done")
    node.wait_for(wire.STARTED)
    node.send(wire.RELEASE)
    ended = node.wait_for(wire.EXITED).data
    assert (ended["code"], ended["part"]) == (75, "nothing")
