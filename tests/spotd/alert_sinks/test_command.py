"""Alerts given to a program of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from spotd.alert_sinks.base import Alert, AlertSinkError
from spotd.alert_sinks.command import CommandSink
from spotd.alert_sinks.registry import AnyAlertRoute
from spotd.domain.events import Event, Severity
from tests.spotd.store.build import NOW


def alert(number: int, text: str, repeats: int = 1) -> Alert:
    return Alert(number, NOW, "j1", "llama", Event("lost", text), repeats)


def test_it_gets_one_line_per_alert(tmp_path: Path) -> None:
    out = tmp_path / "out"
    CommandSink(("tee", str(out))).send([alert(7, "m1 is gone"), alert(8, "m2 is gone", 3)])
    assert out.read_text() == (
        "info: llama: m1 is gone (alert 7)\ninfo: llama: m2 is gone (alert 8, 3 times)\n"
    )


def test_a_program_that_fails_has_not_taken_it() -> None:
    with pytest.raises(AlertSinkError, match="false ended with 1"):
        CommandSink(("false",)).send([alert(7, "m1 is gone")])


def test_no_shell_reads_its_words(tmp_path: Path) -> None:
    CommandSink(("tee", f"{tmp_path}/a; b")).send_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["a; b"]


def test_whether_it_can_be_started_is_known_without_starting_it(tmp_path: Path) -> None:
    assert CommandSink(("tee", str(tmp_path / "out"))).reach() == ""
    assert not (tmp_path / "out").exists()
    assert CommandSink(("/nothing",)).reach() == "/nothing is not an executable"


def test_its_section_names_the_program() -> None:
    sections: TypeAdapter[AnyAlertRoute] = TypeAdapter(AnyAlertRoute)
    section = sections.validate_python(
        {"kind": "command", "command": ["page", "-v"], "min_severity": "error"}
    )
    assert section.build({}) == CommandSink(("page", "-v"), Severity.ERROR)
    with pytest.raises(ValidationError):
        sections.validate_python({"kind": "command", "command": []})
