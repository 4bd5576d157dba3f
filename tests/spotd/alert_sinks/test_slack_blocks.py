"""Messages: what they say, what nobody can say through them, and that Slack takes them."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.blocks import Block

import spotd
from spotd.alert_sinks.base import Alert
from spotd.alert_sinks.slack_blocks import clean, payload
from spotd.domain.events import Event, Severity
from spotd.domain.health import ADVICE
from spotd.history.market_episodes import KINDS
from spotd.observe import job_limits
from tests.fixtures.slack import OK, judge
from tests.spotd.alert_sinks import samples
from tests.spotd.alert_sinks.samples import DASHBOARD, MENTIONS
from tests.spotd.store.build import NOW


def alert(text: str = "gone", number: int = 7, spent: int = 0, **fields: Any) -> Alert:
    job_id = fields.pop("job_id", "j1")
    name, repeats = fields.pop("job_name", "llama"), fields.pop("repeats", 1)
    event = Event(fields.pop("kind", "lost"), text, **fields)
    return Alert(number, NOW, job_id, name, event, repeats, spent)


def sections(*alerts: Alert) -> list[str]:
    blocks = payload(alerts)["blocks"]
    return [block["text"]["text"] for block in blocks if block["type"] == "section"]


@pytest.mark.req("MON-07")
def test_one_alert_answers_four_questions() -> None:
    data = {"seconds": 9.4, "steps_lost": 14, "lost_s": 70.0, "lost_microusd": 210_000}
    told = alert("training again at step 40", 42, 12_340_000, kind="recovered", data=data)
    happened, did, cost, must = sections(told)
    assert happened == "*What happened*\ntraining again at step 40"
    assert did == "*What spotd did*\nRequested another machine, and resumed there."
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
    assert "🔴 Error: 81 alerts: 1 checkpoint failed, 80 lost" in body["text"]
    assert "alerts 1 to 50" in body["text"]
    assert body["blocks"][0]["text"]["text"].startswith("🔴 Error: 81 alerts: 1 checkpoint")
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


def test_a_failed_job_comes_first() -> None:
    full = alert("the store is full", 1, kind="checkpoint_failed", severity=Severity.ERROR)
    failed = alert("gpt failed", 9, kind="failed", severity=Severity.ERROR, job_name="gpt")
    body = payload([full, failed])
    assert "🔴 Error: 2 alerts: 1 failed, 1 checkpoint failed" in body["text"]
    assert sections(full, failed)[0].startswith("🔴 gpt: gpt failed (alert 9)")
    assert sections(full, failed)[-1] == "*To see more*\n`spotctl why gpt`\n`spotctl why llama`"


def test_an_alert_names_its_job_the_command_and_the_page() -> None:
    told = dataclasses.replace(alert(), link=f"{DASHBOARD}/job/llama")
    context = payload([told])["blocks"][-1]["elements"][0]["text"]
    assert context.startswith(f"`spotctl why llama` · <{DASHBOARD}/job/llama|dashboard> · alert 7")
    assert f"<{DASHBOARD}/job/llama|llama>: gone" in sections(told, alert())[0]
    assert "|" not in json.dumps(payload([alert()])), "a link to nowhere"


def test_the_error_line_is_shown_verbatim() -> None:
    cause = "Traceback\n  File x\nValueError: `a` < 3 & <!here>"
    told = alert(kind="crashed", data={"cause": cause})
    assert sections(told)[0].endswith("\n`ValueError: 'a' &lt; 3 &amp;`")
    assert "`ValueError: 'a' &lt; 3 &amp;`" in sections(told, alert())[0]


def test_people_are_mentioned_by_the_worst_severity() -> None:
    small, large = alert(), alert(number=8, severity=Severity.ERROR)
    mention = "<!here> <!subteam^S0614TZR7>"
    assert sections_with(MENTIONS, large)[0] == mention
    assert payload([large], MENTIONS)["text"].startswith(mention), "Slack falls back to the text"
    assert sections_with(MENTIONS, small, large)[0] == mention
    assert "<" not in json.dumps(payload([small], MENTIONS))


def sections_with(mentions: Any, *alerts: Alert) -> list[str]:
    blocks = payload(alerts, mentions)["blocks"]
    return [block["text"]["text"] for block in blocks if block["type"] == "section"]


def test_an_alert_about_no_job_names_a_command_that_there_is() -> None:
    context = payload([alert(kind="orphan_held", job_name="", job_id="")])["blocks"][-1]
    assert context["elements"][0]["text"].startswith("`spotctl orphans` · alert 7")
    other = payload([alert(kind="brand_new", job_name="", job_id="")])
    assert "`spotctl events`" in json.dumps(other)


def test_a_diagnosis_says_what_spotd_does_about_it() -> None:
    did, must = sections(alert(kind="hung"))[1:]
    assert "restarted on this machine" in did
    assert "stacks" in must


@pytest.mark.parametrize("told", samples.samples(), ids=lambda told: told.event.kind)
def test_slacks_own_library_takes_each_kind(told: Alert) -> None:
    is_valid(payload([told], MENTIONS))
    text = json.dumps(payload([told], MENTIONS))
    assert (told.job_name or "spotd") in text
    assert "`spotctl " in text
    is_valid(payload([told, *samples.digest()], MENTIONS))


def test_slacks_own_library_takes_a_digest_of_everything() -> None:
    body = payload(samples.samples(), MENTIONS)
    is_valid(body)
    assert body["blocks"][0]["text"]["text"].startswith("🔴 Error: ")


def is_valid(body: dict[str, Any]) -> None:
    """By Slack's library for its Block Kit, which has the limits of its documentation, and by that
    of a message: 50 blocks."""
    assert 0 < len(body["blocks"]) <= 50
    for block in Block.parse_all(body["blocks"]):
        block.validate_json()
        assert block.to_dict(), "Slack's library does not know the block"
    assert judge(json.dumps(body).encode()) == OK


def test_slacks_own_library_refuses_what_is_too_long() -> None:
    body = payload([alert()])
    body["blocks"][0]["text"]["text"] = "x" * 151
    with pytest.raises(SlackObjectFormationError, match="150"):
        is_valid(body)
    body = payload([alert()])
    body["blocks"][1]["text"]["text"] = "x" * 3001
    with pytest.raises(SlackObjectFormationError, match="3000"):
        is_valid(body)


_ROOT = Path(spotd.__file__ or "").parent
# Kinds that are the value of a variable where the alert is made, by file.
_NAMED_ELSEWHERE = {
    "daemon/condition_alerts.py": ("safe_mode", "contested", "jump"),
    "history/market_episodes.py": KINDS,
    "observe/job_limits.py": (job_limits.REACHED, job_limits.FORETOLD),
    "store/diagnosis.py": [kind for kind, advice in ADVICE.items() if advice.alert],
}


def kinds_of(path: Path) -> Iterator[str]:
    """The kinds of event that this file of ours sends alerts of."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = ".".join(path.relative_to(_ROOT.parent).with_suffix("").parts)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = ast.unparse(call.func).rpartition(".")[2]
        alert_ = next((word.value for word in call.keywords if word.arg == "alert"), None)
        silent = alert_ is None or (isinstance(alert_, ast.Constant) and not alert_.value)
        if called not in ("Event", "event") or silent or not call.args:
            continue
        kind = call.args[0]
        if isinstance(kind, ast.Constant):
            yield str(kind.value)
        elif isinstance(kind, ast.Name) and kind.id.isupper():
            yield getattr(importlib.import_module(name), kind.id)
        else:
            yield from _NAMED_ELSEWHERE[str(path.relative_to(_ROOT))]


def test_there_is_a_sample_of_each_kind_that_spotd_sends() -> None:
    sent = {kind for path in sorted(_ROOT.rglob("*.py")) for kind in kinds_of(path)}
    sent |= set(_NAMED_ELSEWHERE["history/market_episodes.py"])
    assert len(sent) > 50
    assert sent - {told.event.kind for told in samples.samples()} == set()


def test_the_page_shows_the_messages_as_they_are() -> None:
    assert samples.PAGE.read_text(encoding="utf-8") == samples.page(), (
        "python -m tests.spotd.alert_sinks.samples --write"
    )


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
    linked = [dataclasses.replace(told, link=DASHBOARD + "/job/" + "x|<" * 40) for told in found]
    is_valid(payload(linked, MENTIONS))


def test_a_failure_tells_its_cause_once() -> None:
    cause = "ValueError: <@U1> bad batch"
    told = alert("the program exited with code 1", kind="crashed", data={"cause": cause})
    assert sections(told)[0].count("bad batch") == 1
    assert "bad batch" in payload([told])["text"]
    assert sections(told, alert(number=8))[0].count("bad batch") == 1
    known = alert(f"saving failed: {cause}", kind="checkpoint_failed", data={"cause": cause})
    assert sections(known)[0].count("bad batch") == 1
