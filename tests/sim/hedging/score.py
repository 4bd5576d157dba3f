"""What lives of the same cases come to, arm by arm, and how they differ from one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.policy_score import interval
from tests.sim.hedging.life import Life

Numbers = dict[str, tuple[float, tuple[float, float] | None]]
# What is compared case by case: a life's own number, 0 where there is none.
COMPARED: dict[str, Callable[[Life], float]] = {
    "usd": lambda life: life.usd,
    "alone_h": lambda life: life.alone_h,
    "done_h": lambda life: life.done_h,
    "gap_s": lambda life: sum(life.gaps_s),
    "hunt_s": lambda life: sum(life.hunts_s),
}


@dataclass(frozen=True)
class Sum:
    """Of one arm on one suite. Money and hours are means of a case, seconds the median and the
    95th of 100 of all losses and of all attempts (None: there was none), the rest sums.
    `differs` says by how many percent of one at a time each of COMPARED is more, with its 90 %
    interval over blocks (None: one block)."""

    suite: str
    arm: str
    cases: int
    blocks: int
    usd: float
    losers_usd: float
    unchosen_usd: float
    losers: int
    alone_h: float
    done_h: float
    losses: int
    gap_s: tuple[float, float] | None
    hunts: int
    hunt_s: tuple[float, float] | None
    late: int
    violations: int
    orphan_s: float
    steps_lost: int
    machines: int
    asked: int
    side_by_side: int
    differs: Numbers

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summed(suite: str, blocks: Sequence[int], lives: Sequence[Life], single: Sequence[Life]) -> Sum:
    """`single` are the lives of the first arm, of the same cases in the same order."""
    gaps = [gap for life in lives for gap in life.gaps_s]
    hunts = [hunt for life in lives for hunt in life.hunts_s]
    return Sum(
        suite=suite,
        arm=lives[0].arm,
        cases=len(lives),
        blocks=len(set(blocks)),
        usd=_mean(life.usd for life in lives),
        losers_usd=_mean(life.losers_usd for life in lives),
        unchosen_usd=_mean(life.unchosen_usd for life in lives),
        losers=sum(life.losers for life in lives),
        alone_h=_mean(life.alone_h for life in lives),
        done_h=_mean(life.done_h for life in lives),
        losses=len(gaps),
        gap_s=_spread(gaps),
        hunts=len(hunts),
        hunt_s=_spread(hunts),
        late=sum(life.late_s > 0 for life in lives),
        violations=sum(bool(life.violation) for life in lives),
        orphan_s=sum(life.orphan_s for life in lives),
        steps_lost=sum(life.steps_lost for life in lives),
        machines=sum(life.machines for life in lives),
        asked=sum(life.asked for life in lives),
        side_by_side=sum(life.side_by_side for life in lives),
        differs=differences(blocks, lives, single),
    )


def differences(blocks: Sequence[int], lives: Sequence[Life], single: Sequence[Life]) -> Numbers:
    """See Sum.differs; what is 0 with one at a time is left out. Raises ValueError where the cases
    are not the same."""
    if [life.case for life in lives] != [life.case for life in single]:
        raise ValueError("lives of other cases are not to be compared")
    numbers = np.unique(np.array(blocks), return_inverse=True)[1].astype(np.intp)
    found: Numbers = {}
    for name, number in COMPARED.items():
        theirs = np.array([number(life) for life in single], dtype=np.float64)
        more = np.array([number(life) for life in lives], dtype=np.float64) - theirs
        if theirs.sum() <= 0:
            continue
        around = interval(more, theirs, numbers)
        percent = (100 * around[0], 100 * around[1]) if around is not None else None
        found[name] = (100 * float(more.sum() / theirs.sum()), percent)
    return found


def table(sums: Sequence[Sum]) -> str:
    """In Markdown, as docs/measurements.md has it."""
    head = (
        "| suite | arm | dollars | losers | hours without a machine | hours |"
        " loss to first step, s | request to first word, s | late | violations | steps lost |"
        " machines |"
    )
    line = "|" + "---|" * (head.count("|") - 1)
    return "\n".join([head, line, *map(_row, sums)])


def _row(one: Sum) -> str:
    return (
        f"| {one.suite} ({one.cases}, {one.blocks}) | {one.arm} | {one.usd:,.2f}"
        f"{_more(one, 'usd')} | {one.losers_usd:,.2f} ({one.losers})"
        f" | {one.alone_h:.2f}{_more(one, 'alone_h')} | {one.done_h:.2f}{_more(one, 'done_h')}"
        f" | {_pair(one.gap_s)} ({one.losses}) | {_pair(one.hunt_s)} ({one.hunts})"
        f" | {one.late} | {one.violations} | {one.steps_lost} | {one.machines} of {one.asked} |"
    )


def _more(one: Sum, name: str) -> str:
    if name not in one.differs or not one.side_by_side:
        return ""
    percent, around = one.differs[name]
    text = f" [{around[0]:+.1f}, {around[1]:+.1f}]" if around is not None else ""
    return f"; {percent:+.1f} %{text}"


def _pair(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.0f}, {found[1]:.0f}"


def _mean(numbers: Any) -> float:
    return float(np.mean(list(numbers)))


def _spread(numbers: Sequence[float]) -> tuple[float, float] | None:
    if not numbers:
        return None
    low, high = np.percentile(numbers, (50, 95))
    return float(low), float(high)
