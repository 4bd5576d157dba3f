"""Tasks take turns, in an order that the seed alone decides; processes freeze and die whole."""

from __future__ import annotations

import weakref

import pytest

from tests.fixtures.waiting import LIMIT_S
from tests.sim.kernel import EPOCH_US, Kernel, Killed, Process
from tests.sim.threads import Condition, Event, Lock, Queue, ThreadPoolExecutor


def _run(kernel: Kernel, seconds: float) -> None:
    kernel.run(EPOCH_US + int(seconds * 1e6))


def test_tasks_sleep_and_go_on_in_the_order_of_time() -> None:
    kernel, said = Kernel(), list[tuple[str, float]]()
    process = Process("p")

    def run(name: str, pause_s: float) -> None:
        for _ in range(2):
            kernel.sleep(pause_s)
            said.append((name, (kernel.now_us - EPOCH_US) / 1e6))

    kernel.spawn(process, lambda: run("slow", 3))
    kernel.spawn(process, lambda: run("fast", 2))
    _run(kernel, 10)
    assert said == [("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6)]
    assert not process.tasks


def test_what_is_left_standing_is_unwound_and_forgotten() -> None:
    """Else the worlds of a long batch stay in memory, with every task that waits in them."""
    kernel, lock, process = Kernel(), Lock(Kernel()), Process("p")

    class World: ...

    worlds = [World()]
    kept = weakref.ref(worlds[0])

    def wait(world: World) -> None:
        with lock:
            kernel.wait()

    kernel.spawn(process, lambda: wait(worlds.pop()))
    _run(kernel, 1)
    assert kept() is not None
    kernel.close()
    assert kept() is None
    assert not process.tasks


def test_a_killed_process_does_nothing_more_and_unwinds() -> None:
    kernel, said = Kernel(), list[str]()
    process, other = Process("p"), Process("q")

    def work(name: str) -> None:
        try:
            kernel.sleep(5)
            said.append(f"{name} worked")
        except Exception:  # noqa: BLE001 - as product code does
            said.append(f"{name} caught its own death")
        finally:
            said.append(f"{name} unwound")

    def never() -> None:
        said.append("begun after death")

    kernel.spawn(process, lambda: work("first"))
    kernel.spawn(other, lambda: work("other"))
    kernel.after(1, lambda: kernel.spawn(process, never))
    kernel.after(1, lambda: kernel.kill(process))
    _run(kernel, 10)
    assert said == ["first unwound", "other worked", "other unwound"]


def test_a_task_that_kills_its_own_process_does_not_return() -> None:
    kernel, said = Kernel(), list[str]()
    process = Process("p")

    def die() -> None:
        kernel.kill(process)
        said.append("lived on")

    kernel.spawn(process, die)
    kernel.spawn(process, lambda: said.append("mate"))
    _run(kernel, 1)
    assert said == []
    with pytest.raises(RuntimeError):
        kernel.sleep(1)


def test_a_dead_task_may_not_wait_while_it_unwinds() -> None:
    kernel, said = Kernel(), list[str]()
    process = Process("p")

    def work() -> None:
        try:
            kernel.sleep(5)
        finally:
            try:
                kernel.sleep(1)
            except (Killed, RuntimeError):
                said.append("refused")

    kernel.spawn(process, work)
    kernel.after(1, lambda: kernel.kill(process))
    _run(kernel, 10)
    assert said == ["refused"]


def test_a_frozen_process_goes_on_later_and_others_do_not_wait() -> None:
    kernel, said = Kernel(), list[tuple[str, float]]()

    def run(name: str) -> None:
        for _ in range(2):
            kernel.sleep(1)
            said.append((name, (kernel.now_us - EPOCH_US) / 1e6))

    frozen, other = Process("frozen"), Process("other")
    kernel.spawn(frozen, lambda: run("frozen"))
    kernel.spawn(other, lambda: run("other"))
    kernel.after(1.5, lambda: kernel.freeze(frozen, 10))
    _run(kernel, 20)
    assert said == [("frozen", 1), ("other", 1), ("other", 2), ("frozen", 11.5)]


def test_a_lock_is_held_by_one_and_a_timeout_is_kept() -> None:
    kernel, said = Kernel(), list[tuple[str, float]]()
    lock, process = Lock(kernel), Process("p")

    def hold(name: str) -> None:
        with lock:
            kernel.sleep(2)
            said.append((name, (kernel.now_us - EPOCH_US) / 1e6))

    def give_up() -> None:
        assert not lock.acquire(timeout=1)
        said.append(("gave up", (kernel.now_us - EPOCH_US) / 1e6))

    for name in ("first", "second"):
        kernel.spawn(process, lambda name=name: hold(name))
    kernel.spawn(process, give_up)
    _run(kernel, 10)
    assert said == [("gave up", 1), ("first", 2), ("second", 4)]


def test_events_conditions_and_queues_wake_who_waits() -> None:
    kernel, said = Kernel(), list[object]()
    event, condition, queue = Event(kernel), Condition(kernel), Queue[int](kernel)
    process, ready = Process("p"), list[int]()

    def wait() -> None:
        said.append(event.wait(1))
        said.append(event.wait())
        with condition:
            said.append(condition.wait_for(lambda: bool(ready), LIMIT_S))
        said.append(queue.get())

    def tell() -> None:
        kernel.sleep(3)
        event.set()
        kernel.sleep(1)
        with condition:
            ready.append(1)
            condition.notify_all()
        kernel.sleep(1)
        queue.put(7)

    kernel.spawn(process, wait)
    kernel.spawn(process, tell)
    _run(kernel, 10)
    assert said == [False, True, True, 7]


def test_a_pool_has_so_many_workers_and_no_more() -> None:
    kernel, at_once, most = Kernel(), 0, 0
    process, done = Process("p"), list[int]()

    def work(number: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        kernel.sleep(1)
        at_once -= 1
        done.append(number)

    def main() -> None:
        pool = ThreadPoolExecutor(kernel, process, 2)
        for number in range(5):
            pool.submit(work, number)
        kernel.sleep(10)
        pool.submit(work, 5)
        pool.submit(work, 6)
        pool.submit(work, 7)
        pool.shutdown(cancel_futures=True)

    kernel.spawn(process, main)
    _run(kernel, 20)
    assert (most, done) == (2, [0, 1, 2, 3, 4, 5, 6])
