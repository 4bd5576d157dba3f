"""Bugs of machines that go on in another attempt."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import spotd.planner.planner
import spotd.planner.rules.gang_resize
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node
from spotd.planner.rules.gang_resize import send_home
from tests.sim.planted_bugs.bug import Bug, put


def _token_of_its_own(stack: ExitStack) -> None:
    moved = spotd.planner.rules.gang_resize._moved

    def renamed(d: Any, old: Node, rank: int, size: int) -> Node:
        new = moved(d, old, rank, size)
        return changed(new, token=f"spotd-{new.id}")

    put(stack, spotd.planner.rules.gang_resize, "_moved", renamed)


def _ranks_kept(stack: ExitStack) -> None:
    moved = spotd.planner.rules.gang_resize._moved

    def in_place(d: Any, old: Node, rank: int, size: int) -> Node:
        return moved(d, old, old.rank if old.chosen else rank, size)

    put(stack, spotd.planner.rules.gang_resize, "_moved", in_place)


def _newcomers_kept(stack: ExitStack) -> None:
    rules = (rule for rule in spotd.planner.planner.RULES if rule is not send_home)
    put(stack, spotd.planner.planner, "RULES", tuple(rules))


GANGS = (
    Bug(
        "token of its own",
        "a machine that continues in another attempt gets another token there",
        frozenset({"L1", "G1"}),
        _token_of_its_own,
        "lone",
    ),
    Bug(
        "ranks kept",
        "the remaining machines of a gang keep their ranks",
        frozenset({"P1", "D2"}),
        _ranks_kept,
        "lone",
    ),
    Bug(
        "newcomers kept",
        "a machine that was to join a gang stays when the gang is complete without it",
        frozenset({"L1c", "L1", "L3"}),
        _newcomers_kept,
        "gangs",
    ),
)
