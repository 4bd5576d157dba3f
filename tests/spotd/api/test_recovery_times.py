"""Recoveries that guides and a case study tell of, played into the record and told by it."""

from __future__ import annotations

import pytest

from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.store.journal import JournalBatch
from spotd.wire import JournalEntry
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import OFFERS, SPOT, Rig


def say(rig: Rig, node: Node, seq: int, ago_s: float, kind: str, data: dict[str, object]) -> None:
    entry = JournalEntry(seq, rig.ago(ago_s), node.generation, kind, data)
    rig.store.journal.record([JournalBatch(node.id, (entry,), rig.ago(ago_s))])


@pytest.mark.req("RPV-06")
def test_a_guides_example(rig: Rig, client: PathClient) -> None:
    """Notice at 11:30, restarted at 11:32, trains at 11:35: 2 and 3 minutes."""
    notice_ago_s = 1000.0
    job_id = rig.submit(ago_s=9000)
    old = rig.launch(job_id, SPOT, ago_s=8900)
    rig.train(old, ago_s=8800, until_s=notice_ago_s, first=0, last=100)
    told = {"notice_id": "n", "kind": "preempt", "source": "imds", "remaining_s": 120}
    say(rig, old, 1000, notice_ago_s, "notice", told)
    new = rig.launch(job_id, OFFERS[2], ago_s=notice_ago_s)
    restarted_ago_s, trains_ago_s = notice_ago_s - 120, notice_ago_s - 300
    rig.say(new, restarted_ago_s, "hello", agent="1", wire=1)
    rig.leave(old, notice_ago_s - 120, LeaveReason.PREEMPTED, "preempt notice")
    rig.train(new, ago_s=trains_ago_s, until_s=trains_ago_s - 100, first=100, last=120)
    (found,) = client.get(f"/v1/jobs/{job_id}")["hand_overs"]
    parts = found["parts"]
    first = [parts[name] for name in ("detect_s", "request_s", "instance_s", "agent_s")]
    second = [parts[name] for name in ("ready_s", "claim_s", "first_step_s")]
    assert sum(first) == pytest.approx(120)
    assert sum(second) == pytest.approx(180)
    assert found["total_s"] == pytest.approx(300)
    assert found["steps_lost"] == 0


@pytest.mark.req("RPV-04")
def test_two_phases_tell_their_own_times(rig: Rig, client: PathClient) -> None:
    """A case study lost 30 minutes at each interruption of its search, and 11 of its training: a
    phase is a job, and each job tells its own."""
    told = {}
    for name, minutes in (("search", 30), ("train", 11)):
        job_id = rig.submit(name, ago_s=9000)
        old = rig.launch(job_id, SPOT, ago_s=8900)
        rig.train(old, ago_s=8800, until_s=5000, first=0, last=100)
        rig.leave(old, 4990, LeaveReason.LOST, "gone")
        new = rig.launch(job_id, OFFERS[2], ago_s=4980)
        again_ago_s = 5000 - minutes * 60
        rig.train(new, ago_s=again_ago_s, until_s=again_ago_s - 600, first=100, last=200)
        (found,) = client.get(f"/v1/jobs/{name}")["hand_overs"]
        told[name] = found["total_s"]
    assert told == {"search": pytest.approx(1800), "train": pytest.approx(660)}


@pytest.mark.req("CKP-10")
def test_reading_the_checkpoint_is_measured_and_paid_for(rig: Rig, client: PathClient) -> None:
    """Ready 500 s ago, HEAD 400 s ago, its checkpoint read 240 s later, a step 60 s after that: 100
    s waited for HEAD, and 300 s began, in the hours, the dollars and the price of a useful hour."""
    job_id = rig.submit(ago_s=3600)
    old = rig.launch(job_id, SPOT, ago_s=3500)
    rig.train(old, ago_s=3400, until_s=600, first=0, last=100)
    rig.leave(old, 600, LeaveReason.LOST, "gone")
    new = rig.launch(job_id, SPOT, ago_s=600)
    rig.change(new, 600, state=NodeState.BOOTING, chosen=True)
    rig.store.nodes.record_booted(new.id, rig.ago(600))
    rig.say(new, 590, "hello", agent="1", wire=1)
    rig.say(new, 500, "ready")
    rig.say(new, 160, "claimed", step=100, manifest="", restore_s=240.0)
    rig.say(new, 100, "progress", from_step=101, to_step=101, losses=[], first_at_us=rig.ago(100),
            last_at_us=rig.ago(100), tokens=1, busy_s=1.0)  # fmt: skip
    (found,) = client.get(f"/v1/jobs/{job_id}")["hand_overs"]
    assert found["restore_s"] == 240.0
    assert found["parts"]["claim_s"] == pytest.approx(100, abs=0.1)
    assert found["parts"]["first_step_s"] == pytest.approx(300, abs=0.1)
    told = client.get(f"/v1/jobs/{job_id}/cost/report")
    hours = {one["use"]: one["node_hours"] * 3600 for one in told["hours"]}
    assert hours["waiting"] == pytest.approx(100, abs=1)
    assert hours["startup"] == pytest.approx(100 + 100 + 300, abs=2)  # the first boot among it
    paid = {one["use"]: one["cost_usd"] for one in told["hours"]}
    assert paid["startup"] == pytest.approx(500 / 3600 * 19.93, rel=0.01)
    effective = told["usd_per_useful_gpu_hour"] * told["useful_gpu_hours"]
    assert effective == pytest.approx(sum(paid.values()), abs=0.001)
