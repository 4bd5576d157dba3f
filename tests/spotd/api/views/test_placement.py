"""What people are told of placement: terms in dollars, deadlines, and what is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spotd.api.views.placement import excluded_by_residency
from spotd.base.errors import UserError
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, OFFERS, Rig

TERMS = {"train", "start", "lost", "egress", "total"}


def body(more: str = "", **fields: Any) -> dict[str, Any]:
    return {"yaml": JOB_FILE + more, "env": {}, "secrets": {}, **fields}


@pytest.fixture
def sold(rig: Rig) -> Rig:
    for provider in ("aws", "toy-gcp"):
        offers = [one for one in OFFERS if one.provider == provider]
        rig.store.market.record_offers(provider, offers, rig.clock.now_us())
    return rig


def plan(client: PathClient, more: str) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/v1/plan", {"yaml": JOB_FILE + more, "env": {}})
    return found


def test_a_plan_says_what_each_place_costs_until_the_job_is_done(
    sold: Rig, client: PathClient
) -> None:
    found = plan(client, "  work: 40h\n")["placement"]
    assert found["steers"]
    assert found["left_h"] == 40.0
    assert found["deadline"] is None
    assert {one["offer"] for one in found["costs"]} == {one.key for one in OFFERS}
    totals = [one["usd"]["total"] for one in found["costs"]]
    assert totals == sorted(totals)
    for one in found["costs"]:
        usd = one["usd"]
        assert set(usd) == TERMS
        assert sum(usd[name] for name in TERMS - {"total"}) == pytest.approx(usd["total"], abs=1e-3)
    best = found["costs"][0]
    assert best["usd"]["train"] >= 40 * 19.93
    assert (found["choice"]["action"], found["choice"]["offer"]) == ("spot", best["offer"])


def test_without_work_a_day_is_compared_and_nothing_is_steered(
    sold: Rig, client: PathClient
) -> None:
    found = plan(client, "  deadline: 60h\n")["placement"]
    assert not found["steers"]
    assert found["choice"] is None
    assert found["deadline"] is None
    best = found["costs"][0]
    assert best["usd"]["train"] == pytest.approx(24 * 19.93)


def test_a_deadline_says_when_on_demand_is_needed(sold: Rig, client: PathClient) -> None:
    deadline = plan(client, "  work: 40h\n  deadline: 60h\n")["placement"]["deadline"]
    # 20 h to spare, without 15 min to be granted, 10 min to start, and looks of a minute.
    assert 19.4 * 3600 < deadline["spare_s"] < 19.6 * 3600
    assert (deadline["late_s"], deadline["guarded"]) == (0.0, False)
    assert deadline["granted_within_s"] == 900.0
    assert deadline["earliest"] < deadline["at"]


def test_a_deadline_that_cannot_be_kept_is_refused_with_the_earliest(
    sold: Rig, client: PathClient
) -> None:
    more = "  work: 40h\n  deadline: 40h\n"
    shown = plan(client, more)["placement"]["deadline"]
    assert shown["late_s"] > 0
    assert shown["guarded"]
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs", body(more))
    assert "cannot be promised: with 40.0 h of work, 15 min for a machine" in caught.value.text
    assert shown["earliest"][:13] in caught.value.text
    assert "--late" in (caught.value.try_ or "")
    assert sold.store.jobs.rows() == []
    told = client.post("/v1/jobs", body(more, late=True))
    assert any("it runs on demand, as fast as it can" in text for text in told["warnings"])


def test_the_earliest_that_is_told_is_taken(sold: Rig, client: PathClient) -> None:
    earliest = plan(client, "  work: 40h\n  deadline: 40h\n")["placement"]["deadline"]["earliest"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00(\.0+)?Z", earliest)
    told = client.post("/v1/jobs", body(f"  work: 40h\n  deadline: '{earliest}'\n"))
    assert told["name"] == "gpt"


def test_on_spot_alone_nothing_is_promised_and_nothing_refused(
    sold: Rig, client: PathClient
) -> None:
    told = client.post("/v1/jobs", body("  work: 40h\n  deadline: 2h\n  capacity: spot\n"))
    assert any("cannot be guaranteed with spot only" in text for text in told["warnings"])
    assert any("its deadline is not promised" in text for text in told["warnings"])


def test_why_shows_the_same_of_a_job(sold: Rig, client: PathClient) -> None:
    client.post("/v1/jobs", body("  work: 40h\n  deadline: 60h\n"))
    found = client.get("/v1/jobs/gpt/why")["placement"]
    assert found["left_h"] == 40.0
    assert found["costs"]
    client.post("/v1/jobs/gpt/cancel", {})
    assert client.get("/v1/jobs/gpt/why")["placement"] == {}


@pytest.mark.req("DAT-03")
def test_a_job_that_may_stand_nowhere_is_refused(sold: Rig, client: PathClient) -> None:
    with pytest.raises(UserError) as caught:
        client.post("/v1/jobs", body("  residency: [EU, CH]\n"))
    assert "all 4 offers that fit are out of place" in caught.value.text
    assert "4 because it is in US, outside the job's residency" in caught.value.text
    assert sold.store.jobs.rows() == []
    found = plan(client, "  residency: EU\n")
    assert found["left_out"] == [{"count": 4, "why": "it is in US, outside the job's residency"}]
    assert found["fitting"] == 0
    assert plan(client, "  residency: US\n")["left_out"] == []


def test_nothing_is_left_out_of_nothing() -> None:
    assert excluded_by_residency([]) == []


def test_a_total_that_only_the_program_names_makes_the_deadline_count(
    sold: Rig, client: PathClient
) -> None:
    job_id = sold.submit(text=JOB_FILE + "  deadline: 60h\n", ago_s=3600)
    node = sold.launch(job_id, OFFERS[0], ago_s=3500)
    assert client.get("/v1/jobs/gpt/why")["placement"]["deadline"] is None
    for step, ago_s in ((100, 3000), (200, 2000)):
        sold.say(node, ago_s, "progress", from_step=step - 99, to_step=step, losses=[], tokens=1,
                 busy_s=1.0, total_steps=1000)  # fmt: skip
        sold.say(node, ago_s, "checkpoint", manifest=f"m{step}", step=step, bytes=1, trigger="time",
                 released=False, final=False)  # fmt: skip
    shown = client.get("/v1/jobs/gpt")
    assert shown["progress"]["total_steps"] == 1000
    placement = client.get("/v1/jobs/gpt/why")["placement"]
    assert (placement["steers"], placement["assumed_h"]) == (True, None)
    # 100 steps took 1,000 s, and 800 are left of the 1,000 that the program has named; those since
    # the last checkpoint count as done for one interval at most.
    assert placement["left_h"] == pytest.approx(8000 / 3600, abs=0.2)
    assert placement["deadline"]["spare_s"] > 0
    assert sold.store.jobs.rows()[0].spec.preferences.work_steps == 0, "the job stays as submitted"
