"""What the doctor says of the team's dashboard."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from spotd.api.doctor.dashboard_check import check_dashboard
from spotd.api.request.context import ApiContext, DashboardFacts
from spotd.api.request.request import Check
from spotd.api_client.client import Client
from spotd.api_routes import routes
from tests.spotd.api.rig import Rig

OPEN = DashboardFacts("0.0.0.0:8443", "https://s.example.org", None, True, "https://id.example.org")


def checks(rig: Rig, facts: DashboardFacts | None) -> list[Check]:
    context: ApiContext = rig.context()
    settings = replace(context.settings, dashboard=lambda: facts)
    return check_dashboard(replace(context, settings=settings), rig.clock.now_us())


def test_where_none_is_served_nothing_is_said(rig: Rig) -> None:
    assert checks(rig, None) == []
    names = [item["name"] for item in Client(rig.socket).call(routes.DOCTOR())["checks"]]
    assert "dashboard" not in names


@pytest.mark.parametrize(
    ("listen", "doubtful"), [("0.0.0.0:8080", True), ("127.0.0.1:8080", False), ("[::1]:1", False)]
)
def test_a_proxy_on_another_machine_is_doubtful(rig: Rig, listen: str, doubtful: bool) -> None:
    [check] = checks(rig, replace(OPEN, listen=listen))
    assert (check.ok, check.doubtful) == (True, doubtful)
    assert ("is not encrypted" in check.text) == doubtful


@pytest.mark.parametrize(
    ("days", "ok", "doubtful", "said"),
    [
        (60, True, False, "with TLS until"),
        (5, True, True, "with TLS until"),
        (-1, False, False, "expired on"),
    ],
)
def test_a_certificate_that_ends(
    rig: Rig, tmp_path: Path, days: int, ok: bool, doubtful: bool, said: str
) -> None:
    ends = datetime.now(UTC) + timedelta(days=days)
    begins = ends - timedelta(days=90)
    issued = trustme.CA().issue_cert("s.example.org", not_before=begins, not_after=ends)
    (tmp_path / "cert.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    [check] = checks(rig, replace(OPEN, certificate=tmp_path / "cert.pem"))
    assert (check.ok, check.doubtful) == (ok, doubtful)
    assert said in check.text
    assert "systemctl reload spotd" in check.try_
    (tmp_path / "cert.pem").write_text("nothing")
    [check] = checks(rig, replace(OPEN, certificate=tmp_path / "cert.pem"))
    assert not check.ok


def test_a_dashboard_that_nobody_can_log_in_to(rig: Rig) -> None:
    facts = replace(OPEN, listen="127.0.0.1:1", issuer="")
    [_, check] = checks(rig, facts)
    assert (check.name, check.doubtful) == ("dashboard login", True)
    Client(rig.socket).call(routes.MAKE_TOKEN(name="ada"), {"role": "viewer"})
    assert len(checks(rig, facts)) == 1
    rig.clock.go_on(91 * 86_400)
    assert len(checks(rig, facts)) == 2
