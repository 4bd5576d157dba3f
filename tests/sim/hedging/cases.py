"""What is played: cases of recorded traces, or of scarcity that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.hunt import MIX
from bench.policy_score import blocks_of
from tests.sim.replay.trace import TYPE, Case, raw, read

DRAWN = "X"
# Scarcity as it is drawn: of twelve pools two are up at a time, and change after such hours.
UP_H, DOWN_H, GAP_S, WORK_H, DEADLINE_H, RESTART_S = 2.0, 10.0, 600, 12, 24, 720


@dataclass(frozen=True)
class Played:
    """`block` is the stretch of time that the case is of; cases of one are not independent."""

    case: Case
    suite: str
    block: int


@dataclass(frozen=True)
class Drawn(Case):
    """`clouds` are those of its zones."""

    clouds: tuple[str, ...] = ()

    def key(self, zone: int) -> str:
        name, cloud = self.zones[zone], self.clouds[zone]
        return f"{cloud}/{cloud}-{zone}/{name}/{TYPE}"


def recorded(traces: Path, suite: str, part: str, every: int) -> list[Played]:
    """One of `every` of a suite of DIR."""
    kept = list(enumerate(raw(traces, suite, part)))[::every]
    blocks = blocks_of([one for _, one in kept])
    return [
        Played(read(f"{suite}/{part}/{number} {one['group']} {one['series']}", one), suite, block)
        for (number, one), block in zip(kept, blocks.tolist(), strict=True)
    ]


def drawn(count: int) -> list[Played]:
    """So many, each a block of its own: twelve pools of three clouds, each a twentieth dearer than
    the one before, on-demand at three times the first."""
    return [Played(_drawn(number), DRAWN, number) for number in range(count)]


def _drawn(number: int) -> Drawn:
    random, ticks = Random(f"hedging/{number}"), DEADLINE_H * 3600 // GAP_S
    prices = [30.0 * (1 + pool / 20) for pool in range(len(MIX))]
    return Drawn(
        name=f"{DRAWN}/{number}",
        zones=tuple(f"{cloud}-{pool}a" for pool, cloud in enumerate(MIX)),
        avail=tuple(_walk(random, ticks) for _ in MIX),
        spot=tuple((price,) * ticks for price in prices),
        on_demand=(90.0,) * len(MIX),
        gap_s=GAP_S,
        deadline_s=DEADLINE_H * 3600,
        work_s=WORK_H * 3600,
        restart_s=RESTART_S,
        clouds=MIX,
    )


def _walk(random: Random, ticks: int) -> tuple[bool, ...]:
    up, found = random.random() < UP_H / (UP_H + DOWN_H), list[bool]()
    for _ in range(ticks):
        found.append(up)
        changes = GAP_S / 3600 / (UP_H if up else DOWN_H)
        up ^= random.random() < changes
    return tuple(found)


def of_suite(
    suite: str, traces: Path | None, part: str, every: int, draws: int
) -> Sequence[Played]:
    """The cases of a name: M1 to M4 of DIR, or X."""
    if suite == DRAWN:
        return drawn(draws)
    assert traces is not None
    return recorded(traces, suite, part, every)
