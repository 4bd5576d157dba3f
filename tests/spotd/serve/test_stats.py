"""The route of stats: what it takes, what it refuses, and that nothing is a rate of nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.serve.call import ApiError, Call
from spotd.serve.stats import stats
from tests.spotd.serve.rig import Rig, crash, story


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def ask(rig: Rig, **query: str) -> dict[str, object]:
    return stats(Call(rig.backing(), query=query))


def test_a_fleet_that_has_had_nothing(rig: Rig) -> None:
    data = ask(rig)
    assert data["items"] == []
    whole = data["total"]
    assert isinstance(whole, dict)
    assert whole["interruptions"]["per_machine_hour"] is None
    assert whole["interruptions"]["mtti_h"] is None
    assert whole["notice"]["without"] is None


def test_a_preemption_of_the_story(rig: Rig) -> None:
    story(rig)
    crash(rig)
    data = ask(rig, by="pool")
    items = data["items"]
    assert isinstance(items, list)
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


@pytest.mark.parametrize(
    ("name", "value"), [("by", "moon"), ("capacity", "cheap"), ("since_s", "x")]
)
def test_what_is_refused(rig: Rig, name: str, value: str) -> None:
    with pytest.raises(ApiError, match=name):
        ask(rig, **{name: value})
