"""Of each machine that goes the record says whether its disks were wiped."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.decide.rules import decide
from spotd.model import LeaveReason, S
from spotd.states import NodeState
from tests.spotd.decide import build
from tests.spotd.decide.build import NOW

WIPED = {"exit_code": 0, "exited_at_us": NOW - 3 * S, "wiped_at_us": NOW - S}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {**WIPED, "wiped_text": "workdir removed", "leave_reason": LeaveReason.DONE},
            "aws-1: disks wiped 2.0 s after the program ended: workdir removed",
        ),
        ({"leave_reason": LeaveReason.PREEMPTED}, "not wiped, as far as we know: preempted"),
        ({}, "not wiped, as far as we know: lost"),
        ({"leave_reason": LeaveReason.BOOT_TIMEOUT, "booted_at_us": 0}, ""),
    ],
)
def test_the_record_of_one_that_is_gone(fields: dict[str, Any], words: str) -> None:
    state = NodeState.TERMINATING if "leave_reason" in fields else NodeState.RUNNING
    seen = {"booted_at_us": NOW - 45 * S, "gone_at_us": NOW, "cloud_state": "absent"}
    node = build.node(state, **{**seen, **fields})
    plan = decide(build.view(node), build.market(), NOW)
    told = [event for event in plan.events if event.kind == "wipe"]
    assert len(told) == bool(words)
    for event in told:
        assert words in event.text
        assert event.data["region"] == node.offer.region
        assert bool(event.data["wiped_at_us"]) is ("wiped_at_us" in fields)
