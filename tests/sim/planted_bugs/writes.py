"""Bugs of what is written, and by whom: checkpoints, decisions, alerts."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NoReturn

import spotd.daemon.loop
import spotd.planner.planner
import tests.sim.memory.commit
from providers.stores.base import StoreError
from spotd.daemon.reconcile import drain, joint_pass
from spotd.domain.job import HeadSnapshot
from spotd.domain.plan import ChangeJob
from spotd.wire import Head, HeadRef
from tests.sim.daemon import StoreClient
from tests.sim.memory.repositories import MemoryJobs
from tests.sim.objects import BucketClient
from tests.sim.planted_bugs.bug import Bug, put
from tests.sim.planted_bugs.replacements import _seen
from trainer.fence import Fence, read_head


def _no_fence(stack: ExitStack) -> None:
    def blunt(self: BucketClient, key: str, data: bytes, _tag: str | None) -> str:
        self._call(f"put_if {key}", lambda: self._bucket.put(key, data))
        return self._bucket.objects[key][1]

    put(stack, BucketClient, "put_if", blunt)


def _fence_after_reading(stack: ExitStack) -> None:
    wait, claim = Fence.wait_claimable, Fence.claim
    early: dict[int, HeadRef | None] = {}

    def read_and_wait(self: Fence, *args: Any) -> None:
        with suppress(StoreError):
            found = read_head(self.store, self.job_id)
            early[id(self)] = found[0].current if found is not None else None
        wait(self, *args)

    def late(self: Fence) -> Head:
        head = claim(self)
        before = early.get(id(self), head.current)
        self._sent[head.nonce] = before
        return replace(head, current=before)

    put(stack, Fence, "wait_claimable", read_and_wait)
    put(stack, Fence, "claim", late)


def _own_write_is_anothers(stack: ExitStack) -> None:
    read_movable = Fence._read_movable

    def forgetful(self: Fence, *, claiming: bool) -> Any:
        head, tag = read_movable(self, claiming=claiming)
        if not claiming and head is not None and head != self._head:
            raise self._fence_off(head.generation, head.owner)
        return head, tag

    put(stack, Fence, "_read_movable", forgetful)


def _no_compare_and_swap(stack: ExitStack) -> None:
    commit_many = tests.sim.memory.commit.commit_many

    def last_wins(tx: Any, plans: Any, now_us: int) -> Any:
        current = [
            (
                replace(view, job=replace(view.job, version=tx.tables.jobs[view.job.id].version)),
                plan,
            )
            for view, plan in plans
        ]
        return commit_many(tx, current, now_us)

    put(stack, tests.sim.memory.commit, "commit_many", last_wins)


def _written_again(stack: ExitStack) -> None:
    def repeat(d: Any) -> None:
        if d.job.outcome is not None:
            d._change(ChangeJob({"outcome_text": d.job.end.outcome_text}))

    put(stack, spotd.planner.planner, "RULES", (*spotd.planner.planner.RULES, repeat))


def _exit_code_is_success(stack: ExitStack) -> None:
    record = MemoryJobs.record_head

    def trusting(self: MemoryJobs, job_id: str, head: HeadSnapshot) -> None:
        record(self, job_id, replace(head, final=True))

    put(stack, MemoryJobs, "record_head", trusting)


def _alert_marked_first(stack: ExitStack) -> None:
    call = StoreClient.call

    def marking(self: StoreClient, name: str, method: Any, *args: Any, **more: Any) -> Any:
        rows = call(self, name, method, *args, **more)
        if name == "alerts.due" and rows:
            self._store.alerts.mark(rows, args[0], 0, "")
        return rows

    put(stack, StoreClient, "call", marking)


def _poison_spreads(stack: ExitStack) -> None:
    def stop(_job_id: str, error: Exception) -> NoReturn:
        raise error

    def all_or_none(self: Any, job_ids: list[str]) -> bool:
        drain(joint_pass(self._context, self._timing, job_ids, self._dispatch, stop))
        return True

    put(stack, spotd.daemon.loop.Loop, "_decide_jointly", all_or_none)


def _poison_delays(stack: ExitStack) -> None:
    judge = spotd.daemon.loop.Loop._note_outcome

    def upset(self: Any, job_id: str, error: Exception | None) -> None:
        judge(self, job_id, error)
        if error is not None:
            self._stopping.wait(180.0)

    put(stack, spotd.daemon.loop.Loop, "_note_outcome", upset)


WRITING = (
    Bug(
        "no fence",
        "HEAD is written whoever owns it",
        _seen("F1"),
        _no_fence,
        "parted",
    ),
    Bug(
        "fence after reading",
        "the resume point is read before HEAD is claimed",
        _seen("C1", "R1"),
        _fence_after_reading,
        "zombies",
    ),
    Bug(
        "own write is another's",
        "a writer that gets no answer and finds HEAD moved by its own write gives up",
        _seen("F2"),
        _own_write_is_anothers,
    ),
    Bug(
        "no compare and swap",
        "the last decision wins, whatever version it was made for",
        _seen("S1"),
        _no_compare_and_swap,
        "two",
    ),
    Bug(
        "written again",
        "a job's outcome is written again at every pass",
        _seen("Q1"),
        _written_again,
    ),
    Bug(
        "exit is success",
        "a program that exits with 0 counts as done, whatever HEAD says",
        _seen("C1"),
        _exit_code_is_success,
    ),
    Bug(
        "alert marked first",
        "an alert is marked as delivered before it is sent",
        _seen("A1"),
        _alert_marked_first,
    ),
    Bug(
        "poison spreads",
        "a job whose pass fails stops the other jobs",
        _seen("P2"),
        _poison_spreads,
        "poison",
    ),
    Bug(
        "poison delays",
        "after each failed pass the loop pauses for three minutes",
        _seen("P2"),
        _poison_delays,
        "poison",
    ),
)
