"""Bugs of whose turn it is, and of budgets by the month."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import spotd.observe.budgets
import spotd.planner.queue.fair_share
import spotd.planner.rules.finish_job
import spotd.planner.rules.place_job
import spotd.store.limits
from spotd.domain.queue import Limits
from tests.sim.planted_bugs.bug import Bug, put


def _turns_unread(stack: ExitStack) -> None:
    put(stack, spotd.planner.queue.fair_share, "_ahead", lambda *_: [])


def _project_limit_unread(stack: ExitStack) -> None:
    no_room = spotd.planner.queue.fair_share.no_room

    def blind(limits: Limits, *more: Any) -> str:
        return no_room(replace(limits, projects={}), *more)

    put(stack, spotd.store.limits, "no_room", blind)


def _taken_unsaved(stack: ExitStack) -> None:
    put(stack, spotd.planner.queue.fair_share, "_saved", lambda *_: True)


def _taken_from_equals(stack: ExitStack) -> None:
    may_give = spotd.planner.queue.fair_share._may_give

    def greedy(one: Any, turn: Any, now_us: int) -> bool:
        return may_give(replace(one, priority=-1), turn, now_us)

    put(stack, spotd.planner.queue.fair_share, "_may_give", greedy)


def _offers_untold(stack: ExitStack) -> None:
    put(stack, spotd.planner.rules.place_job, "in_turn", lambda _job, _market, _now_us, rows: rows)


def _month_unread(stack: ExitStack) -> None:
    put(stack, spotd.observe.budgets, "_stop", lambda *_: None)


def _stop_but(stack: ExitStack, scope: str) -> None:
    """Budgets of a `scope` ("user", "project") stop nobody; those of all jobs do."""
    stop = spotd.observe.budgets._stop

    def blind(store: Any, found: Any, now_us: int) -> None:
        if not getattr(found.budget, scope):
            stop(store, found, now_us)

    put(stack, spotd.observe.budgets, "_stop", blind)


def _project_month_unread(stack: ExitStack) -> None:
    _stop_but(stack, "project")


def _user_month_unread(stack: ExitStack) -> None:
    _stop_but(stack, "user")


def _job_limit_unread(stack: ExitStack) -> None:
    put(stack, spotd.planner.rules.finish_job, "_spent_now", lambda _: 0)


QUEUEING = (
    Bug(
        "queue order ignored",
        "the first job to ask gets the last free room, whatever the priorities",
        frozenset({"B1"}),
        _turns_unread,
        "queue",
    ),
    Bug(
        "project limit ignored",
        "the jobs of a project request what they need, whatever its limit",
        frozenset({"B1"}),
        _project_limit_unread,
        "queue",
    ),
    Bug(
        "taken before it saved",
        "a job of lower priority drains as soon as its room is wanted",
        frozenset({"R1"}),
        _taken_unsaved,
        "queue",
    ),
    Bug(
        "taken from equals",
        "a job's machines go to a waiting job of the same priority",
        frozenset({"D1"}),
        _taken_from_equals,
        "queue",
    ),
    Bug(
        "scarce offers unordered",
        "the first job to check a scarce offer requests it, whatever the priorities",
        frozenset({"B3"}),
        _offers_untold,
        "scarce",
    ),
    Bug(
        "monthly budget ignored",
        "a monthly budget raises alerts and stops no job",
        frozenset({"B1"}),
        _month_unread,
        "monthly",
    ),
    Bug(
        "project budget ignored",
        "a project's monthly budget raises alerts and stops no job; that of all jobs does",
        frozenset({"B1"}),
        _project_month_unread,
        "monthly",
    ),
    Bug(
        "user budget ignored",
        "a user's monthly budget raises alerts and stops no job; that of all jobs does",
        frozenset({"B1"}),
        _user_month_unread,
        "users",
    ),
    Bug(
        "job limit ignored",
        "a job trains on when its cost limit is reached",
        frozenset({"B1"}),
        _job_limit_unread,
        "poor",
    ),
)
