"""`spotctl user`."""

from __future__ import annotations

import json

import pytest

from spotd.base.errors import ExitCode
from spotd.store.logins import LoginSession, UserToken
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]


def test_disable_reports_machines_that_were_not_reached(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    nodes = rig.store.nodes.of_job(story(rig))
    rig.visitors.admit(rig.store, nodes[-1], "ada", "ssh-ed25519 AAAA")
    rig.hosts.away.add(nodes[-1].id)
    line = ("user", "disable", "ada", "--transfer-to", "daemon")
    assert spotctl(rig, *line) == ExitCode.FAILURE, "not everything is done"
    stderr = capsys.readouterr().err.splitlines()
    assert stderr[:2] == ["ada is disabled", "1 jobs are daemon's now"]
    assert stderr[2].startswith(f"warning: may still have access to {nodes[-1].id}")
    rig.hosts.away.clear()
    assert spotctl(rig, "user", "disable", "ada") == 0
    assert f"access removed from {nodes[-1].id}" in capsys.readouterr().err
    assert spotctl(rig, "user", "ls") == 0
    rows = [row.split()[:3] for row in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["ada", "disabled", "0"], ["daemon", "enabled", "1"]]
    assert spotctl(rig, "user", "enable", "ada", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["disabled"] is False


def test_disable_names_what_ends_at_the_dashboard(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    now_us, ends_us = rig.clock.now_us(), rig.clock.now_us() + 10**12
    token = UserToken("t1", "eve@x", False, "admin", "d", now_us, "nobody", ends_us)
    rig.store.logins.add_token(token)
    session = LoginSession("s1", "nobody", False, "", "", now_us, ends_us)
    assert rig.store.logins.begin_session(session)
    assert spotctl(rig, "user", "disable", "nobody") == 0
    assert capsys.readouterr().err.splitlines() == [
        "nobody is disabled",
        "1 sessions of the dashboard have ended",
        "token t1 of eve@x is void",
    ]
    assert spotctl(rig, "user", "disable", "nobdy") == 0
    assert "warning: no account, job, token or session has this name" in capsys.readouterr().err


def test_tokens_are_made_listed_and_revoked(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(rig, "user", "token", "eve@example.org", "--role", "viewer") == 0
    made = capsys.readouterr()
    token = made.out.strip()
    assert token.startswith("spotd_"), "the token alone, for a pipe"
    assert "It is not shown again" in made.err
    token_id = token.split("_")[1]
    assert spotctl(rig, "user", "token", "daemon", "--expires", "12h", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["user"] == "daemon"
    assert spotctl(rig, "user", "tokens") == 0
    rows = [row.split()[:3] for row in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["ID", "USER", "ROLE"]
    assert [token_id, "eve@example.org", "viewer"] in rows
    assert any(row[1:] == ["daemon", "by"] for row in rows)
    assert spotctl(rig, "user", "revoke", token_id) == 0
    assert "eve@example.org's token" in capsys.readouterr().err
    assert spotctl(rig, "user", "revoke", token_id) == ExitCode.NOT_FOUND
    assert spotctl(rig, "user", "token", "eve@example.org") == ExitCode.USAGE
    assert "--role viewer" in capsys.readouterr().err
