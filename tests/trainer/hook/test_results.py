"""Reporting evaluation results, with and without an agent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotd.domain.evaluation import Evaluation, read_evaluation
from tests.trainer.rig import AgentEnd
from trainer.hook.spotd_hook.results import report_results

HOOK = Path(__file__).parents[3] / "trainer" / "hook"


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as end:
        yield end


def test_it_is_sent_before_the_call_returns(
    agent: AgentEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTD_SOCKET", agent.path)
    failed = [f"c{n}" for n in range(750)]
    assert report_results("helpdesk", cases=15_000, passed=14_250, failed=failed, ttft_s=0.25)
    values = read_evaluation(agent.wait("results").data)
    assert values == Evaluation("helpdesk", 15_000, 14_250, 0.0, 0.25, 0.0, tuple(failed[:100]))
    assert report_results("speed", tokens_per_s=1850)
    values = read_evaluation(agent.wait("results", lambda data: data["suite"] == "speed").data)
    assert values == Evaluation("speed", tokens_per_s=1850.0)


def test_sums_of_arrays_and_long_names_are_taken(
    agent: AgentEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's check accepts only what the control box accepts later."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("SPOTD_SOCKET", agent.path)
    passed = torch.tensor([True, True, False]).sum()
    failed = ["why " * 100_000, 7]
    assert report_results("numbers", cases=5, passed=passed, failed=failed)  # type: ignore[list-item]
    values = read_evaluation(agent.wait("results").data)
    assert (values.cases, values.passed, values.failed) == (5, 2, (("why " * 100)[:200], "7"))


def test_by_hand_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTD_SOCKET", raising=False)
    assert not report_results("helpdesk", cases=1, passed=1)


def test_an_agent_that_is_gone_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPOTD_SOCKET", str(tmp_path / "none.sock"))
    assert not report_results("helpdesk", cases=1, passed=1, timeout_s=0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"suite": "", "cases": 1}, "is not a valid name"),
        ({"suite": "help desk", "cases": 1}, "'help desk' is not a valid name"),
        ({"cases": 1.5}, "cases: 1.5 is not a whole number"),
        ({"ttft_p95_s": 0.5}, "also give ttft_s, the median"),
        ({"ttft_p95_s": 0.5, "ttft_s": 0.6}, "the median, which cannot be larger"),
        ({"cases": 1, "passed": 2}, "2 passed and 0 failed of 1 cases"),
        ({"cases": 2, "passed": 1, "failed": ["a", "b"]}, "1 passed and 2 failed of 2"),
        ({"tokens_per_s": 0.0}, "was not measured"),
        ({"ttft_s": float("nan")}, "was not measured"),
        ({}, "nothing was measured"),
    ],
)
def test_what_cannot_be_is_said_to_the_program(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report_results(**{"suite": "a", **values})


def test_no_torch_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import spotd_hook;"
        "spotd_hook.report_results('a', cases=1, passed=1)"
    )
    subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(HOOK)}, check=True)
