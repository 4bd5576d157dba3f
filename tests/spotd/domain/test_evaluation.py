"""What an evaluation may say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spotd.domain.evaluation import MOST_FAILED, Evaluation, EvaluationError, read_evaluation

WHOLE: dict[str, Any] = {"suite": "helpdesk", "cases": 15_000, "passed": 14_250}


def test_all_of_it() -> None:
    more = {"tokens_per_s": 1850, "ttft_s": 0.25, "ttft_p95_s": 0.5, "failed": ["a\x00", "b" * 300]}
    found = read_evaluation({**WHOLE, **more})
    names = ("a", "b" * 200)
    assert found == Evaluation("helpdesk", 15_000, 14_250, 1850.0, 0.25, 0.5, names)
    assert found.share == 0.95
    assert read_evaluation({"suite": "a", "ttft_s": 1}).share is None


def test_only_the_first_names_are_kept() -> None:
    failed = [str(number) for number in range(750)]
    found = read_evaluation({**WHOLE, "failed": failed})
    assert found.failed == tuple(failed[:MOST_FAILED])


def test_the_same_measurement_has_one_digest() -> None:
    digest = read_evaluation(WHOLE).digest
    assert read_evaluation(dict(reversed(WHOLE.items()))).digest == digest
    others = ({"passed": 14_251}, {"suite": "other"}, {"ttft_s": 0.1}, {"failed": ["x"]})
    assert digest not in {read_evaluation({**WHOLE, **other}).digest for other in others}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"suite": ""}, "suite", "is not a name"),
        ({"suite": "a b"}, "suite", "is not a name"),
        ({"suite": 5}, "suite", "is not a name"),
        ({"cases": -1}, "cases", "is not a count"),
        ({"cases": 1.5}, "cases", "is not a count"),
        ({"cases": True}, "cases", "is not a count"),
        ({"cases": 10**9}, "cases", "at most 10000000"),
        ({"passed": 15_001}, "passed", "15001 passed of 15000 cases"),
        ({"tokens_per_s": 0}, "tokens_per_s", "not above 0"),
        ({"tokens_per_s": math.nan}, "tokens_per_s", "not above 0"),
        ({"tokens_per_s": "1850"}, "tokens_per_s", "not above 0"),
        ({"tokens_per_s": True}, "tokens_per_s", "not above 0"),
        ({"tokens_per_s": 10**400}, "tokens_per_s", "not above 0"),
        ({"ttft_s": 850}, "ttft_s", "250 ms are 0.25"),
        ({"ttft_ms": 850}, "ttft_ms", "as ttft_s"),
        ({"ttft_s": 0.5, "ttft_p95_s": 0.25}, "ttft_p95_s", "the median is the lesser"),
        ({"ttft_p95_s": 0.25}, "ttft_p95_s", "give both"),
        ({"failed": "x"}, "failed", "not a list"),
        ({"failed": [1]}, "failed", "not a list"),
        ({"passed": 14_999, "failed": ["x", "y"]}, "failed", "2 names, and 1 cases"),
        ({"cases": 0, "passed": 0}, "cases", "nothing was measured"),
        ({"speed": 5}, "speed", "no such field"),
    ],
)
def test_what_cannot_be_is_named_with_a_fix(change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        read_evaluation({**WHOLE, **change})
    assert caught.value.field == field
    assert words in str(caught.value)
