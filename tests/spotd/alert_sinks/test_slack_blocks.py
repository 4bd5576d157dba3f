"""Messages: what they say, what nobody can say through them, and that Slack takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.alert_sinks.base import Alert
from spotd.alert_sinks.slack_blocks import clean, payload
from spotd.domain.events import Event, Severity
from tests.fixtures.slack import OK, judge
from tests.spotd.store.build import NOW


def alert(text: str = "gone", number: int = 7, spent: int = 0, **fields: Any) -> Alert:
    name, repeats = fields.pop("job_name", "llama"), fields.pop("repeats", 1)
    event = Event(fields.pop("kind", "lost"), text, **fields)
    return Alert(number, NOW, "j1", name, event, repeats, spent)


def sections(*alerts: Alert) -> list[str]:
    blocks = payload(alerts)["blocks"]
    return [block["text"]["text"] for block in blocks if block["type"] == "section"]


@pytest.mark.req("MON-07")
def test_one_alert_answers_four_questions() -> None:
    data = {"seconds": 9.4, "steps_lost": 14, "lost_s": 70.0, "lost_microusd": 210_000}
    told = alert("training again at step 40", 42, 12_340_000, kind="recovered", data=data)
    happened, did, cost, must = sections(told)
    assert happened == "*What happened*\ntraining again at step 40"
    assert did == "*What spotd did*\nRequested another machine, and resumed there as told above."
    assert cost == (
        "*What it cost*\n9 s without training, 14 steps to repeat, 70 s of work lost, "
        "$0.2100 for that, $12.34 spent on the job so far"
    )
    assert must == "*What you must do*\nNothing."
    body = payload([told])
    assert "llama" in body["text"]
    assert "alert 42" in body["text"]
    assert len(body["blocks"]) <= 6


def test_repeats_are_told() -> None:
    body = payload([alert(number=42, repeats=12)])
    assert "alert 42, 12 times" in body["text"]
    assert "alert 42, 12 times" in json.dumps(body["blocks"])


def test_what_is_to_be_done_names_the_job() -> None:
    assert sections(alert(kind="failed"))[-1].startswith("*What you must do*\nRead `spotctl logs")
    assert "spotctl logs llama" in sections(alert(kind="failed"))[-1]


def test_a_success_that_kept_nothing_asks_for_more_than_nothing() -> None:
    lost = alert("gpt finished: nothing kept", kind="succeeded", data={"kept": False})
    assert "name their folder in the job file" in sections(lost)[-1]
    assert sections(alert(kind="succeeded"))[-1] == "*What you must do*\nNothing."


def test_a_recovery_from_the_beginning_is_none_that_resumed() -> None:
    anew = alert(kind="recovered", severity=Severity.WARNING, data={"anew": True, "lost_s": 9e3})
    assert "there was nothing to resume" in sections(anew)[1]
    assert "2.5 h of work lost" in sections(anew)[2]
    assert "any-script" in sections(anew)[-1]


def test_a_kind_without_words_of_its_own() -> None:
    assert "spotctl events llama" in sections(alert(kind="brand_new"))[-1]


def test_a_digest_has_the_worst_first_and_counts_the_rest() -> None:
    many = [alert(f"m{number} is silent", number, repeats=2) for number in range(1, 41)]
    worst = alert("the store is full", 50, kind="checkpoint_failed", severity=Severity.ERROR)
    body = payload([*many, worst])
    lines = sections(*many, worst)[0].split("\n")
    assert "the store is full (alert 50)" in lines[0]
    assert "llama: m1 is silent (alert 1, 2 times)" in lines[1]
    assert lines[-1] == "… and 31 more"
    assert "81 alerts: 80 lost, 1 checkpoint failed" in body["text"]
    assert "alerts 1 to 50" in body["text"]
    assert "has room" in sections(*many, worst)[1]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a < b & c > d", "a &lt; b &amp; c &gt; d"),
        ("look <!channel> here", "look  here"),
        ("<!here|here><@U123>hi", "hi"),
        ("<<!channel>!channel>", "&lt;!channel&gt;"),
        ("\x1b[31mred\x07\u202e", " [31mred  "),
        ("<https://evil.example|click>", "&lt;https://evil.example|click&gt;"),
    ],
)
def test_nobody_speaks_slack_through_us(text: str, safe: str) -> None:
    assert clean(text, 100) == safe


@settings(deadline=None)
@given(st.text(max_size=300), st.integers(8, 80))
def test_clean_is_short_and_harmless(text: str, limit: int) -> None:
    found = clean(text, limit)
    assert len(found) <= limit
    assert "<" not in found
    assert ">" not in found
    for part in found.split("&")[1:]:
        assert part.startswith(("amp;", "lt;", "gt;")), "an escape was cut in two"


alerts = st.builds(
    alert,
    text=st.one_of(st.text(), st.sampled_from(["&" * 9000, "<!channel>" * 900, "x" * 9000])),
    number=st.integers(1, 10**12),
    spent=st.integers(0, 10**12),
    job_name=st.one_of(st.text(), st.just("<&>" * 100)),
    kind=st.one_of(st.text(min_size=1), st.sampled_from(["failed", "notice", "crashed"])),
    severity=st.sampled_from(list(Severity)),
    repeats=st.integers(1, 10**6),
    data=st.just({"seconds": 1e9, "lost_steps": 10**9}),
)


@settings(deadline=None)
@given(st.lists(alerts, min_size=1, max_size=60))
def test_slack_takes_whatever_there_is_to_say(found: list[Alert]) -> None:
    body = payload(found)
    assert judge(json.dumps(body).encode()) == OK
    assert len(body["blocks"]) <= 6
    header = body["blocks"][0]["text"]["text"]
    assert 0 < len(header) <= 150
    assert "<" not in json.dumps(body)


def test_a_failure_tells_its_cause_once() -> None:
    cause = "ValueError: <@U1> bad batch"
    told = alert("the program exited with code 1", kind="crashed", data={"cause": cause})
    assert sections(told)[1] == "*Cause*\nValueError:  bad batch"
    assert "bad batch" in payload([told])["text"]
    assert "bad batch" in sections(told, alert(number=8))[0]
    known = alert(f"saving failed: {cause}", kind="checkpoint_failed", data={"cause": cause})
    assert not [text for text in sections(known) if text.startswith("*Cause*")]
