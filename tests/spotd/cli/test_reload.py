"""`spotctl reload`: what changed is said, and what is wrong with the file."""

from __future__ import annotations

import json

import pytest

from spotd.config.config import ConfigError
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl


def test_it_says_what_changed(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.reload = lambda: ["budgets.lab.usd", "limits.max_nodes"]
    assert spotctl(rig, "reload") == 0
    text = "the configuration was read again: budgets.lab.usd, limits.max_nodes"
    assert text in capsys.readouterr().err
    assert spotctl(rig, "reload", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] == ["budgets.lab.usd", "limits.max_nodes"]
    rig.reload = list
    assert spotctl(rig, "reload") == 0
    assert "nothing changed" in capsys.readouterr().err
    assert {row.action for row in rig.store.audit.rows(0)} == {"config reload"}


def test_a_wrong_file_is_refused_and_the_audit_does_not_quote_it(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> list[str]:
        raise ConfigError("the configuration is wrong: token=geheim", [], "correct it")

    rig.reload = wrong
    assert spotctl(rig, "reload") == 4
    printed = capsys.readouterr().err
    assert "the configuration was not taken over; the one before stays in force" in printed
    assert "token=geheim" in printed
    refused = rig.store.audit.rows(0)[-1]
    assert refused.outcome.value == "refused"
    assert not any("geheim" in row.text for row in rig.store.audit.rows(0))
