"""The environment shared by all parts of one agent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spotd.wire import AgentConfig
from trainer.agent.base.journal import Journal
from trainer.agent.base.paths import AgentPaths
from trainer.agent.base.preparation import Preparation


@dataclass(frozen=True)
class AgentContext:
    """Paths, clocks, the journal and the main loop's callback queue of one generation's agent.

    `supervisor_argv` and `supervisor_env` start a script supervisor. `ended` is set when the agent
    leaves its loop.
    """

    config: AgentConfig
    paths: AgentPaths
    journal: Journal
    environ: Mapping[str, str]
    supervisor_argv: Sequence[str]
    supervisor_env: Mapping[str, str]
    log_limit_bytes: int
    callbacks: queue.SimpleQueue[Callable[[], None]]
    ended: threading.Event
    now_us: Callable[[], int]
    monotonic: Callable[[], float]
    preparation: Preparation = field(default_factory=Preparation)

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the agent's loop. Safe from any thread and from signal handlers."""
        self.callbacks.put(callback)
