"""The job's caches on a real node: uploaded while its program runs, and restored before the next
setup."""

from __future__ import annotations

import shlex
from pathlib import Path

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.caches.index import index_key

MAKES = "mkdir -p ~/.cache/m compiled; echo weights > ~/.cache/m/w; echo code > compiled/c"
CACHES = {"caches": ("~/.cache/m", "compiled"), "cache_bytes": 1000}


def test_a_cache_is_there_before_the_next_machine_s_setup(node: Node, tmp_path: Path) -> None:
    node.environ["SPOTD_CACHE_QUIET_S"] = "0.2"
    node.run()
    node.start(setup=MAKES, run="sleep 60", **CACHES)
    wait_until("both are kept", lambda: len(node.entries(wire.CACHE)) == 2)
    assert {entry.data["status"] for entry in node.entries(wire.CACHE)} == {"kept"}
    node.send(wire.STOP)
    node.wait_for(wire.EXITED)
    with Node(tmp_path / "next", generation=2) as other:
        other.run()
        other.start(setup="cat ~/.cache/m/w compiled/c", head_generation=1, **CACHES)
        other.wait_for(wire.EXITED)
        assert other.log("setup").split() == ["weights", "code"]
        told = other.entries(wire.CACHE)
        assert {(one.data["status"], one.data["path"]) for one in told} == {
            ("restored", "~/.cache/m"),
            ("restored", "compiled"),
        }


def test_an_agent_that_was_killed_has_its_caches_kept_again(node: Node) -> None:
    node.environ["SPOTD_CACHE_QUIET_S"] = "0.2"
    node.run()
    node.start(run=f"until [ -e ~/go ]; do sleep 0.05; done; {MAKES}; sleep 60", **CACHES)
    node.wait_for(wire.STARTED)
    node.kill_agent()
    node.run()
    (node.home / "go").touch()
    wait_until("both are kept", lambda: len(node.entries(wire.CACHE)) == 2)


def test_nothing_is_kept_beside_a_last_save(node: Node) -> None:
    node.environ["SPOTD_CACHE_QUIET_S"] = "0.2"
    node.run()
    late = f"trap '{MAKES}; touch ~/made' TERM; echo on; while :; do sleep 0.05; done"
    node.start(run=f"bash -c {shlex.quote(late)}", stop_grace_s=3.0, **CACHES)
    node.wait_for_log("on")
    node.send(wire.DRAIN, {"reason": "paused"})
    wait_until("it was written", (node.home / "made").exists)
    node.wait_for(wire.EXITED)
    assert node.entries(wire.CACHE) == []


def test_a_cache_that_cannot_be_had_is_a_warning(node: Node) -> None:
    index = node.store_root / index_key("job-1", "compiled")
    index.parent.mkdir(parents=True)
    index.write_bytes(b"{}")
    node.run()
    node.start(run="true", **CACHES)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    [told] = node.entries(wire.CACHE)
    assert (told.data["status"], told.data["path"]) == ("failed", "compiled")
    assert "cannot be restored" in told.data["text"]
