"""Many threads of control, one at a time, on a clock that jumps to the next thing that happens.

A `Task` is a greenlet: code that was written for threads runs in it as it is, and gives way only
where it calls something that is simulated. A `Process` is a group of tasks that dies or freezes
together. The same seed gives the same run, to the last event.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH_US = 1_800_000_000_000_000  # when every simulated run begins: 2027-01-15


class Killed(GreenletExit):
    """The process is dead: nothing that its code still does may reach the world."""


@dataclass(eq=False)
class Process:
    """Tasks that share a fate. A frozen one goes on at `frozen_until_us`, and has missed nothing
    that it waits for."""

    name: str
    alive: bool = True
    frozen_until_us: int = 0
    tasks: dict[Task, None] = field(default_factory=dict)  # in the order in which they began


class Task:
    """One thread of control of a process."""

    def __init__(self, kernel: Kernel, process: Process, run: Callable[[], None]) -> None:
        self.process = process
        self._kernel = kernel
        self._run = run
        self._greenlet = greenlet(self._main, parent=kernel.scheduler)
        self.go_on = self._greenlet.switch  # until it gives way; by the scheduler alone
        self.woken = 0  # counts its turns: a wake-up meant for an earlier wait is void

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self.process.tasks.pop(self, None)
            self._kernel.forget(self)

    def end(self) -> None:
        """Unwind it where it stands; by the scheduler alone."""
        if not self._greenlet.dead:
            self._greenlet.throw(Killed)


class Kernel:
    """The scheduler, and the only clock."""

    def __init__(self) -> None:
        self.now_us = EPOCH_US
        self.events = 0
        self.scheduler = getcurrent()
        self._give_way = self.scheduler.switch
        self._order = itertools.count()
        # When, in which order, and what: something that happens, or the wake-up of a task that has
        # not had another turn since. (No closure for those: they are nearly everything.)
        self._queue: list[tuple[int, int, Callable[[], None] | Task, int]] = []
        self._current: Task | None = None
        self._failure: Exception | None = None
        self._tasks: dict[Task, None] = {}

    # --- by anybody

    def at(self, at_us: int, happen: Callable[[], None]) -> None:
        """Have something happen at that moment, or now if it is past. What is due at the same
        moment happens in the order in which it was asked for."""
        heappush(self._queue, (max(at_us, self.now_us), next(self._order), happen, 0))

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        self.at(self.now_us + int(seconds * 1e6), happen)

    def spawn(self, process: Process, run: Callable[[], None]) -> Task:
        """A new thread of control; it begins when whoever runs now gives way."""
        task = Task(self, process, run)
        self._tasks[task] = None
        process.tasks[task] = None
        self._wake(task, self.now_us)
        return task

    def kill(self, process: Process) -> None:
        """Nothing that it does reaches the world from here on; its tasks unwind as soon as the
        scheduler has its turn. Raises Killed where the caller is one of them."""
        process.alive = False
        tasks = list(process.tasks)
        process.tasks.clear()
        self.at(self.now_us, lambda: [task.end() for task in tasks] and None)
        if self._current is not None and self._current.process is process:
            raise Killed

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop it for a while, as SIGSTOP or a paused virtual machine does."""
        until_us = self.now_us + int(seconds * 1e6)
        process.frozen_until_us = max(process.frozen_until_us, until_us)

    # --- by a task

    def sleep(self, seconds: float) -> None:
        """Give way for that long. A frozen process goes on later. Raises Killed."""
        end_us = self.now_us + int(seconds * 1e6)
        self.wait_until(end_us)
        while self.now_us < end_us:  # woken for something that it no longer waits for
            self.wait_until(end_us)

    def wait_until(self, at_us: int) -> None:
        """Give way until then, or until somebody wakes this task."""
        task, now_us = self.task(), self.now_us
        until_us = max(now_us, at_us)
        heappush(self._queue, (until_us, next(self._order), task, task.woken))
        self._give_way()
        if not task.process.alive:
            raise Killed

    def wait(self) -> None:
        """Give way until somebody wakes this task."""
        task = self.task()
        self._give_way()
        if not task.process.alive:
            raise Killed

    def wake(self, task: Task) -> None:
        """What the task waits for may have come."""
        self._wake(task, self.now_us)

    def task(self) -> Task:
        """Who runs now. Raises RuntimeError outside of every task, and Killed in a dead one."""
        task = self._current
        if task is None:
            raise RuntimeError("only a task may wait")
        if not task.process.alive:
            raise Killed
        return task

    @property
    def current(self) -> Task | None:
        """Who runs now, if it is a task."""
        return self._current

    def forget(self, task: Task) -> None:
        """It has come to its end."""
        self._tasks.pop(task, None)

    def fail(self, error: Exception) -> None:
        """End the run with `error` when the event at hand is over; the first one counts."""
        self._failure = self._failure or error

    # --- the scheduler

    def close(self) -> None:
        """Nothing happens any more: unwind whoever still waits. What waits for ever is never
        forgotten: a world with a task that was left standing stays in memory."""
        self._queue.clear()
        for task in list(self._tasks):
            task.process.alive = False
            with suppress(Exception):  # where it stood, nobody is there any more
                task.end()
        self._queue.clear()

    def run(self, until_us: int) -> None:
        """Let everything happen that is due until then. Raises what it was told to fail with."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            self.now_us, _, what, turn = heappop(queue)
            if type(what) is not Task:
                what()
            elif what.woken == turn:
                self._step(what)
            self.events += 1
            if self._failure is not None:
                raise self._failure
        self.now_us = max(self.now_us, until_us)

    def _wake(self, task: Task, at_us: int) -> None:
        heappush(self._queue, (max(at_us, self.now_us), next(self._order), task, task.woken))

    def _step(self, task: Task) -> None:
        process = task.process
        if not process.alive:
            return
        if process.frozen_until_us > self.now_us:
            then = (process.frozen_until_us, next(self._order), task, task.woken)
            heappush(self._queue, then)
            return
        task.woken += 1
        self._current = task
        try:
            task.go_on()
        finally:
            self._current = None
