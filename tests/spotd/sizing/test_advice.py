"""What a starved run is told, in hours and dollars."""

from __future__ import annotations

import pytest

from spotd.sizing import cards
from spotd.sizing.advice import advise, cause
from spotd.sizing.task import task_of
from spotd.sizing.throughput import pace
from tests.spotd.sizing.test_throughput import case_study
from tests.spotd.sizing.told import tuned

H100 = cards.find("H100")
USD_PER_H = 8 * 1.49  # what the case study paid


@pytest.mark.req("RSZ-12")
def test_the_line_that_would_have_saved_the_case_study_1884_dollars() -> None:
    task = case_study()
    measured = pace(task, H100, 1850.0)
    assert cause(task, H100, measured).startswith(
        "communication-bound by short unpacked examples: 228 tokens a GPU and micro-step are "
        "0.26 s of arithmetic, and sharding moves 382 GB for them, 0.95 s at 400 GB/s"
    )
    best = advise(task, H100, measured, USD_PER_H)[0]
    assert best.text.startswith(
        "packing to 4k tokens: 58 h, $690.76 instead of 216 h, $2,574.72 (tight: "
    )
    assert best.saves_usd == pytest.approx(1884, abs=1)
    its_own = case_study(accumulation=16)
    assert advise(its_own, H100, pace(its_own, H100, 1850.0), USD_PER_H)[0].text == (
        "packing to 4k tokens: 58 h, $690.76 instead of 216 h, $2,574.72 "
        "(tight: 82 GiB/GPU of 79.2)"
    )


def test_without_a_length_or_a_price_it_says_what_it_knows() -> None:
    task = case_study()
    now = pace(task, H100, 1850.0)
    assert "58 h instead of 216 h" in advise(task, H100, now)[0].text
    endless = case_study(tokens=None)
    assert "3.7 times as fast" in advise(endless, H100, now)[0].text


def test_small_batches_of_packed_tokens_are_told_to_grow() -> None:
    task = task_of(tuned({"name": "llama-3-8b", "sequence": 256, "tokens": 1e9})).on(8)
    now = pace(task, H100)
    assert now.starved
    assert "small micro-batches" in cause(task, H100, now)
    kinds = {one.kind: one for one in advise(task, H100, now, 20.0)}
    assert list(kinds) == ["batch"]
    assert kinds["batch"].text.startswith("micro-batches of ")
    assert kinds["batch"].saves_usd > 0


def test_a_run_that_is_fed_is_told_nothing() -> None:
    task = task_of({"name": "llama-3-8b", "sequence": 4096, "micro_batch": 4}).on(8)
    assert cause(task, H100, pace(task, H100)) == ""
    assert advise(task, H100, pace(task, H100), 20.0) == []


@pytest.mark.req("RSZ-07")
def test_a_measured_run_below_the_floor_is_under_fed() -> None:
    task = task_of({"name": "llama-3-8b", "sequence": 4096, "micro_batch": 4}).on(8)
    slow = pace(task, H100, pace(task, H100).tokens_per_s / 3)
    assert cause(task, H100, slow) == "under-fed: 13% of the GPUs' peak, where 38% is usual"
