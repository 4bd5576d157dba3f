"""Test the parsing of checkpoint intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.spec.checkpoint_every import PRESETS, RISKS, CheckpointEvery, parse_every
from tests.spotd.spec.test_load import DEFAULTS, read, refused

ENGINE = "engine: spotd"


def saves(text: str, **changes: object) -> tuple[bool, int, float]:
    spec = read(f"run: x\nspotd: {{checkpoint: {{{text}}}}}", **changes).spec.checkpoint
    return spec.auto, spec.every_steps, spec.every_s


def trouble(text: str) -> str:
    [problem] = refused(f"run: x\nspotd: {{checkpoint: {{{text}}}}}")
    return problem


@pytest.mark.parametrize(
    ("value", "every"),
    [
        ("auto", CheckpointEvery(auto=True)),
        (" Auto", CheckpointEvery(auto=True)),
        ("5m", CheckpointEvery(seconds=300.0)),
        ("500 steps", CheckpointEvery(steps=500)),
        ("1step", CheckpointEvery(steps=1)),
        ("70b-qlora", CheckpointEvery(steps=500, preset="70b-qlora")),
        ("hourly", CheckpointEvery(seconds=3600.0, preset="hourly")),
    ],
)
def test_valid_intervals(value: str, every: CheckpointEvery) -> None:
    assert parse_every(value) == every


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("atuo", "'atuo' is neither a time nor a preset; did you mean 'auto'?"),
        ("often", "known here: 405b, 70b-fp16"),
        ("500", "write auto, a time like 5m, or 500 steps"),
        (5, "5 is not a checkpoint interval"),
        (True, "True is not a checkpoint interval"),
        (None, "None is not a checkpoint interval"),
        ("0 steps", "is not a number of steps"),
        ("-3 steps", "is not a checkpoint interval"),
        ("99999999999 steps", "is not a number of steps"),
    ],
)
def test_invalid_intervals_name_valid_ones(value: object, text: str) -> None:
    with pytest.raises(ValueError, match=r"write|mean|known") as caught:
        parse_every(value)
    assert text in str(caught.value)


@pytest.mark.req("CKP-06")
def test_presets_match_published_guides() -> None:
    steps = {name: every.steps for name, every in PRESETS.items() if name[0].isdigit()}
    assert steps == {"7b-qlora": 100, "70b-qlora": 500, "70b-fp16": 1000, "405b": 2000}
    assert RISKS.keys() < PRESETS.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ENGINE}, every: auto", (True, 0, 120.0)),
        (f"{ENGINE}, every: 5m", (False, 0, 300.0)),
        (f"{ENGINE}, every: 500 steps", (False, 500, 0.0)),
        (f"{ENGINE}, every: steps-or-time", (False, 100, 300.0)),
        (f"{ENGINE}, every: 5m, every_steps: 7", (False, 7, 300.0)),
        (ENGINE, (False, 0, 120.0)),  # as the configuration says
        ("every: 90s", (False, 0, 90.0)),
    ],
)
def test_interval_of_a_job(text: str, expected: tuple[bool, int, float]) -> None:
    assert saves(text) == expected


def test_auto_is_the_default_if_configured() -> None:
    auto = {"defaults": replace(DEFAULTS, every=CheckpointEvery(auto=True))}
    assert saves(ENGINE, **auto) == (True, 0, 120.0)
    assert saves(f"{ENGINE}, every: 5m", **auto) == (False, 0, 300.0)
    assert saves(f"{ENGINE}, every_steps: 7", **auto) == (False, 7, 120.0)
    assert saves("keep: 2", **auto) == (False, 0, 120.0), "nothing of it can be measured"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("every: auto", "auto needs measured saves"),
        (f"{ENGINE}, every: auto, every_steps: 5", "auto does not use steps"),
        (f"{ENGINE}, every: 5 steps, every_steps: 5", "gives steps, and every_steps does too"),
        (f"{ENGINE}, every: 500ms", "must be at least 1s"),
        (f"{ENGINE}, every: 0", "must be at least 1s"),
        (f"{ENGINE}, size: 420", "420 is not a size (fix: write one like 420GB"),
    ],
)
def test_what_cannot_be_is_refused(text: str, problem: str) -> None:
    problem_text = trouble(text)
    assert problem in problem_text
    assert "spotd.checkpoint." in problem_text
    assert "fix" in problem_text or "write" in problem_text


@pytest.mark.req("CKP-03")
@pytest.mark.parametrize(
    "before",
    [CheckpointEvery(auto=True), CheckpointEvery(steps=500), CheckpointEvery(seconds=60.0)],
)
def test_the_search_preset_saves_every_200_steps(before: CheckpointEvery) -> None:
    auto = {"defaults": replace(DEFAULTS, every=before)}
    assert saves(f"{ENGINE}, every: search", **auto) == (False, 200, 0.0)


@pytest.mark.req("CKP-24")
def test_a_risky_preset_warns() -> None:
    text = f"run: x\nspotd: {{checkpoint: {{{ENGINE}, every: 70b-fp16}}}}"
    warnings = [text for text in read(text).warnings if "70b-fp16" in text]
    assert len(warnings) == 1
    assert "30 to 60 minutes" in warnings[0]
    assert "auto chooses the interval that costs least" in warnings[0]


def test_the_size_of_a_save() -> None:
    spec = read(f"run: x\nspotd: {{checkpoint: {{{ENGINE}, size: 1.5TB}}}}").spec
    assert spec.checkpoint.size_bytes == 1_500_000_000_000
