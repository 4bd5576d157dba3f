"""HEAD for a script without our engine: when it is claimed, fencing, and gangs."""

from __future__ import annotations

import fcntl
import time
from dataclasses import replace

from providers.stores import open_store
from spotd import wire
from spotd.wire import manifest_key
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node
from trainer.fence import Fence


def test_the_next_generation_waits_for_the_release_and_prepares_meanwhile(node: Node) -> None:
    newer = replace(node, home=node.home.with_name("newer"), generation=2, token="token-2")
    with newer:
        node.run()
        node.start(run="echo up; sleep 1000", stop_grace_s=1.0)
        node.wait_for_log("up")
        newer.run()
        newer.start(
            claim="after_release", claim_deadline_s=2 * LIMIT_S, setup="echo ok", run="echo mine"
        )
        newer.wait_for(wire.READY)
        newer.live_on(0.5)  # it looks every 0.05 s
        assert wire.CLAIMED not in newer.kinds()
        assert node.is_program_alive()
        node.send(wire.RELEASE)
        newer.wait_for(wire.CLAIMED)  # and not at the deadline
        node.wait_for(wire.RELEASED)
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
        assert time.monotonic() - began > 1.2


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
        node.wait_for(wire.CLAIMED, LIMIT_S)


def test_a_lower_generation_is_fenced_before_it_runs(node: Node) -> None:
    Fence(open_store(f"file://{node.store_root}"), "job-1", 5, "newer").claim()
    node.run()
    node.start(run="echo never")
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == wire.EXIT_FENCED
    assert "generation 5" in exited["tail"]
    assert node.log() == ""


def test_a_script_does_not_start_afresh_where_head_is_lost(node: Node) -> None:
    node.run()
    node.start(run="echo never", head_generation=3)
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == 1
    assert "HEAD of job job-1 is missing" in exited["tail"]
    assert node.log() == ""
    assert node.head() is None


def test_a_zombie_finds_out_and_ends(node: Node) -> None:
    node.run()
    node.start(run="echo up; sleep 1000")
    node.wait_for_log("up")
    Fence(open_store(f"file://{node.store_root}"), "job-1", 2, "newer").claim()
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FENCED
    wait_until("the program is gone", lambda: not node.is_program_alive())
    head = node.head()
    assert head is not None
    assert head.generation == 2


def test_a_zombie_s_success_is_not_the_job_s(node: Node) -> None:
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done")
    node.wait_for_log("up")
    Fence(open_store(f"file://{node.store_root}"), "job-1", 2, "newer").claim()
    (node.paths.workdir / "go").touch()
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FENCED
    head = node.head()
    assert head is not None
    assert (head.generation, head.final) == (2, False)


def test_a_program_knows_from_its_start_how_head_is_to_be_claimed(node: Node) -> None:
    node.run()
    began = time.monotonic()
    node.start(
        engine="spotd",
        run="echo $SPOTD_CLAIM $SPOTD_CLAIM_UNTIL $SPOTD_HEAD_GENERATION",
        claim="after_release",
        claim_deadline_s=600.0,
        head_generation=0,
    )
    node.wait_for(wire.EXITED)
    claim, until, known = node.log().split()
    assert (claim, known) == ("after_release", "0")
    assert began + 600 <= float(until) + 0.001 <= time.monotonic() + 600.001


def test_who_is_stopped_while_it_waits_claims_no_more(node: Node) -> None:
    old = Fence(open_store(f"file://{node.store_root}"), "job-1", 1, "old")
    old.claim()
    node = replace(node, generation=2)
    with node:
        node.run()
        node.start(claim="after_release", claim_deadline_s=60.0)
        node.wait_for(wire.READY)
        node.send(wire.RELEASE)
        assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
        head = old.release()
        node.live_on(0.5)  # it looked every 0.05 s
        assert node.head() == head


def test_a_claim_that_comes_through_after_the_stop_is_given_back(node: Node) -> None:
    open_store(f"file://{node.store_root}").put("some/thing", b"")
    node.run()
    corner = node.store_root / ".store"
    corner.mkdir(exist_ok=True)
    with (corner / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever claims waits in the middle of it
        node.start(run="echo never")
        node.wait_for(wire.READY)
        node.send(wire.RELEASE)
        assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    node.wait_for(wire.RELEASED)
    head = node.head()
    assert head is not None
    assert (head.generation, head.released) == (1, True)
    assert node.log() == ""


def test_a_stop_after_the_end_of_a_script_does_not_undo_it(node: Node) -> None:
    """HEAD can be moved while the final manifest is not written yet."""
    node.run()
    node.start(run="echo up; until [ -e go ]; do sleep 0.02; done")
    node.wait_for_log("up")
    blocked = (node.store_root / manifest_key("job-1", 1, 0, "n")).parents[1]
    blocked.symlink_to(blocked)
    (node.paths.workdir / "go").touch()
    log = node.paths.agent_log
    wait_until("an attempt", lambda: "store does not answer" in log.read_text())
    node.send(wire.DRAIN, {"reason": "paused"})
    node.wait_for(wire.DRAINING)
    seen = log.read_text().count("store does not answer")
    wait_until("another", lambda: log.read_text().count("store does not answer") > seen)
    blocked.unlink()
    assert node.wait_for(wire.EXITED).data["code"] == 0
    head = node.head()
    assert head is not None
    assert head.final


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
            meet = "$PET_RDZV_CONF $PET_NNODES $PET_NODE_RANK $PET_MASTER_ADDR:$PET_MASTER_PORT"
            run = f"echo rank $SKYPILOT_NODE_RANK of {meet}"
            machine.start(num_nodes=2, run=run, peer_timeout_s=900.0)
            if machine is other:
                other.wait_for(wire.READY)
                other.live_on(0.3)
                assert wire.CLAIMED not in other.kinds(), "not before rank 0 owns HEAD"
        for machine in (other, node):
            assert machine.wait_for(wire.EXITED).data["code"] == 0
        waits = "timeout=900,join_timeout=900"
        assert other.log("rank1").startswith(f"rank 1 of {waits} 2 1 127.0.0.1:2")
        place = other.log("rank1").split()[-1]
        assert node.log() == f"rank 0 of {waits} 2 0 {place}\n", "torchrun's agents meet there"
        head = node.head()
        assert head is not None
        assert not head.final
        assert "rank 0" in other.send(wire.SAVE, {"final": True}).error
        node.kill_agent()
        node.run()
        assert node.send(wire.SAVE, {"final": True}).ok
        wait_until("the final manifest", lambda: (h := node.head()) is not None and h.final)
        assert node.wait_for(wire.CHECKPOINT).data["final"] is True
