"""What a program leaves is uploaded before its machine goes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from spotd import wire
from spotd.wire import OutputRules, parse_manifest, parse_saved_folder
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).with_name('worker.py')}"
DEFAULT = OutputRules()
WAIT = "until [ -e go ]; do sleep 0.02; done"
ON_TERM = "trap 'echo partial > report.txt; exit 143' TERM"


def outputs(node: Node) -> list[dict[str, Any]]:
    return [dict(entry.data) for entry in node.entries(wire.OUTPUTS)]


def stored_files(node: Node) -> dict[str, bytes]:
    """The files of the newest upload, read from the store."""
    entry = next(data for data in reversed(outputs(node)) if data["status"] == "stored")
    data = (node.store_root / entry["manifest"]).read_bytes()
    assert wire.sha256(data) == entry["digest"]
    manifest = parse_manifest(data)
    saved = parse_saved_folder(manifest)
    assert saved is not None
    return {
        file.path: b"".join((node.store_root / shard.key).read_bytes() for shard in stream.shards)
        for file, stream in zip(saved.files, manifest.streams, strict=True)
    }


def take_store_away(node: Node) -> Path:
    away = node.store_root.rename(node.store_root.with_name("away"))
    node.store_root.symlink_to(node.store_root)
    return away


def bring_store_back(node: Node, away: Path) -> None:
    node.store_root.unlink()
    away.rename(node.store_root)


def start_and_end_without_store(node: Node, **changes: Any) -> Path:
    """Run a script to its end while the store is away, so that its outputs wait."""
    node.start(run=f"echo up; {WAIT}; echo weights > model.bin", outputs=DEFAULT, **changes)
    node.wait_for_log("up")
    wait_until("HEAD is claimed", lambda: node.head() is not None)
    away = take_store_away(node)
    (node.paths.workdir / "go").touch()
    node.wait_for(wire.OUTPUTS)
    return away


def test_they_are_stored_before_the_success_is_recorded(node: Node) -> None:
    node.run()
    node.start(run="mkdir final && echo weights > final/model.bin", outputs=DEFAULT)
    exited = node.wait_for(wire.EXITED).data
    assert (exited["code"], exited["tail"]) == (wire.EXIT_FINISHED, "")
    assert stored_files(node) == {"final/model.bin": b"weights\n"}
    kinds = node.kinds()
    assert kinds.index(wire.OUTPUTS) < kinds.index(wire.CHECKPOINT) < kinds.index(wire.EXITED)
    begin, stored = outputs(node)
    assert begin == {"status": "begin", "files": 1, "bytes": 8}
    assert (stored["files"], stored["bytes"], stored["text"]) == (1, 8, "")


def test_a_program_of_our_engine(node: Node) -> None:
    node.run()
    node.start(run=f"{WORKER} --steps 3; echo 0.9 > accuracy", engine="spotd", outputs=DEFAULT)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert stored_files(node)["accuracy"] == b"0.9\n"


def test_a_failed_program_leaves_them_too(node: Node) -> None:
    node.run()
    node.start(run="echo why > report.txt; exit 3", outputs=DEFAULT)
    assert node.wait_for(wire.EXITED).data["code"] == 3
    assert stored_files(node) == {"report.txt": b"why\n"}


def test_a_pause_releases_head_first(node: Node) -> None:
    node.run()
    node.start(run=f"{ON_TERM}; echo up; {WAIT}", outputs=DEFAULT)
    node.wait_for_log("up")
    data = {"reason": "paused", "deadline_s": 60.0, "outputs_s": 3600.0}
    assert node.send(wire.DRAIN, data).ok
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert stored_files(node) == {"report.txt": b"partial\n"}
    kinds = node.kinds()
    assert kinds.index(wire.RELEASED) < kinds.index(wire.OUTPUTS)


def test_a_cancel_without_outputs_stores_none(node: Node) -> None:
    node.run()
    node.start(run=f"{ON_TERM}; echo up; {WAIT}", outputs=DEFAULT)
    node.wait_for_log("up")
    assert node.send(wire.DRAIN, {"reason": "cancelled", "deadline_s": 60.0, "outputs_s": 0.0}).ok
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert outputs(node) == []


def test_nothing_left_is_nothing_uploaded(node: Node) -> None:
    node.run()
    node.start(run="true", outputs=DEFAULT)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert outputs(node) == []


def test_without_rules_nothing_is_uploaded(node: Node) -> None:
    node.run()
    node.start(run="echo weights > model.bin", outputs=None)
    assert node.wait_for(wire.EXITED).data["tail"] == "model.bin (8 B)"
    assert outputs(node) == []


def test_named_ones_alone_and_those_that_are_not_there(node: Node) -> None:
    node.run()
    run = "mkdir results; echo a > results/a; echo b > b.bin"
    node.start(run=run, outputs=OutputRules(("results", "*.onnx")))
    node.wait_for(wire.EXITED)
    assert stored_files(node) == {"results/a": b"a\n"}
    assert outputs(node)[-1]["text"] == "'*.onnx' in outputs matches no file"


def test_what_is_saved_as_checkpoints_is_not_uploaded_twice(node: Node) -> None:
    node.run()
    run = "echo weights > out/model_1.bin; echo loss > loss.csv"
    node.start(run=run, directory="out", outputs=DEFAULT)
    node.wait_for(wire.EXITED)
    assert stored_files(node) == {"loss.csv": b"loss\n"}
    assert node.entries(wire.CHECKPOINT)[-1].data["bytes"] == 8


def test_what_is_beyond_the_limit_is_named(node: Node) -> None:
    node.run()
    run = "head -c 2000 /dev/zero > large.bin; echo a > small"
    node.start(run=run, outputs=OutputRules(max_bytes=1000))
    node.wait_for(wire.EXITED)
    assert stored_files(node) == {"small": b"a\n"}
    assert "large.bin (2 kB): more than the 1 kB" in outputs(node)[-1]["text"]


def test_success_waits_for_a_store_that_is_away(node: Node) -> None:
    node.run()
    away = start_and_end_without_store(node)
    assert wire.EXITED not in node.kinds()
    bring_store_back(node, away)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert stored_files(node)["model.bin"] == b"weights\n"


def test_a_restarted_agent_stores_them(node: Node) -> None:
    node.run()
    away = start_and_end_without_store(node)
    node.kill_agent()
    node.run()
    bring_store_back(node, away)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert stored_files(node)["model.bin"] == b"weights\n"


def test_a_machine_that_must_go_records_no_success(node: Node) -> None:
    """The next machine runs the end of the program again, and stores what it leaves."""
    node.run()
    away = start_and_end_without_store(node)
    assert node.send(wire.DRAIN, {"reason": "preempted", "deadline_s": 0.5}).ok
    wait_until(
        "the upload is given up", lambda: any(e["status"] == "stored" for e in outputs(node))
    )
    bring_store_back(node, away)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert "the machine had to go" in outputs(node)[-1]["text"]
    head = node.head()
    assert head is not None
    assert (head.final, head.released) == (False, True)


def test_an_order_to_stop_at_once_ends_the_upload(node: Node) -> None:
    node.run()
    away = start_and_end_without_store(node, stop_grace_s=600.0)
    assert node.send(wire.STOP).ok
    wait_until(
        "the upload is given up", lambda: any(e["status"] == "stored" for e in outputs(node))
    )
    bring_store_back(node, away)


def test_a_warning_comes_while_the_program_runs(node: Node) -> None:
    node.environ["SPOTD_LEFT_FILES_S"] = "0.2"
    node.run()
    run = f"head -c 2000 /dev/zero > large.bin; {WAIT}"
    node.start(run=run, directory="out", outputs=OutputRules(max_bytes=1000))
    warning = node.wait_for(wire.WARNING).data
    assert warning["alert"] is True
    assert "will be uploaded: large.bin (2 kB): more than the 1 kB" in warning["text"]
    (node.paths.workdir / "go").touch()
    node.wait_for(wire.EXITED)
