"""The door for drills, and what the doctor and Slack say where none was for long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spotd.base.errors import UserError
from spotd.domain.fault_drill import DrillEnd, DrillKind
from spotd.domain.units import S
from spotd.observe.drills import OVERDUE, OverdueDrills
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import SPOT, Rig

DAY_S = 86_400.0
ID = "0" * 32
KILL = {"kind": "kill", "within_s": 60.0, "id": ID}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig().start()
    rig.offer_them()
    yield rig
    rig.close()


def trains(rig: Rig, ago_s: float = 700.0) -> str:
    job_id = rig.submit(ago_s=ago_s)
    node = rig.launch(job_id, SPOT, ago_s=ago_s - 10)
    rig.train(node, ago_s=ago_s - 20, until_s=2, first=0, last=120)
    return job_id


def order(rig: Rig, **body: Any) -> dict[str, Any]:
    return PathClient(rig.socket).post("/v1/jobs/gpt/drills", KILL | body)


def test_an_order_is_on_record_with_who_gave_it(rig: Rig) -> None:
    job_id = trains(rig)
    terms = PathClient(rig.socket).get("/v1/jobs/gpt/drills/terms", kind="kill", within_s=900.0)
    assert terms["most_usd"] > 0
    assert terms["step"] == 120
    told = order(rig)
    assert (told["state"], told["drill"], told["id"]) == ("asked", "kill", ID)
    assert told["actor"]
    assert order(rig)["asked_at"] == told["asked_at"], "the same again"
    with pytest.raises(UserError, match="already running"):
        order(rig, id="1" * 32)
    [item] = PathClient(rig.socket).get("/v1/drills", job="gpt")["items"]
    assert (item["id"], item["job"]) == (ID, "gpt")
    assert PathClient(rig.socket).get("/v1/jobs/gpt")["drill"]["id"] == ID
    assert PathClient(rig.socket).get("/v1/jobs/gpt/why")["drill"]["state"] == "asked"
    [line] = [row for row in rig.store.audit.rows(0, 0, 99) if row.action == "drill run"][-1:]
    assert line.target == "gpt"
    [event] = rig.store.events.of_kinds(job_id, ["drill"])
    assert event.event.text == f"{told['actor']} requested a drill (kill)"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"kind": "flood"}, "kind: 'flood' is not a kind of drill"),
        ({"within_s": 1}, "within_s"),
        ({"within_s": 0}, "within_s"),
        ({"within_s": 1e9}, "within_s"),
        ({"id": "mine"}, "32 hexadecimal"),
    ],
)
def test_what_is_wrong_with_an_order_is_named(rig: Rig, body: dict[str, Any], text: str) -> None:
    trains(rig)
    with pytest.raises(UserError, match=text):
        order(rig, **body)
    assert rig.store.drills.rows() == []


def test_the_id_of_a_drill_of_another_job_is_refused(rig: Rig) -> None:
    trains(rig)
    order(rig)
    other = rig.submit("other")
    with pytest.raises(UserError, match="belongs to another job"):
        PathClient(rig.socket).post("/v1/jobs/other/drills", KILL)
    assert rig.store.events.of_kinds(other, ["drill"]) == []


def test_one_that_would_do_harm_is_refused(rig: Rig) -> None:
    rig.submit()
    with pytest.raises(UserError, match="it does not train now"):
        order(rig)
    assert rig.store.drills.rows() == []


def overdue(rig: Rig) -> list[str]:
    for _ in range(2):  # once an episode
        OverdueDrills(lambda: rig.drill_days, rig.clock).look(rig.store)
    rows = rig.store.events.of_kinds(rig.store.jobs.rows()[0].id, [OVERDUE])
    assert all(row.event.alert for row in rows)
    return [row.event.text for row in rows]


def found(rig: Rig) -> dict[str, Any]:
    checks = PathClient(rig.socket).get("/v1/doctor")["checks"]
    return next((one for one in checks if one["name"] == "drills"), {})


@pytest.mark.req("DRL-01")
def test_a_job_without_a_drill_for_31_days_is_told_of(rig: Rig) -> None:
    trains(rig, ago_s=30.9 * DAY_S)
    assert (found(rig)["doubtful"], overdue(rig)) == (False, [])
    rig.clock.go_on(0.2 * DAY_S)
    assert found(rig)["doubtful"]
    assert found(rig)["try"] == "spotctl drill run gpt --kind sigterm"
    [text] = overdue(rig)
    assert text.startswith("gpt has run without one for 31 days: ")
    rig.drill_days = 0
    assert (found(rig), len(overdue(rig))) == ({}, 1)


@pytest.mark.req("DRL-01")
def test_a_drill_that_passed_ends_the_episode_and_another_month_begins_one(rig: Rig) -> None:
    job_id = trains(rig, ago_s=40 * DAY_S)
    rig.clock.go_on(0)
    order(rig)
    [drill] = rig.store.drills.rows(job_id)
    assert len(overdue(rig)) == 1, "an order alone shows nothing"
    rig.store.drills.update(replace(drill, ended_at_us=rig.ago(0), end=DrillEnd.CALLED_OFF))
    agents = replace(drill, id="a", kind=DrillKind.AGENT)
    rig.store.drills.add(agents)
    rig.store.drills.update(replace(agents, ended_at_us=rig.ago(0), end=DrillEnd.PASSED))
    assert found(rig)["doubtful"], "nothing had to come back"
    passed = replace(drill, id="b")
    rig.store.drills.add(passed)
    rig.store.drills.update(replace(passed, ended_at_us=rig.ago(0), end=DrillEnd.PASSED))
    assert not found(rig)["doubtful"]
    rig.clock.go_on(32 * DAY_S)
    assert found(rig)["doubtful"]
    assert overdue(rig)[1].startswith("gpt last passed a drill 32 days ago")
    assert rig.ago(0) > S
