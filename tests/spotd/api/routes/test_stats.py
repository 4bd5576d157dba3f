"""The route of stats: what it takes, what it refuses, and that nothing is a rate of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.routes.stats import stats
from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import SPOT, Rig, crash, story


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def ask(rig: Rig, **query: str) -> dict[str, Any]:
    return stats(ApiRequest(rig.context(), query=query))


def test_a_fleet_that_has_had_nothing(rig: Rig) -> None:
    data = ask(rig)
    assert data["items"] == []
    whole = data["total"]
    assert whole["interruptions"]["per_machine_hour"] is None
    assert whole["interruptions"]["mtti_h"] is None
    assert whole["notice"]["without"] is None


def test_a_preemption_of_the_story(rig: Rig) -> None:
    story(rig)
    crash(rig)
    data = ask(rig, by="pool")
    items = data["items"]
    assert [row["name"] for row in items] == [
        "aws/us-east-1/us-east-1a/p5.48xlarge/spot",
        "toy-gcp/us-central1/us-central1-a/a3-highgpu-8g/spot",
    ]
    found = items[0]["interruptions"]["per_machine_hour"]
    assert found["count"] == 1
    assert found["of"] == pytest.approx((6320 - 2720 + 8120 - 7480) / 3600, abs=1e-3)
    assert found["few"] is True
    assert ask(rig, capacity="on_demand")["items"] == []
    assert ask(rig, since_s="1500")["items"] != [], "one lived until 930 s ago"


@pytest.mark.req("PRE-13")
def test_what_guides_say_is_beside_it_and_changes_nothing(rig: Rig) -> None:
    story(rig)
    data = ask(rig)
    told = {one["what"]: one for one in data["claims"]}
    month = told["T4 and A10, below"]
    assert f"{month['per_machine_hour']['high']:.3g}" == "7.03e-05"
    assert (month["claimed"], round(month["mtti_h"])) == ("5 % a month", 14232)
    assert told["lambda"]["note"] == "unverified: provider sells no spot"
    assert [one["mtti_h"] for one in data["priors"]] == [4.0, 8.0]
    assert ask(rig, capacity="on_demand")["claims"] == []


@pytest.mark.req("MON-02", "MON-04")
def test_beside_what_was_believed_and_resumes(rig: Rig) -> None:
    """One preemption on AWS, where one each 4 h was believed; the job continued in the other cloud,
    and the one that crashed had nothing to go on with."""
    story(rig)
    crash(rig)
    data = ask(rig)
    items = {row["name"]: row for row in data["items"]}
    found = items["aws"]["interruptions"]
    assert found["expected"] == pytest.approx(items["aws"]["machine_hours"] / 4, abs=1e-5)
    assert found["ratio"]["value"] == pytest.approx(1 / found["expected"], rel=1e-5)
    assert found["ratio"]["low"] < 1 < found["ratio"]["high"]
    assert found["often"] == "open"
    assert [(one["cloud"], one["mtti_h"]) for one in data["priors"]] == [
        ("aws", 4.0),
        ("gcp", 8.0),
    ]
    told = {
        name: (row["resumes"]["tried"], row["resumes"]["trained"]) for name, row in items.items()
    }
    assert told == {"aws": (0, 0), "gcp": (1, 1)}
    assert items["gcp"]["resumes"]["share"]["value"] == 1.0
    assert items["aws"]["resumes"]["share"] is None


@pytest.mark.req("MON-04")
def test_a_resume_that_crashes_before_its_first_step(rig: Rig) -> None:
    job_id = rig.submit(ago_s=8000)
    first = rig.launch(job_id, SPOT, ago_s=7900)
    rig.train(first, ago_s=7800, until_s=5000, first=0, last=100)
    rig.leave(first, 4900, LeaveReason.PREEMPTED, "taken away")
    again = rig.launch(job_id, SPOT, ago_s=4800)
    rig.say(again, 4700, "hello", agent="1", wire=1)
    rig.say(again, 4600, "claimed", step=100, manifest="m")
    row = ask(rig)["total"]
    assert row["resumes"]["tried"] == 0, "it is under way yet"
    rig.leave(again, 4500, LeaveReason.FAILED, "crashed")
    row = ask(rig)["total"]
    assert (row["resumes"]["tried"], row["resumes"]["trained"]) == (1, 0)
    assert row["resumes"]["share"]["value"] == 0.0


@pytest.mark.parametrize(
    ("name", "value"), [("by", "moon"), ("capacity", "cheap"), ("since_s", "x")]
)
def test_what_is_refused(rig: Rig, name: str, value: str) -> None:
    with pytest.raises(ApiError, match=name):
        ask(rig, **{name: value})
