"""Times of tables and sentences are local with their offset, or UTC; those of JSON are UTC."""

from __future__ import annotations

import json
import re

import pytest

from spotd.cli.local_time import clock, instant, localised, use_utc
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
AT = "2026-11-28T23:30:05.123456Z"


@pytest.mark.usefixtures("berlin")
def test_a_time_is_local_with_its_offset() -> None:
    assert instant(AT) == "2026-11-29 00:30:05+01:00"
    assert instant(AT, "minutes") == "2026-11-29 00:30+01:00"
    use_utc(True)
    assert instant(AT) == "2026-11-28 23:30:05Z"
    use_utc(False)


@pytest.mark.usefixtures("berlin")
def test_the_day_is_left_out_where_it_is_the_same_local_day() -> None:
    assert clock("2026-11-28T23:31:00Z", AT) == "00:31:00"
    assert clock("2026-11-28T22:59:00Z", AT) == "2026-11-28 23:59:00+01:00"
    assert clock(AT, None) == "2026-11-29 00:30:05+01:00"


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"refused until {AT}, then asked", "refused until 2026-11-29 00:30:05+01:00, then asked"),
        ("on 2026-11-28 13:05Z, at the rate", "on 2026-11-28 14:05+01:00, at the rate"),
        ("'2026-11-28T13:05:00Z' has passed", "'2026-11-28T13:05:00Z' has passed"),  # as written
        ("on 2026-02-31T13:05:00Z", "on 2026-02-31T13:05:00Z"),
        ("since 2026-11-28", "since 2026-11-28"),
        ("2026-11-28T13:05:00 without a zone", "2026-11-28T13:05:00 without a zone"),
    ],
)
def test_times_in_sentences_are_local(text: str, shown: str) -> None:
    assert localised(text) == shown


@pytest.mark.usefixtures("berlin")
def test_commands_show_local_times_utc_on_demand_and_utc_in_json(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    story(rig)
    stamps = {}
    for name, before, after in (
        ("local", [], []), ("utc", ["--utc"], []), ("json", [], ["-o", "json"])
    ):  # fmt: skip
        assert spotctl(rig, *before, "events", "gpt", *after) == 0
        stamps[name] = capsys.readouterr().out
    event = json.loads(stamps["json"])["items"][0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", event["at"])
    use_utc(False)
    assert stamps["local"].startswith(instant(event["at"]))
    assert stamps["local"][19:25] == "+01:00"
    assert stamps["utc"].startswith(event["at"][:19].replace("T", " ") + "Z")


@pytest.mark.usefixtures("berlin")
def test_lines_of_logs_have_utc_times_on_demand(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    story(rig)
    assert spotctl(rig, "logs", "gpt", "--timestamps") == 0
    assert capsys.readouterr().out[19:25] == "+01:00"
    assert spotctl(rig, "--utc", "logs", "gpt", "--timestamps") == 0
    assert capsys.readouterr().out[19:21] == "Z "
