"""The first lines of a plan: yes, no and nothing, by the offers and the record that there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spotd.cli.worth import print_worth
from spotd.serve.call import Call
from spotd.serve.explain import plan
from tests.spotd.serve.rig import JOB_FILE, OFFERS, SPOT, Rig, story


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def told(rig: Rig, capsys: pytest.CaptureFixture[str], text: str = JOB_FILE) -> list[str]:
    data = plan(Call(rig.backing(), body={"yaml": text}))
    print_worth(data["worth"])
    return capsys.readouterr().out.splitlines()


def test_a_discount_that_pays(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    first, sides, terms, why = told(rig, capsys)
    assert first.startswith("spot today: yes: 63.8 % off, ")
    # 0.25 an hour for want of a record, each 240 s and half of 5 min: 0.0271 of an hour is lost.
    assert "a useful hour: $20.48 " in sides
    assert "saves not measured, interruptions $0.55;" in terms
    assert "0 in 0 h here, and one in 4 h believed before" in why


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


UNSAVED = JOB_FILE.replace("  checkpoint: {engine: spotd, every_steps: 100}\n", "")


def test_a_job_that_keeps_nothing(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    plain = UNSAVED.replace("spotd:\n", "")
    assert told(rig, capsys, plain) == [], "nor is it known how long it is"
    first, sides, _, why, rule = told(rig, capsys, f"{plain}spotd: {{work: 1h}}\n")
    # (4 + 1/15) * (e^(1/4) - 1) = 1.1551 h for one of work.
    assert "a useful hour: $23.02 " in sides
    assert first.startswith("spot today: ")
    assert "and all work again" in why
    assert "a run of less than 2 h on demand; here 0.0 % saved" in rule
