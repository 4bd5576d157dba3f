"""What the agent lends to its parts."""

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
    """One generation's agent as its parts see it: where things are, clocks, and the loop's news."""

    config: AgentConfig
    places: AgentPaths
    journal: Journal
    environ: Mapping[str, str]
    keeper_argv: Sequence[str]
    keeper_env: Mapping[str, str]
    log_limit_bytes: int
    news: queue.SimpleQueue[Callable[[], None]]
    ended: threading.Event
    now_us: Callable[[], int]
    monotonic: Callable[[], float]
    preparation: Preparation = field(default_factory=Preparation)

    def post(self, news: Callable[[], None]) -> None:
        """Have the agent's loop call `news`; from any thread, and from a signal handler."""
        self.news.put(news)
