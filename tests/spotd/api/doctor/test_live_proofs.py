"""The doctor says of each cloud what was ever shown on it, and what to run where nothing was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from spotd.api.doctor.live_proofs import check_live_proofs
from spotd.api.request.request import ApiRequest, Check
from spotd.base.live_reports import PATH_KIND, RECOVERY_KIND, LiveReport
from tests.spotd.api.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    yield found
    found.close()


def told(rig: Rig) -> Check:
    context = rig.context()
    [check] = check_live_proofs(context, ApiRequest(context).now_us)
    return check


def shown(rig: Rig, kind: str, days: int, *, ok: bool = True, cloud: str = "aws") -> LiveReport:
    now = datetime.fromtimestamp(rig.clock.now_us() / 1e6, UTC)
    return LiveReport(kind, cloud, now - timedelta(days=days), ok)


def test_never_is_told_with_the_commands(rig: Rig) -> None:
    rig.reports = [shown(rig, PATH_KIND, 1, cloud="gcp")]
    check = told(rig)
    assert (check.name, check.ok, check.doubtful) == ("live aws", True, True)
    assert check.text == "last live report of aws: never, last recovery of aws: never"
    assert "doctor --live --cloud aws" in check.try_
    assert "doctor --live --gpu job.yaml --cloud aws" in check.try_


def test_reports_of_both_kinds_satisfy_until_they_are_old(rig: Rig) -> None:
    rig.reports = [shown(rig, PATH_KIND, 89, ok=True), shown(rig, RECOVERY_KIND, 0)]
    check = told(rig)
    assert (check.doubtful, check.try_) == (False, "")
    assert ", 89 days ago, last recovery of aws: " in check.text
    assert check.text.endswith(", today")
    rig.clock.go_on(2 * 86_400)
    check = told(rig)
    assert check.doubtful
    assert "--gpu" not in check.try_, "that one is two days old"


def test_the_last_one_counts_and_says_when_it_failed(rig: Rig) -> None:
    rig.reports = [shown(rig, RECOVERY_KIND, 3), shown(rig, RECOVERY_KIND, 1, ok=False)]
    check = told(rig)
    assert ", 1 day ago, and it FAILED" in check.text
    assert "--gpu" in check.try_
