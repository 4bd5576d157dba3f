"""What the reaper makes of a listing, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import EXPIRES_TAG, UNATTENDED_TAG, CapacityType, Instance, InstanceState
from spotd.domain.units import S
from spotd.planner.core.reaper_policy import (
    LONGEST_S,
    SKEW_S,
    USUAL_S,
    Finding,
    MachineProblem,
    look,
)

NOW_S = 1_900_000_000
HOUR_S = 3600
DAY_S = 24 * HOUR_S


def machine(
    left_s: float | None, *, time_s: int | None = 24 * HOUR_S, **changes: object
) -> Instance:
    """One whose expiry is `left_s` ahead; None: it has none."""
    tags = {"spotd-deployment": "d0"}
    tags |= {} if left_s is None else {EXPIRES_TAG: str(int(NOW_S + left_s))}
    tags |= {} if time_s is None else {UNATTENDED_TAG: str(time_s)}
    base = Instance(
        instance_id="i-1",
        token="t-1",
        tags=tags,
        state=InstanceState.RUNNING,
        region="r",
        zone="z",
        instance_type="8xh100",
        capacity_type=CapacityType.SPOT,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def found(instance: Instance, unattended_s: float | None = None) -> MachineProblem | None:
    findings = look([instance], "d0", NOW_S * S, unattended_s)
    return findings[0].found if findings else None


@pytest.mark.parametrize(
    ("instance", "what", "left_s", "silent_s"),
    [
        (machine(None), MachineProblem.UNTAGGED, None, 0.0),
        (machine(LONGEST_S + SKEW_S + 1), MachineProblem.STRANGE, LONGEST_S + SKEW_S + 1, 0.0),
        (machine(HOUR_S), MachineProblem.SILENT, HOUR_S, 23.0 * HOUR_S),
        (machine(-HOUR_S), MachineProblem.EXPIRED, -HOUR_S, 25.0 * HOUR_S),
    ],
)
def test_a_finding_says_of_whom_and_how_much(
    instance: Instance, what: MachineProblem, left_s: float | None, silent_s: float
) -> None:
    expires_us = 0 if left_s is None else int(NOW_S + left_s) * S
    [finding] = look([machine(DAY_S), instance], "d0", NOW_S * S)
    assert finding == Finding(what, instance, expires_us, silent_s)


@pytest.mark.parametrize(
    ("instance", "what"),
    [
        (machine(24 * HOUR_S), None),
        (machine(12 * HOUR_S), None),
        (machine(12 * HOUR_S - 1), MachineProblem.SILENT),
        (machine(0), MachineProblem.SILENT),
        (machine(-SKEW_S), MachineProblem.SILENT),
        (machine(-SKEW_S - 1), MachineProblem.EXPIRED),
        (machine(-1e6), MachineProblem.EXPIRED),
        (machine(-SKEW_S - 1, state=InstanceState.PENDING), MachineProblem.EXPIRED),
        (machine(-SKEW_S - 1, state=InstanceState.STOPPING), MachineProblem.EXPIRED),
        (machine(-SKEW_S - 1, state=InstanceState.TERMINATED), None),
        (machine(-SKEW_S - 1, state=InstanceState.FAILED), None),
        # Its own tags say of how much time it is half.
        (machine(HOUR_S - 1, time_s=2 * HOUR_S), MachineProblem.SILENT),
        (machine(HOUR_S, time_s=2 * HOUR_S), None),
        (machine(USUAL_S / 2 - 1, time_s=None), MachineProblem.SILENT),
        (machine(USUAL_S / 2, time_s=None), None),
        (machine(None), MachineProblem.UNTAGGED),
        # A time that nobody can have meant; or our clock is a month behind, and all are such.
        (machine(LONGEST_S + SKEW_S), None),
        (machine(LONGEST_S + SKEW_S + 1), MachineProblem.STRANGE),
    ],
)
def test_one_machine(instance: Instance, what: MachineProblem | None) -> None:
    assert found(instance) is what


@pytest.mark.parametrize("text", ["", "soon", "-5", "1e9", "9" * 40, "\u0661\u0662", "12.5", " 5 "])
def test_a_tag_that_is_no_time_is_none(text: str) -> None:
    instance = machine(0)
    assert (
        found(replace(instance, tags={**instance.tags, EXPIRES_TAG: text}))
        is MachineProblem.UNTAGGED
    )
    timeless = replace(instance, tags={**instance.tags, UNATTENDED_TAG: text})
    assert found(timeless) is MachineProblem.SILENT, "half of the usual time"


@pytest.mark.parametrize(("digits", "silent_s"), [(8, 99_999_999.0), (9, USUAL_S)])
def test_a_tag_of_more_than_three_years_says_nothing(digits: int, silent_s: float) -> None:
    [finding] = look([machine(0, time_s=int("9" * digits))], "d0", NOW_S * S)
    assert finding.silent_s == silent_s


@pytest.mark.parametrize("deployment", ["d1", ""])
def test_another_deployments_machine_is_nothing_to_us(deployment: str) -> None:
    instance = machine(-1e6)
    assert found(replace(instance, tags={**instance.tags, "spotd-deployment": deployment})) is None


def test_the_configuration_may_say_what_the_time_is() -> None:
    assert found(machine(HOUR_S), 2 * HOUR_S) is None
    [finding] = look([machine(HOUR_S - 60)], "d0", NOW_S * S, 2 * HOUR_S)
    assert (finding.found, finding.silent_s) == (MachineProblem.SILENT, HOUR_S + 60)
