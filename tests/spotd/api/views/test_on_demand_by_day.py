"""The same work on demand by day of a report: added up, unknown as soon as a part of it is."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.states import LeaveReason, Outcome
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import SPOT, Rig

DAY_S = 86_400
NOON_S = DAY_S / 2


def ran(rig: Rig, name: str, days_ago: int, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """A job that trained for about an hour at noon, saved, and ended."""
    ago_s = days_ago * DAY_S + rig.clock.now_us() / 1e6 % DAY_S - NOON_S
    job_id = rig.submit(name, ago_s=ago_s)
    node = rig.launch(job_id, SPOT, ago_s=ago_s)
    rig.train(node, ago_s=ago_s - 60, until_s=ago_s - 3600, first=0, last=1000)
    rig.leave(node, ago_s - 3700, LeaveReason.DONE, "done")
    rig.finish(job_id, ago_s - 3700, outcome)


def reported(client: PathClient) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    report = client.get("/v1/costs/report?by=day")
    return report["days"], report


def test_the_last_day_is_the_sum_of_the_report(rig: Rig, client: PathClient) -> None:
    ran(rig, "a", days_ago=3)
    ran(rig, "b", days_ago=1)
    days, report = reported(client)
    sums = [day["on_demand_so_far_usd"] for day in days]
    assert sums == sorted(sums)
    instead = [job["saving"] for job in report["jobs"]]
    assert None not in instead
    told = sum(client.get(f"/v1/jobs/{name}/cost")["on_demand_usd"] for name in ("a", "b"))
    assert sums[-1] == pytest.approx(told, abs=1e-4)
    assert 0 < sums[0] < sums[-1], "the first day has one of the two"


def test_a_day_is_unknown_from_the_job_on_whose_work_is(rig: Rig, client: PathClient) -> None:
    ran(rig, "a", days_ago=4)
    assert reported(client)[0][-1]["on_demand_so_far_usd"] is not None
    ran(rig, "lost", days_ago=1, outcome=Outcome.FAILED)
    days, _ = reported(client)
    assert days[0]["on_demand_so_far_usd"] is not None
    assert (days[-1]["on_demand_so_far_usd"], days[-1]["on_demand_unknown_jobs"]) == (None, 1)
