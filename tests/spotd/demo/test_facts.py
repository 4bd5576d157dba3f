"""Test the demo's figures: recoveries, final losses, leaked machines and release delays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import NoticeKind
from spotd.demo.facts import (
    final_losses,
    losses_by_generation,
    orphan_seconds,
    recoveries,
    release_delays,
)
from spotd.domain.fast_replace import changed
from spotd.domain.node import NoticeRecord
from tests.spotd.demo.story import (
    METER,
    NODES,
    PREEMPTIONS,
    PROGRESS,
    at,
    node,
    preemption,
    progress,
)


def test_a_recovery_is_measured_from_the_fault() -> None:
    death, notice, _ = recoveries(NODES, PROGRESS, PREEMPTIONS, METER)
    assert (death.kind, death.cloud, death.to_cloud) == ("death", "aws", "gcp")
    assert (death.request_s, death.instance_s, death.ssh_s) == (5.6, 6.0, 6.5)
    assert (death.ready_s, death.first_step_s, death.gap_s) == (7.5, 9.5, 10.0)
    assert death.steps_lost == 2
    assert (notice.kind, notice.notice_s, notice.steps_lost) == ("notice", 30.0, 0)
    assert (notice.request_s, notice.first_step_s) == (1.1, 5.0)


def test_steps_that_a_dying_machine_had_not_reported_yet_are_lost_too() -> None:
    """It reported step 10, at one step per second, and died five seconds later."""
    later = [preemption(1, "silent", 19.2), *PREEMPTIONS[1:]]
    assert recoveries(NODES, PROGRESS, later, METER)[0].steps_lost == 2 + 5


def test_a_gap_may_be_shorter_than_the_recovery_because_the_old_one_trains_on() -> None:
    rows = [progress(2, 9, 24), progress(3, 19, 36)]
    (result,) = recoveries(NODES[1:3], rows, PREEMPTIONS, METER)
    assert result.gap_s == 3.0 < result.first_step_s


def test_machines_that_never_trained_are_no_recovery() -> None:
    """For example a candidate that was refused, or another rank of the gang."""
    others = [
        node(2, "azure", 19, 0, first_step_at_us=0),
        node(1, "aws", 0, 5, rank=1, instance_id="i9"),
    ]
    assert recoveries([*others, *NODES], PROGRESS, PREEMPTIONS, METER) == recoveries(
        NODES, PROGRESS, PREEMPTIONS, METER
    )


def test_a_machine_that_was_not_preempted_is_no_recovery() -> None:
    assert [r.generation for r in recoveries(NODES, PROGRESS, PREEMPTIONS[1:], METER)] == [2, 3]


@pytest.mark.parametrize("nodes", [[], NODES[:1]])
def test_without_two_machines_there_is_nothing_to_recover(nodes: list[Any]) -> None:
    assert recoveries(nodes, PROGRESS, PREEMPTIONS, METER) == []


def test_losses_belong_to_the_generation_and_are_in_order() -> None:
    result = losses_by_generation([progress(2, 19, 60), *PROGRESS[:2]])
    assert list(result) == [1, 2]
    assert [step for step, _ in result[2]] == list(range(9, 29))
    assert result[1][0] == (1, 10.0)


def test_the_newest_generations_loss_counts() -> None:
    retrained = replace(progress(2, 9, 24), losses=tuple(float(n) for n in range(10)))
    steps = final_losses([retrained, PROGRESS[0]])
    assert (steps[8], steps[9], steps[10]) == (10 / 8, 0.0, 1.0)
    assert sorted(steps) == list(range(1, 19))


# --- the clouds' own meter


def row(token: str, start_s: float, end_s: float | None) -> dict[str, Any]:
    end_us = at(end_s) if end_s is not None else None
    seconds = (end_s if end_s is not None else 100.0) - start_s
    return {"token": token, "ended_at_us": end_us, "seconds": seconds}


@pytest.mark.req("RPV-10")
@pytest.mark.parametrize(
    ("meter", "leaked_s"),
    [
        ([row("t1", 0, 17)], 0.0),
        ([row("t1", 0, 18)], 0.0),  # a listing may be on its way
        ([row("t1", 0, 27)], 9.0),  # ended ten seconds after we believed it gone
        ([row("t1", 0, 5)], 0.0),  # it died before
        ([row("stranger", 3, 10)], 7.0),
        ([row("stranger", 3, None)], 97.0),
        ([row("t1", 0, None)], 82.0),  # gone, we believe: and it runs
        ([row("t1", 0, 17), row("stranger", 0, 1), row("t2", 0, 47)], 11.0),
        ([row("t1", 0, 17), row("t1", 3, 10)], 7.0),  # two machines for one token
    ],
)
def test_leaked_machine_seconds(meter: list[dict[str, Any]], leaked_s: float) -> None:
    assert orphan_seconds(NODES, meter, at(100)) == leaked_s


def test_a_machine_that_runs_and_is_not_gone_by_our_books_is_a_leak_at_the_end() -> None:
    running = changed(NODES[0], gone_at_us=0)
    assert orphan_seconds([running], [row("t1", 0, None)], at(100)) == 100.0
    assert orphan_seconds([running], [row("t1", 0, 50)], at(100)) == 0.0


def notice(deadline_s: float) -> NoticeRecord:
    return NoticeRecord("n1", NoticeKind.PREEMPT, at(deadline_s - 30), at(deadline_s))


DRAINED = {"drained_at_us": at(10), "left_at_us": at(10)}


@pytest.mark.req("RPV-10")
@pytest.mark.parametrize(
    ("fields", "ended_s", "seconds"),
    [
        ({"left_at_us": at(10)}, 10.4, 0.4),  # given back without a drain
        ({"left_at_us": at(10)}, 190, 180.0),  # minutes late, and listed all the while
        ({"left_at_us": at(10)}, 7, 0.0),  # the cloud took it before
        ({"left_at_us": at(10)}, None, 90.0),  # it runs still
        ({"left_at_us": at(12), "exited_at_us": at(10)}, 13, 3.0),  # its program had ended
        ({**DRAINED, "exited_at_us": at(14)}, 15, 1.0),  # it saved first
        ({**DRAINED, "notices": (notice(40),)}, 42, 2.0),  # it never came to save
    ],
)
def test_release_delays_start_when_the_machine_is_not_needed(
    fields: dict[str, Any], ended_s: float | None, seconds: float
) -> None:
    """Measured by the cloud's billing record, whatever its listing says."""
    left = changed(NODES[0], gone_at_us=at(ended_s or 100), **fields)
    meter = [row("t1", 0, ended_s), row("stranger", 0, 50)]
    assert release_delays([left], meter, at(100)) == {"j1-g1": seconds}


def test_of_two_machines_for_one_token_the_one_that_cost_more_counts() -> None:
    left = changed(NODES[0], left_at_us=at(10), gone_at_us=at(100))
    meter = [row("t1", 0, 30), row("t1", 0, 11)]
    assert release_delays([left], meter, at(100)) == {"j1-g1": 20.0}


def test_a_deadline_does_not_excuse_a_machine_that_was_not_left_to_save() -> None:
    """Its notice arrived after its termination was decided."""
    left = changed(NODES[0], left_at_us=at(10), gone_at_us=at(100), notices=(notice(40),))
    assert release_delays([left], [row("t1", 0, 15)], at(100)) == {"j1-g1": 5.0}


def test_a_needed_machine_has_no_release_delay() -> None:
    assert release_delays([NODES[0]], [row("t1", 0, None)], at(100)) == {}


def test_a_preemption_of_another_machine_is_ignored() -> None:
    preemptions = [preemption(9, "notice", 1), *PREEMPTIONS]
    assert recoveries(NODES, PROGRESS, preemptions, METER) == recoveries(
        NODES, PROGRESS, PREEMPTIONS, METER
    )
