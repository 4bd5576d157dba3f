"""Of each machine that goes the record says whether its disks were wiped."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.events import Event
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.planner import decide
from tests.spotd.planner import build
from tests.spotd.planner.build import NOW

WIPED = {
    "exit_code": 0,
    "exited_at_us": NOW - 3 * S,
    "wiped_at_us": NOW - S,
    "wiped_text": "workdir removed",
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {**WIPED, "leave_reason": LeaveReason.DONE},
            "disks wiped 2.0 s after the program ended: workdir removed",
        ),
        (
            {**WIPED, "exited_at_us": NOW, "leave_reason": LeaveReason.DONE},
            "disks wiped 0.0 s after the program ended: workdir removed",
        ),
        (
            {"leave_reason": LeaveReason.PREEMPTED},
            "disks not wiped, as far as known: preempted",
        ),
        ({}, "disks not wiped, as far as known: lost"),
        ({"leave_reason": LeaveReason.BOOT_TIMEOUT, "booted_at_us": 0}, ""),
    ],
)
def test_the_record_of_one_that_is_gone(fields: dict[str, Any], words: str) -> None:
    state = NodeState.TERMINATING if "leave_reason" in fields else NodeState.RUNNING
    seen = {"booted_at_us": NOW - 45 * S, "gone_at_us": NOW, "cloud_state": "absent"}
    node = build.node(state, **{**seen, **fields})
    plan = decide(build.view(node), build.market(), NOW)
    told = [event for event in plan.events if event.kind == "wipe"]
    said = {
        "region": "aws-1",
        "instance": "i-1-0-0",
        "wiped_at_us": fields.get("wiped_at_us", 0),
        "how": fields.get("wiped_text", ""),
        "why_not": "" if "wiped_at_us" in fields else words.rpartition(": ")[2],
    }
    text = f"node g1 in aws/aws-1a, aws-1: {words}"
    event = Event("wipe", text, node.id, key="j0:wipe", data=said)
    assert told == ([event] if words else [])
