"""The first lines of a plan: yes, no and nothing, by the offers and the record that there are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from providers.base import CapacityType
from spotd.api.request.request import ApiRequest
from spotd.api.routes.explain import plan, planned
from spotd.api.views.spot_value import compare_spot
from spotd.cli.spot_value import print_spot_value
from spotd.domain.fast_replace import changed
from spotd.domain.preferences import Speed
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig, story


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def told(rig: Rig, capsys: pytest.CaptureFixture[str], text: str = JOB_FILE) -> list[str]:
    data = plan(ApiRequest(rig.context(), body={"yaml": text}))
    print_spot_value(data["worth"])
    return capsys.readouterr().out.splitlines()


def test_a_discount_that_pays(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    first, sides, terms, why = told(rig, capsys)
    assert first.startswith("spot today: yes: 63.8 % off, ")
    # 0.25 an hour for want of a record, each 240 s and half of 5 min: 0.0271 of an hour is lost.
    assert "a useful hour: $20.48 " in sides
    assert "saves not measured, interruptions $0.5548;" in terms
    assert "0 in 0 h here, and one in 4 h as the prior" in why


def test_one_that_does_not(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.offer_them(replace(SPOT, price_microusd_per_h=54_500_000), OFFERS[1])
    first, *_ = told(rig, capsys)
    assert first.startswith(
        "spot today: no: the discount does not pay for the interruptions: 1.0 %"
    )
    assert first.endswith("1.8 % dearer")


def test_what_this_fleet_saw_counts(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    story(rig)
    assert "(0.071 to 0.95; 1 in 1 h here" in told(rig, capsys)[3]


def test_without_one_of_the_two_nothing_is_said(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.offer_them(SPOT)
    assert told(rig, capsys) == []


def test_a_faster_machine_is_compared_by_the_work_that_it_does(rig: Rig) -> None:
    """On demand four times as fast at twice the price is the cheaper one there, and costs half."""
    spec, market, _ = planned(ApiRequest(rig.context(), body={"yaml": JOB_FILE}))
    slow = next(o for o in OFFERS if o.capacity_type is CapacityType.ON_DEMAND)
    fast = replace(
        slow,
        instance_type="fast",
        accelerator="B200",
        price_microusd_per_h=2 * slow.price_microusd_per_h,
    )
    speeds = (Speed("H100", 8, 1.0), Speed("B200", 8, 4.0))
    wanted = changed(
        spec,
        alternatives=(
            *spec.resources.alternatives,
            replace(spec.resources.alternatives[0], accelerator="B200"),
        ),
        preferences=replace(spec.preferences, speeds=speeds),
    )
    weighed = compare_spot(
        ApiRequest(rig.context()), wanted, changed(market, offers=(SPOT, slow, fast))
    )
    assert weighed is not None
    assert weighed.other == fast
    assert weighed.other_rates == (slow.price_microusd_per_h / 2e6, 0.0)
    assert weighed.spot == SPOT


def test_what_keeps_nothing_is_at_risk_for_as_long_as_it_runs_there(rig: Rig) -> None:
    """Four times as long on a machine that is four times as slow, and a quarter on a fast one."""
    text = f"{UNSAVED.replace('spotd:', '')}spotd: {{work: 2h}}\n"
    spec, market, _ = planned(ApiRequest(rig.context(), body={"yaml": text}))
    usd: dict[float, float] = {}
    for times in (0.25, 1.0, 4.0):
        price = round(SPOT.price_microusd_per_h * times)  # the same for the same work
        other = replace(SPOT, accelerator="B200", price_microusd_per_h=price)
        on_demand = replace(OFFERS[1], accelerator="B200")
        wanted = changed(
            spec,
            alternatives=(replace(spec.resources.alternatives[0], accelerator="B200"),),
            preferences=replace(spec.preferences, speeds=(Speed("B200", 8, times),)),
        )
        weighed = compare_spot(
            ApiRequest(rig.context()), wanted, changed(market, offers=(other, on_demand))
        )
        assert weighed is not None
        found = weighed.evaluate()
        assert found is not None
        usd[times] = found.spot.usd
    price_usd, often, restart_h = SPOT.price_microusd_per_h / 1e6, 0.25, 240 / 3600
    for times, cost in usd.items():
        runs_h = 2.0 / times
        expected = (1 / often + restart_h) * math.expm1(often * runs_h) / runs_h
        assert cost == pytest.approx(price_usd * expected, rel=1e-6)
    assert usd[0.25] > 2 * usd[1.0]


UNSAVED = JOB_FILE.replace("  checkpoint: {engine: spotd, every_steps: 100}\n", "")


def test_a_job_that_keeps_nothing(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    plain = UNSAVED.replace("spotd:\n", "")
    assert told(rig, capsys, plain) == [], "nor is it known how long it is"
    first, sides, _, why, rule = told(rig, capsys, f"{plain}spotd: {{work: 1h}}\n")
    # (4 + 1/15) * (e^(1/4) - 1) = 1.1551 h for one of work.
    assert "a useful hour: $23.02 " in sides
    assert first.startswith("spot today: ")
    assert "and all work repeated" in why
    assert "a run of less than 2 h on demand; here 0.0 % saved" in rule
