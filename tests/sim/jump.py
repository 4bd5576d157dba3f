"""Jump hosts: what dies, hangs and comes back there. The daemon's own `Ways` and `Jump` keep the
connections; what is replaced is SSH to the host itself (`log_in`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from spotd.act.jump_host import JumpError, JumpHost
from spotd.act.ssh import Address, SshDeadlineError, SshError, SshUnreachableError
from tests.sim.kernel import Kernel

REFUSED_S = 0.1  # until a host whose sshd is away says so
HURRY_S = (0.02, 0.1)  # of an answer of one that is well
SLOW_S = (1.0, 12.0)  # ... and of one that is not: some come in time, and some do not


class SimJumpHost:
    """One jump host, by the address in the configuration."""

    def __init__(self, kernel: Kernel, name: str, random: Random) -> None:
        self.host = JumpHost(Address(name, 22, "spotd", ""), "key")
        self.up = True
        self.slow = False
        self.up_since_us = 0  # since when it lets anybody through
        self.boots = 0  # connections of an earlier one are broken
        self._kernel = kernel
        self._random = random

    def die(self, seconds: float) -> None:
        """It is gone, and with it all connections through it, until it is started again."""
        self.up = False
        self.boots += 1
        self._kernel.after(seconds, partial(self._rise, self.boots))

    def mend(self) -> None:
        """It is well from now on."""
        self.slow = False
        if not self.up:
            self._rise(self.boots)

    def _rise(self, boots: int) -> None:
        if boots == self.boots and not self.up:
            self.up, self.up_since_us = True, self._kernel.now_us

    def answer(self, limit_s: float) -> None:
        """Wait for an answer of it. Raises SshDeadlineError, SshUnreachableError."""
        took_s = self._random.uniform(*(SLOW_S if self.slow else HURRY_S))
        if not self.up:  # packets to it get lost, or are refused
            lost = self._random.random() < 0.5
            self._kernel.sleep(limit_s if lost else min(REFUSED_S, limit_s))
            if lost:
                raise SshDeadlineError(f"no answer within {limit_s:.3g} s")
            raise SshUnreachableError("connection refused")
        boots = self.boots
        self._kernel.sleep(min(took_s, limit_s))
        if took_s > limit_s:
            raise SshDeadlineError(f"no answer within {limit_s:.3g} s")
        if boots != self.boots:
            raise SshUnreachableError("it hung up")


class SimJumpLine:
    """A connection to a jump host: as much of `act.ssh.Connection`, and of the transport that
    forwards, as `Jump` uses."""

    def __init__(self, there: SimJumpHost) -> None:
        self.transport = self
        self._there = there
        self._boots = there.boots
        self._closed = False
        self._limit_s = 0.0

    @property
    def open(self) -> bool:
        """As far as this end knows."""
        return not self._closed

    def close(self) -> None:
        self._closed = True

    def takes(self) -> bool:
        return not self._closed

    @contextmanager
    def deadline(self, limit_s: float) -> Iterator[None]:
        self._limit_s = limit_s
        yield

    def global_request(self, _kind: str, wait: bool) -> None:
        """Raises SshError."""
        assert wait
        self._ask(self._limit_s, fatal=True)

    def forward(self, _host: str, _port: int, limit_s: float) -> SimJumpLine:
        """Raises SshError."""
        self._ask(limit_s, fatal=False)
        return self

    def _ask(self, limit_s: float, *, fatal: bool) -> None:
        """A ping that goes unanswered ends the connection; another host's word does so, too."""
        try:
            if self._closed:
                raise SshUnreachableError("it hung up")
            self._there.answer(limit_s)
            if self._boots != self._there.boots:
                raise SshUnreachableError("connection reset")
        except SshError as error:
            self._closed = self._closed or fatal or isinstance(error, SshUnreachableError)
            raise


def log_in_by(
    hosts: Callable[[str], SimJumpHost],
) -> Callable[[JumpHost, float], tuple[Any, Any]]:
    """`spotd.act.jump_host.log_in`, to one of ours."""

    def log_in(host: JumpHost, connect_s: float = 15.0) -> tuple[Any, Any]:
        there = hosts(host.address.host)
        try:
            there.answer(connect_s)
        except SshError as error:
            raise JumpError(str(error)) from None
        line = SimJumpLine(there)
        return line, line

    return log_in
