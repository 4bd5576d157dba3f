"""HEAD on behalf of a script: when it is claimed, who is shut out, and gangs."""

from __future__ import annotations

import time
from dataclasses import replace

from providers.stores import open_store
from spotd import wire
from tests.trainer.agent.node import Node, wait_until
from trainer.fence import Fence


def test_the_next_generation_waits_for_the_release_and_prepares_meanwhile(node: Node) -> None:
    newer = replace(node, home=node.home.with_name("newer"), generation=2, token="token-2")
    with newer:
        node.run()
        node.start(run="echo up; sleep 1000", stop_grace_s=1.0)
        node.wait_for_log("up")
        newer.run()
        newer.start(claim="after_release", claim_deadline_s=60.0, setup="echo ok", run="echo mine")
        newer.wait_for(wire.READY)
        time.sleep(0.5)
        assert wire.CLAIMED not in newer.kinds()
        assert node.is_program_alive()
        node.send(wire.RELEASE)
        claimed = newer.wait_for(wire.CLAIMED)
        released = node.wait_for(wire.RELEASED)
        assert abs(claimed.at_us - released.at_us) < 500_000
        assert newer.wait_for(wire.EXITED).data["code"] == 0
    head = node.head()
    assert head is not None
    assert (head.generation, head.final) == (2, True)


def test_a_silent_owner_is_waited_for_until_the_deadline_only(node: Node) -> None:
    Fence(open_store(f"file://{node.store_root}"), "job-1", 1, "old").claim()
    node = replace(node, generation=2)
    with node:
        node.run()
        began = time.monotonic()
        node.start(claim="after_release", claim_deadline_s=1.5)
        node.wait_for(wire.CLAIMED)
        assert 1.2 < time.monotonic() - began < 4.0


def test_a_later_start_may_let_it_claim_at_once(node: Node) -> None:
    Fence(open_store(f"file://{node.store_root}"), "job-1", 1, "old").claim()
    node = replace(node, generation=2)
    with node:
        node.run()
        node.start(claim="after_release", claim_deadline_s=600.0)
        node.wait_for(wire.READY)
        node.start(claim="after_release", claim_deadline_s=900.0)  # may not put it off
        assert wire.CLAIMED not in node.kinds()
        node.start(claim="now")
        node.wait_for(wire.CLAIMED, 2.0)


def test_a_lower_generation_is_fenced_before_it_runs(node: Node) -> None:
    Fence(open_store(f"file://{node.store_root}"), "job-1", 5, "newer").claim()
    node.run()
    node.start(run="echo never")
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == wire.EXIT_FENCED
    assert "generation 5" in exited["tail"]
    assert node.log() == ""


def test_a_zombie_finds_out_and_ends(node: Node) -> None:
    node.run()
    node.start(run="echo up; sleep 1000")
    node.wait_for_log("up")
    Fence(open_store(f"file://{node.store_root}"), "job-1", 2, "newer").claim()
    assert node.wait_for(wire.EXITED, 10.0).data["code"] == wire.EXIT_FENCED
    assert not node.is_program_alive()
    head = node.head()
    assert head is not None
    assert head.generation == 2


def test_a_zombie_s_success_is_not_the_job_s(node: Node) -> None:
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done")
    node.wait_for_log("up")
    Fence(open_store(f"file://{node.store_root}"), "job-1", 2, "newer").claim()
    (node.places.workdir / "go").touch()
    assert node.wait_for(wire.EXITED, 10.0).data["code"] == wire.EXIT_FENCED
    head = node.head()
    assert head is not None
    assert (head.generation, head.final) == (2, False)


def test_a_finished_job_is_not_run_again(node: Node) -> None:
    node.run()
    node.start()
    node.wait_for(wire.EXITED)
    again = replace(node, home=node.home.with_name("again"), generation=2)
    with again:
        again.run()
        again.start(run="echo again")
        assert again.wait_for(wire.EXITED).data["code"] == 0
        assert again.log() == ""


def test_a_gang_runs_under_the_claim_of_rank_0_which_commits_when_told(node: Node) -> None:
    other = replace(node, home=node.home.with_name("other"), rank=1, token="token-r1")
    with other:
        for machine in (other, node):
            machine.run()
            machine.start(num_nodes=2, run="echo rank $SKYPILOT_NODE_RANK")
            if machine is other:
                other.wait_for(wire.READY)
                time.sleep(0.3)
                assert wire.CLAIMED not in other.kinds(), "not before rank 0 owns HEAD"
        for machine in (other, node):
            assert machine.wait_for(wire.EXITED).data["code"] == 0
        assert other.log("rank1") == "rank 1\n"
        head = node.head()
        assert head is not None
        assert not head.final
        assert "rank 0" in other.send(wire.SAVE, {"final": True}).error
        node.kill_agent()
        node.run()
        assert node.send(wire.SAVE, {"final": True}).ok
        wait_until("the final manifest", lambda: (h := node.head()) is not None and h.final)
        assert node.wait_for(wire.CHECKPOINT).data["final"] is True
