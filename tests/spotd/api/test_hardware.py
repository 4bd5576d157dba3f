"""A machine of eight GPUs that loses one has broken hardware: no cloud takes a single GPU."""

from __future__ import annotations

import pytest

from spotd.api.metrics.exposition import Metrics
from spotd.api.request.request import ApiRequest
from spotd.api.routes.stats import stats
from spotd.domain.health import GPU
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.planner.core.apply import apply_all
from spotd.planner.planner import decide
from spotd.wire import EXIT_UNFIT
from tests.spotd.api.metrics.test_exposition import POOL, read, value
from tests.spotd.api.rig import SPOT, Rig

WORDS = "nvidia-smi shows 7 of 8 GPUs"


def decided(rig: Rig, node: Node) -> Node:
    """What is decided about it now."""
    now_us = rig.clock.now_us()
    view = rig.store.load_view(node.job_id, now_us)
    assert view is not None
    plan = decide(view, rig.context().market(now_us), now_us)
    after = apply_all(view, plan.changes)
    return next(one for one in after.nodes if one.id == node.id)


@pytest.mark.req("PRE-16")
def test_a_gpu_that_is_missing_is_no_preemption(rig: Rig) -> None:
    node = rig.launch(rig.submit(ago_s=5000), SPOT, ago_s=4900)
    rig.train(node, ago_s=4800, until_s=100, first=0, last=900)
    rig.say(node, 20, "unwell", what="gpu", text=WORDS, again=False, step=900)
    rig.say(node, 10, "exited", code=EXIT_UNFIT, tail=WORDS)
    (told,) = rig.store.events.of_kinds(node.job_id, [GPU])
    assert WORDS in told.event.text
    found = decided(rig, node)
    assert (found.state, found.departure.leave_text) == (
        NodeState.TERMINATING,
        "its GPU has failed",
    )
    assert found.departure.leave_reason is LeaveReason.LOST
    assert found.notices == ()
    rig.leave(node, 5, LeaveReason.LOST, found.departure.leave_text)
    row = stats(ApiRequest(rig.context()))["total"]["interruptions"]
    assert (row["preempted"], row["lost"]) == (0, 1)
    page = read(Metrics(rig.context()).text())
    kinds = {
        kind: value(page, "spotd_interruptions_total", **POOL, kind=kind, notice="no")
        for kind in ("preempted", "lost")
    }
    assert kinds == {"preempted": 0, "lost": 1}
