"""Pauses between tries."""

from __future__ import annotations

from spotd.observe.retries import CAP_S, FIRST_S, Retries


class HandClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.passed_s = 100.0

    def now_us(self) -> int:
        raise NotImplementedError("pauses are not a matter of the wall clock")

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


def test_pauses_double_up_to_a_cap_and_begin_anew() -> None:
    clock = HandClock()
    retries, pauses = Retries(clock), []
    assert retries.due("n", clock.passed_s)
    for _ in range(8):
        retries.fail("n")
        pauses.append(retries.next_s(()) - clock.passed_s)
        assert not retries.due("n", clock.passed_s)
        clock.sleep(pauses[-1])
        assert retries.due("n", clock.passed_s)
    assert pauses == [FIRST_S, 0.5, 1.0, 2.0, 4.0, 8.0, CAP_S, CAP_S]
    retries.succeed("n")
    retries.fail("n")
    assert retries.next_s(()) - clock.passed_s == FIRST_S


def test_a_pause_may_be_given() -> None:
    clock = HandClock()
    retries = Retries(clock)
    retries.fail("n", 7.0)
    assert retries.next_s(()) - clock.passed_s == 7.0


def test_who_is_busy_does_not_wake_anybody_and_who_is_gone_is_forgotten() -> None:
    retries = Retries(HandClock())
    retries.fail("n")
    retries.fail("m")
    assert retries.next_s({"n", "m"}) == float("inf")
    retries.forget({"m"})
    assert (retries.failures("n"), retries.failures("m")) == (0, 1)
    assert retries.next_s({"m"}) == float("inf")
