"""Advice for a job file: each condition by what is on record, and phases at the offers that there
are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from providers.base import CapacityType, Offer, Scope
from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.routes.advice import advise
from spotd.base.live_reports import RECOVERY_KIND, LiveReport
from spotd.domain.plan import AddNode
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig, story

ON_DEMAND = OFFERS[1]
LONG = JOB_FILE + "  work: 40h\n"
MODEL = "  model: {name: llama-3-70b, method: lora, tokens: 100M}\n"
HOURS = {"search_s": 72 * 3600, "train_s": 216 * 3600, "validate_s": 24 * 3600}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def ask(rig: Rig, text: str = LONG, **more: Any) -> dict[str, Any]:
    return advise(ApiRequest(rig.context(), body={"yaml": text, **more}))


def condition(data: dict[str, Any], name: str) -> tuple[bool | None, dict[str, Any]]:
    found = next(one for one in data["conditions"] if one["name"] == name)
    return found["holds"], found["measured"]


@pytest.mark.req("HYB-04")
def test_a_job_for_spot(rig: Rig) -> None:
    data = ask(rig)
    assert data["verdict"] == "spot"
    holds = {one["name"]: one["holds"] for one in data["conditions"]}
    assert holds == {
        "checkpoints": True, "tolerance": True, "recovery": None, "discount": True,
        "length": True, "deadline": True, "at_once": True, "batch": True,
        "last_save": None,
    }  # fmt: skip
    _, told = condition(data, "tolerance")
    # 0.25 an hour, each 240 s and half of 5 min; the pause is 5 min.
    assert told["lost_share"] == pytest.approx(0.25 * 390 / 3600)
    assert (told["pause_s"], told["mtbf_s"]) == pytest.approx((300, 4 * 3600))
    _, told = condition(data, "discount")
    assert told["spot_usd"] == pytest.approx(19.93 / (1 - 0.25 * 390 / 3600))
    assert told["saving"] < told["discount"] == pytest.approx(1 - 19.93 / 55.04)


@pytest.mark.req("HYB-05")
def test_a_job_of_an_hour_and_a_half_is_for_on_demand(rig: Rig) -> None:
    data = ask(rig, JOB_FILE + "  work: 90m\n")
    assert data["verdict"] == "on_demand"
    assert condition(data, "length") == (False, {"hours": 1.5, "least": 2.0})
    assert condition(data, "discount")[0] is True, "and what spot would cost is told"
    assert {one["capacity"] for one in data["phases"]} == {"on_demand"}
    assert ask(rig, JOB_FILE + "  work: 2h\n")["verdict"] == "spot"


def test_how_long_it_is_is_not_known(rig: Rig) -> None:
    data = ask(rig, JOB_FILE)
    assert data["verdict"] == "spot"
    assert condition(data, "length")[0] is None
    assert condition(ask(rig, JOB_FILE, train_s=3600), "length")[0] is False


@pytest.mark.req("HYB-04")
def test_a_discount_that_does_not_pay(rig: Rig) -> None:
    rig.offer_them(replace(SPOT, price_microusd_per_h=54_500_000), ON_DEMAND)
    data = ask(rig, LONG, parameters=int(72e9), **HOURS)
    assert data["verdict"] == "on_demand"
    assert condition(data, "discount")[1]["verdict"] == "no"
    assert {one["capacity"] for one in data["phases"]} == {"on_demand"}
    assert data["total"]["saving"] == 0.0


@pytest.mark.req("HYB-04")
def test_what_keeps_nothing(rig: Rig) -> None:
    data = ask(rig, LONG.replace("  checkpoint: {engine: spotd, every_steps: 100}\n", ""))
    assert data["verdict"] == "on_demand"
    assert condition(data, "checkpoints")[0] is False
    assert condition(data, "tolerance")[0] is None
    bare = JOB_FILE.replace("spotd:\n  checkpoint: {engine: spotd, every_steps: 100}\n", "")
    data = ask(rig, bare)
    assert data["worth"] is None
    assert condition(data, "discount")[0] is None


@pytest.mark.req("HYB-04")
def test_interruptions_that_are_too_many(rig: Rig) -> None:
    data = ask(rig, "num_nodes: 6\n" + LONG + "  slow_network: true\n")
    holds, told = condition(data, "tolerance")
    assert holds is False
    assert told["lost_share"] == pytest.approx(6 * 0.25 * 390 / 3600)
    assert data["verdict"] == "on_demand"


@pytest.mark.req("HYB-04", "HYB-06")
def test_what_somebody_waits_for_is_for_on_demand(rig: Rig) -> None:
    served = LONG + "  kind: inference\n  capacity: on_demand\n"
    data = ask(rig, served)
    assert data["verdict"] == "on_demand"
    assert condition(data, "batch") == (False, {"kind": "inference"})
    assert condition(data, "discount")[0] is True
    with pytest.raises(ApiError, match="a preemption would interrupt requests"):
        ask(rig, LONG + "  kind: inference\n")


def test_a_recovery_on_record(rig: Rig) -> None:
    day = datetime(2026, 11, 20, tzinfo=UTC)
    rig.reports = [LiveReport(RECOVERY_KIND, "gcp", day, ok=True)]
    assert condition(ask(rig), "recovery")[0] is None, "of another cloud"
    rig.reports.append(LiveReport(RECOVERY_KIND, "aws", day, ok=False))
    holds, told = condition(ask(rig), "recovery")
    assert holds is False
    assert told["report"] == {"cloud": "aws", "day": "2026-11-20", "ok": False}
    rig.reports.append(LiveReport(RECOVERY_KIND, "aws", day, ok=True))
    assert condition(ask(rig), "recovery")[0] is True
    rig.reports.clear()
    story(rig)
    holds, told = condition(ask(rig), "recovery")
    assert (holds, told["resumed"]) == (True, 1)
    assert condition(ask(rig), "checkpoints")[1]["on_record"] == 2
    assert condition(ask(rig), "at_once")[1] == {
        "offers": 3, "refused": 0, "answered": 1, "refused_low": 0.0,
        "refused_high": pytest.approx(0.95), "most": 0.5, "elsewhere": 1,
        "hello_median_s": pytest.approx(50.0),
    }  # fmt: skip


@pytest.mark.req("HYB-04")
@pytest.mark.parametrize(
    ("deadline", "holds"), [("60h", True), ("40h10m", False), ("10h", False), ("", True)]
)
def test_deadline_as_the_guard_reckons(rig: Rig, deadline: str, holds: bool) -> None:
    text = LONG + (f"  deadline: {deadline}\n" if deadline else "")
    data = ask(rig, text)
    assert condition(data, "deadline")[0] is holds
    assert (data["verdict"] == "spot") is holds


def refuse(rig: Rig, offer: Offer, times: int, ago_s: float = 3600) -> None:
    """Requests that its cloud had nothing for, and one that it gave a machine for."""
    job_id = rig.submit(f"of-{offer.provider}-{ago_s}", ago_s=ago_s + 60)
    given = rig.launch(job_id, offer, ago_s=ago_s)
    view = rig.store.load_view(job_id, rig.ago(ago_s))
    assert view is not None
    asked = [
        replace(given, id=f"{given.id}-{n}", token=f"{given.token}-{n}", candidate=n)
        for n in range(1, times + 1)
    ]
    rig.commit(job_id, rig.ago(ago_s), *(AddNode(one) for one in asked))
    for one in asked:
        error = ("CapacityError", "nothing left", Scope.OFFER)
        rig.store.nodes.record_launch_refused(one.id, *error, rig.ago(ago_s - 5))


@pytest.mark.req("HYB-04")
@pytest.mark.parametrize(
    ("times", "holds", "verdict"),
    [(1, True, "spot"), (13, False, "on_demand"), (2, None, "spot")],
)
def test_spot_that_is_mostly_refused_is_not_to_be_had(
    rig: Rig, times: int, holds: bool | None, verdict: str
) -> None:
    rig.offer_them(SPOT, ON_DEMAND)
    refuse(rig, SPOT, times)
    data = ask(rig)
    found, told = condition(data, "at_once")
    assert (found, told["refused"], told["answered"]) == (holds, times, times + 1)
    assert data["verdict"] == verdict
    assert told["elsewhere"] == 0


def test_what_another_pool_has_or_was_refused_long_ago_counts_for_spot(rig: Rig) -> None:
    refuse(rig, SPOT, 13)
    assert condition(ask(rig), "at_once")[0] is True, "nobody was refused in the other cloud"
    refuse(rig, OFFERS[2], 13)
    assert condition(ask(rig), "at_once")[0] is False
    rig.clock.go_on(31 * 86_400)
    rig.offer_them()
    found, told = condition(ask(rig), "at_once")
    assert (found, told["answered"]) == (True, 0)


@pytest.mark.parametrize("kept", [CapacityType.SPOT, CapacityType.ON_DEMAND])
def test_without_offers_to_compare(rig: Rig, kept: CapacityType) -> None:
    rig.offer_them(SPOT if kept is CapacityType.SPOT else ON_DEMAND)
    data = ask(rig, LONG, parameters=int(72e9), **HOURS)
    assert data["verdict"] == "unknown"
    assert data["total"] is None
    assert [one["usd"] for one in data["phases"]] == [None, None, None]
    assert [one["hours"] for one in data["phases"]] == [72, 216, 24]


SAVED = {"step": 5, "manifest": "m", "bytes": 10, "stage_s": 1.0}


@pytest.mark.req("PRE-04")
@pytest.mark.parametrize(("write_s", "fits"), [(94.9, True), (95.1, False)])
def test_a_last_save_is_held_against_the_notice(rig: Rig, write_s: float, fits: bool) -> None:
    node = rig.launch(rig.submit(ago_s=4000), SPOT, ago_s=3990)
    rig.train(node, ago_s=3900, until_s=500, first=0, last=2)
    for step in range(3, 6):
        saved = {**SAVED, "step": step, "manifest": f"m{step}", "write_s": write_s}
        rig.say(node, 500 - step, "checkpoint", **saved)
    data = ask(rig)
    holds, told = condition(data, "last_save")
    assert holds is fits, "0.8 of the 120 s that AWS documents are 96"
    assert told["save_s"] == pytest.approx(1 + write_s)
    assert told["notice_s"]["planned"] == told["notice_s"]["documented"] == 120
    assert data["verdict"] == "spot", "what it costs counts on no notice anyway"


# --- phases


@pytest.mark.req("HYB-03")
def test_phases_at_the_offers_that_there_are(rig: Rig) -> None:
    data = ask(rig, LONG, parameters=int(72e9), **HOURS)
    assert data["mode"]["name"] == "hybrid"
    found = {one["phase"]: one for one in data["phases"]}
    assert [found[name]["capacity"] for name in ("search", "train", "validate")] == [
        "spot",
        "spot",
        "on_demand",
    ]
    useful = 19.93 / (1 - 0.25 * 390 / 3600)
    assert found["search"]["usd"] == pytest.approx(72 * useful)
    assert found["train"]["takes_hours"] == pytest.approx(216 / (1 - 0.25 * 390 / 3600))
    total = data["total"]
    assert total["usd"] == pytest.approx(sum(one["usd"] for one in data["phases"]))
    assert total["saving"] <= total["discount"]
    # On demand fails as well, once in 54 days of 2,048 machines by the prior.
    assert total["on_demand_usd"] == pytest.approx(312 * 55.04, rel=1e-4)
    modes = {one["name"]: one["total"]["saving"] for one in data["modes"]}
    assert 0 < modes["search"] < modes["spot"] == modes["hybrid"] == total["saving"]


def test_phases_of_a_large_model(rig: Rig) -> None:
    data = ask(rig, LONG, parameters=int(405e9), **HOURS)
    assert [one["capacity"] for one in data["phases"]] == ["spot", "on_demand", "on_demand"]


def test_a_phase_without_hours_says_what_is_usual(rig: Rig) -> None:
    data = ask(rig, LONG, parameters=int(7e9))
    found = {one["phase"]: one for one in data["phases"]}
    assert found["train"]["hours"] == 40, "spotd.work"
    assert found["search"]["usual_hours"] == pytest.approx([10, 40 * 2 / 3])
    assert found["validate"]["usual_hours"] == pytest.approx([40 / 9, 40 / 9])
    assert found["search"]["usd"] is None
    assert data["total"]["usd"] == found["train"]["usd"]


def test_the_size_is_the_model_s_and_the_hours_are_the_right_sizer_s(rig: Rig) -> None:
    data = ask(rig, JOB_FILE + MODEL)
    assert data["parameters"] == pytest.approx(70.55e9, rel=0.01)
    assert condition(data, "length")[1]["hours"] > 0
    assert ask(rig)["mode"] is None, "nobody said how large it is"


def test_what_is_refused(rig: Rig) -> None:
    with pytest.raises(ApiError, match="search_s"):
        ask(rig, LONG, search_s="soon")
