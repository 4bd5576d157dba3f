"""Each verdict on training: what a person is told of it, and what idle time comes from."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.health import ADVICE, IDLE_BELOW, NAN, STRAGGLER, follows, of_unwell, use_of


@pytest.mark.parametrize(
    ("what", "kind"), [("hung", "hung"), ("machine", "unfit"), ("gpu", "gpu"), ("else", "gpu")]
)
def test_what_the_journal_calls_unwell_has_a_name(what: str, kind: str) -> None:
    assert of_unwell(what) == kind
    assert kind in ADVICE


def test_every_verdict_says_what_is_done_and_what_to_try() -> None:
    assert {NAN, STRAGGLER, "slow", "loss_spike", "nan_after_resume"} < ADVICE.keys()
    for advice in ADVICE.values():
        assert advice.title
        assert advice.does
        assert advice.attempt
    assert [kind for kind, advice in ADVICE.items() if advice.stops] == [NAN]


@pytest.mark.parametrize(
    ("kind", "data", "nodes", "words"),
    [
        ("hung", {"again": True}, 1, "restarted on this machine"),
        ("hung", {"again": False}, 1, "the second time is charged"),
        ("hung", {"again": False}, 2, "with several machines it is charged"),
        ("gpu", {"again": True}, 1, "restarted on this machine"),
        ("gpu", {"again": False}, 2, "another machine takes over"),
        ("gpu", {}, 1, "after a memory error that was contained"),
        ("nan", {}, 1, "another machine would not help"),
    ],
)
def test_what_is_done_is_what_the_agent_did(
    kind: str, data: dict[str, Any], nodes: int, words: str
) -> None:
    assert words in follows(kind, data, nodes)


def window(seconds: float, **parts: float) -> dict[str, float]:
    return {"window_s": seconds, **parts}


@pytest.mark.req("HLT-10")
@pytest.mark.parametrize(
    ("windows", "shares", "cause"),
    [
        ([window(100, gpu=0.9, data_s=50)], (0.9, 0.5, None), ""),
        ([window(100, gpu=IDLE_BELOW, data_s=50)], (0.7, 0.5, None), ""),
        ([window(100, data_s=50)], (None, 0.5, None), ""),
        ([window(100, gpu=0.4)], (0.4, None, None), "not known"),
        ([window(100, gpu=0.4, data_s=40, save_s=5)], (0.4, 0.4, 0.05), "it waits for data"),
        ([window(100, gpu=0.4, data_s=20, save_s=30)], (0.4, 0.2, 0.3), "it waits for check"),
        ([window(100, gpu=0.4, data_s=20, save_s=0)], (0.4, 0.2, 0.0), "it waits for data"),
        ([window(100, gpu=0.4, data_s=19, save_s=0)], (0.4, 0.19, 0.0), "neither"),
        ([window(100, gpu=1.0), window(300, gpu=0.2)], (0.4, None, None), "not known"),
        ([window(100, gpu=0.4), window(100, data_s=150)], (0.4, 1.0, None), "it waits for data"),
    ],
)
def test_idle_time_has_a_likely_cause_or_none_is_claimed(
    windows: list[dict[str, float]],
    shares: tuple[float | None, float | None, float | None],
    cause: str,
) -> None:
    use = use_of(windows)  # type: ignore[arg-type]
    assert use is not None
    assert (use.gpu, use.data, use.save) == pytest.approx(shares)
    assert use.cause.startswith(cause)
    assert bool(use.cause) is bool(cause)
    assert use.seconds == sum(w["window_s"] for w in windows)


def test_without_a_window_nothing_is_known() -> None:
    assert use_of([]) is None
