"""A straggling rank is recognized by the time that each rank needs by itself."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.watch.straggler_detector import CHECK_S, CHECKS, WARM_UP_S, StragglerDetector

TINY = "--layers 1 --width 16 --heads 2 --block 16 --batch 2 --device cpu --threads 1"
ROUND_S = CHECKS * CHECK_S


def told_at(times: list[list[float]], every_s: float = 5.0, per_node: int = 0) -> list[float]:
    """Return when warnings come, with each of `times` reported at this interval."""
    watch = StragglerDetector()
    reports = enumerate(times)
    return [n * every_s for n, ranks in reports if watch.add(ranks, per_node, n * every_s)]


SLOW, EVEN = [0.1, 0.1, 0.2, 0.1], [0.1, 0.1, 0.11, 0.1]


@pytest.mark.req("HLT-03", "HLT-08")
def test_it_takes_four_windows_after_the_warm_up() -> None:
    found = told_at([SLOW] * 200)
    assert WARM_UP_S + ROUND_S <= found[0] <= WARM_UP_S + ROUND_S + CHECKS * 5.0
    assert found[1] - found[0] == pytest.approx(ROUND_S, abs=CHECKS * 5.0), "told again"


@pytest.mark.parametrize(
    "times",
    [
        [EVEN] * 200,
        [[0.1, 0.1, 0.16, 0.1]] * 200,  # 62 %
        [[0.1]] * 200,  # alone
        [[0.001, 0.001, 0.004]] * 200,  # too short to mean anything
        [[0.0, 0.0]] * 200,
        ([SLOW] * 18 + [EVEN] * 6) * 10,  # never four windows in a row
        ([SLOW] * 18 + [[0.2, 0.1, 0.1, 0.1]] * 18) * 6,  # not always the same
        ([SLOW] * 40 + [[0.1, 0.2]] * 40) * 3,  # another number of ranks: another program
    ],
)
def test_what_is_no_straggler(times: list[list[float]]) -> None:
    assert told_at(times) == []


def test_it_says_who_and_where() -> None:
    watch = StragglerDetector(check_s=1.0, warm_up_s=0.0)
    found = [remark for n in range(40) for remark in watch.add(SLOW, 2, n / 4)]
    assert found[0].verdict == "straggler"
    assert found[0].data == {"rank": 2, "rank_s": 0.2, "others_s": 0.1, "node": 1}
    assert "rank 2 needs 0.2 s by itself for a step, and the others 0.1 s" in found[0].text


def test_of_two_real_ranks_the_one_that_sleeps_is_named(node: Node, tmp_path: Path) -> None:
    """Both report the same time for a step, because each waits for the other."""
    data = tmp_path / "text"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    torchrun = shlex.quote(str(Path(sys.executable).with_name("torchrun")))
    run = f"{torchrun} --standalone --nproc-per-node 2 -m tests.trainer.sleepy --data {data}"
    node.environ |= {"SPOTD_STRAGGLER_CHECK_S": "0.5", "SPOTD_STRAGGLER_WARM_UP_S": "0.5"}
    node.environ |= {"SPOTD_USAGE_S": "1", "SLEEPS": "1:0.1"}
    node.run()
    node.start(run=f"{run} --steps 100000 {TINY}", engine="spotd", progress_every_s=0.2)

    def verdicts() -> list[dict[str, object]]:
        return [e.data["about"] for e in node.entries(wire.WARNING) if e.data.get("verdict")]

    (about, *_) = wait_until("a verdict", verdicts)
    assert (about["rank"], about["node"]) == (1, 0)
    reports = [entry.data for entry in node.entries(wire.PROGRESS)]
    assert all(len(report["ranks_s"]) == 2 for report in reports)
    usage = [report["usage"] for report in reports if "usage" in report]
    assert usage, "a window is over"
    assert 0 <= usage[0]["data_s"] <= usage[0]["busy_s"]
    assert "gpu" not in usage[0], "nobody measured it"
