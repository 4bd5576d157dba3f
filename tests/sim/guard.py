"""The dead-man of a simulated agent: the agent's own, asked at the moments when it is."""

from __future__ import annotations

from collections.abc import Callable

from spotd.wire import AgentConfig
from trainer.agent.base.stop_timing import StopTiming
from trainer.agent.main.deadman import Deadman

_NOTHING = StopTiming("spotd", 0.0)  # what there is to stop where nothing was started


class Guard:
    """Counts the time without a word of the control box."""

    def __init__(self, config: AgentConfig, monotonic: Callable[[], float]) -> None:
        self._deadman = Deadman(config, monotonic())
        self._monotonic = monotonic
        self._can_switch_off = bool(config.power_off)

    def hear(self, left_s: float | None) -> None:
        """The box is there, and says how long we may go on without it."""
        self._deadman.renew(left_s, self._monotonic())

    def stops(self, policy: StopTiming) -> bool:
        """Whether the program that runs has to save and end now."""
        return self._deadman.due(policy, self._monotonic(), idle=False)

    def idles(self) -> bool:
        """Whether a machine on which nothing was started has waited for too long."""
        return self._deadman.due(_NOTHING, self._monotonic(), idle=True)

    def gives_up(self, *, failed: bool) -> bool:
        """Whether the machine, on which nothing runs any more, switches itself off."""
        spent = self._deadman.should_power_off(self._monotonic(), awaits_final=False, failed=failed)
        return spent and self._can_switch_off
