"""Bugs of what ends machines when nobody is left, or must not while somebody is."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import spotd.daemon.periodic
import spotd.planner.core.expiry
from spotd.domain.market import Timing
from spotd.domain.states import NodeState
from spotd.domain.units import S
from tests.sim.planted_bugs.bug import Bug, put
from tests.sim.planted_bugs.replacements import _seen
from trainer.agent.main.deadman import Deadman


def never_renewed(stack: ExitStack) -> None:
    """Nobody moves an expiry on."""
    put(stack, spotd.daemon.periodic, "renew_expiries", lambda *_: None)


def _renewed_for_ever(stack: ExitStack) -> None:
    first = spotd.planner.core.expiry.first_expiry_us

    def far(timing: Timing, now_us: int) -> int:
        return first(timing, now_us) + int(49 * timing.unattended_s) * S

    put(stack, spotd.planner.core.expiry, "first_expiry_us", far)


def _unwanted_renewed(stack: ExitStack) -> None:
    every = frozenset(NodeState)
    put(stack, spotd.planner.core.expiry, "_RENEWED", every)
    put(stack, spotd.planner.core.expiry, "RENEW_SHARE", 0.0)  # at each look


def _progress_not_seen(stack: ExitStack) -> None:
    due = Deadman.due

    def strict(self: Deadman, policy: Any, now: float, *, idle: bool) -> bool:
        return due(self, policy, now, idle=True)

    put(stack, Deadman, "due", strict)


def _saves_after_its_end(stack: ExitStack) -> None:
    """The whole time is used, and nothing of it kept for the save."""
    put(stack, Deadman, "deadline", property(lambda self: self._box_limit + 0.5 * self._time_s))


UNATTENDED = (
    Bug(
        "expiry never renewed",
        "a machine ends at its first expiry, even if a job still uses it",
        _seen("D1"),
        never_renewed,
        "deserted",
    ),
    Bug(
        "expiry without end",
        "a machine may run fifty times as long as it should",
        _seen("L1"),
        _renewed_for_ever,
        "deserted",
    ),
    Bug(
        "unwanted renewed",
        "the expiry of a terminating machine is extended",
        _seen("L1"),
        _unwanted_renewed,
        "stubborn",
    ),
    Bug(
        "dead-man stops progress",
        "the dead-man switch stops a program that trains as early as an idle one",
        _seen("D1"),
        _progress_not_seen,
        "deserted",
    ),
    Bug(
        "dead-man too late",
        "the reaper ends a machine before its agent has it save",
        _seen("R1"),
        _saves_after_its_end,
        "abandoned",
    ),
)
