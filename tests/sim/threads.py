"""Stand-ins for what the daemon takes from `threading`, `queue` and `concurrent.futures`.

They have the same methods with the same meaning, on a `Kernel` instead of the operating system:
who has to wait gives way to whoever is next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tests.sim.kernel import Kernel, Process, Task

T = TypeVar("T")


class _Waiters:
    """Tasks that wait for the same thing, or have since it was there last: first come first."""

    __slots__ = ("_kernel", "tasks")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.tasks: dict[Task, None] = {}

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Give way until `ready`, or until the time is over; whether it is ready."""
        kernel = self._kernel
        end_us = None if timeout is None else kernel.now_us + int(timeout * 1e6)
        while not ready():
            if end_us is not None and kernel.now_us >= end_us:
                return False
            self.tasks[kernel.task()] = None
            if end_us is None:
                kernel.wait()
            else:
                kernel.wait_until(end_us)
        return True

    def wake(self) -> None:
        """Have everybody look again."""
        tasks, self.tasks = self.tasks, {}
        for task in tasks:
            self._kernel.wake(task)


class Lock:
    def __init__(self, kernel: Kernel) -> None:
        self._held = False
        self._waiters = _Waiters(kernel)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        limit = 0.0 if not blocking else None if timeout < 0 else timeout
        if self._held and not self._waiters.wait(lambda: not self._held, limit):
            return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiters.tasks:
            self._waiters.wake()

    def __enter__(self) -> bool:
        if self._held:
            return self.acquire()
        self._held = True  # as nearly always: nobody has to wait
        return True

    def __exit__(self, *_error: object) -> None:
        self._held = False
        if self._waiters.tasks:
            self._waiters.wake()


class Event:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._set = False
        self._waiters = _Waiters(kernel)

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiters.tasks:
            self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        kernel, waiters = self._kernel, self._waiters
        if timeout is None:
            while not self._set:
                waiters.tasks[kernel.task()] = None
                kernel.wait()
            return True
        end_us = kernel.now_us + int(timeout * 1e6)
        while kernel.now_us < end_us:
            waiters.tasks[kernel.task()] = None
            kernel.wait_until(end_us)
            if self._set:
                return True
        return False


class Condition(Lock):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._changed = _Waiters(kernel)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        if predicate():
            return True
        self.release()
        try:
            self._changed.wait(predicate, timeout)
        finally:
            self.acquire()
        return predicate()

    def notify_all(self) -> None:
        if self._changed.tasks:
            self._changed.wake()


class Thread:
    def __init__(
        self,
        kernel: Kernel,
        process: Process,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
    ) -> None:
        self._kernel, self._process = kernel, process
        self._run = lambda: target(*args)
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._kernel.spawn(self._process, self._run)

    def is_alive(self) -> bool:
        return self._task in self._process.tasks

    def join(self, timeout: float | None = None) -> None:
        end_s = timeout if timeout is not None else 1e9
        while self.is_alive() and end_s > 0:
            self._kernel.sleep(0.1)
            end_s -= 0.1


class Queue(Generic[T]):
    """queue.SimpleQueue."""

    def __init__(self, kernel: Kernel) -> None:
        self._items: deque[T] = deque()
        self._waiters = _Waiters(kernel)

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._waiters.tasks:
            self._waiters.wake()

    def qsize(self) -> int:
        return len(self._items)

    def get(self) -> T:
        self._waiters.wait(lambda: bool(self._items), None)
        return self._items.popleft()


class Future(Generic[T]):
    def __init__(self) -> None:
        self._done = False
        self._callbacks: list[Callable[[Future[T]], object]] = []

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        if self._done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def finish(self) -> None:
        self._done = True
        for callback in self._callbacks:
            callback(self)


class ThreadPoolExecutor:
    """At most `max_workers` calls at a time; a task for each, which ends with it."""

    def __init__(self, kernel: Kernel, process: Process, max_workers: int) -> None:
        self._kernel, self._process = kernel, process
        self._free = max_workers
        self._queued: deque[Callable[[], None]] = deque()
        self._closed = False

    def submit(self, run: Callable[..., T], *args: Any) -> Future[T]:
        if self._closed:
            raise RuntimeError("submit after shutdown")
        future: Future[T] = Future()

        def work() -> None:
            try:
                run(*args)
            finally:
                self._free += 1
                future.finish()
                self._next()

        self._queued.append(work)
        self._next()
        return future

    def _next(self) -> None:
        if self._free and self._queued and self._process.alive:
            self._free -= 1
            self._kernel.spawn(self._process, self._queued.popleft())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            self._queued.clear()


class OneByOne:
    """A pool whose work is done by who gives it, in its order."""

    def __init__(self, _workers: int) -> None: ...

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def map(self, work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        return [work(item) for item in items]


class Threading:
    """In place of the module `threading`: a thread belongs to the process that makes it."""

    TIMEOUT_MAX = 1e9

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def Lock(self) -> Lock:  # noqa: N802 - the module's own name
        return Lock(self._kernel)

    def Event(self) -> Event:  # noqa: N802
        return Event(self._kernel)

    def Condition(self) -> Condition:  # noqa: N802
        return Condition(self._kernel)

    def Thread(  # noqa: N802
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = False,
    ) -> Thread:
        return Thread(self._kernel, self._kernel.task().process, target, args)
