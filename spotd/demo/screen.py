"""The demo's output while it runs: a live page on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from providers.dollars import format_usd

# Kinds of events that are shown; `spotctl events` shows all.
SHOWN_EVENTS = {
    "requested", "launched", "chosen", "training", "notice", "lost", "recovered", "released",
    "fenced", "succeeded", "failed", "crashed", "gone", "claimed", "zombie", "fault", "demo",
}  # fmt: skip
STYLES = {"notice": "yellow", "lost": "red", "fault": "bold red", "zombie": "magenta"}
STYLES |= {"recovered": "bold green", "succeeded": "bold green", "demo": "bold"}
LINES = 14


class Screen(Protocol):
    """Receives every event and the job's state."""

    def add_event(self, kind: str, text: str) -> None: ...

    def update_job(self, job: Mapping[str, Any], steps: int) -> None: ...


class PlainScreen:
    """Prints one line per event, with seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def add_event(self, kind: str, text: str) -> None:
        if kind in SHOWN_EVENTS:
            seconds = time.monotonic() - self._started_s
            line = Text(f"{seconds:6.1f} s  {kind:<10} {text}")
            self._console.print(line, soft_wrap=True, highlight=False)

    def update_job(self, job: Mapping[str, Any], steps: int) -> None:
        """Do nothing: there is no page to redraw."""


class LiveScreen:
    """A page that is redrawn: the job, its machines, the last events."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._started_s = time.monotonic()
        self._lines: deque[Text] = deque(maxlen=LINES)
        self._job: Mapping[str, Any] = {}
        self._steps = 1
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)
        for line in self._lines:
            self._console.print(line)

    def add_event(self, kind: str, text: str) -> None:
        if kind not in SHOWN_EVENTS:
            return
        seconds = time.monotonic() - self._started_s
        line = Text(f"{seconds:6.1f} s  ", style="dim")
        line.append(f"{kind:<10} ", style=STYLES.get(kind, "cyan"))
        line.append(text, style=STYLES.get(kind, ""))
        line.truncate(max(self._console.width - 6, 40), overflow="ellipsis")
        self._lines.append(line)
        self._draw()

    def update_job(self, job: Mapping[str, Any], steps: int) -> None:
        self._job, self._steps = job, steps
        self._draw()

    def _draw(self) -> None:
        parts: list[Any] = [self._header(), self._machines()]
        self._live.update(Panel(Group(*parts, *self._lines), title=self._title))

    def _header(self) -> Table:
        step = int(self._job.get("step", 0))
        row = Table.grid(padding=(0, 2))
        phase = str(self._job.get("phase", "starting"))
        cost = float(self._job.get("cost_usd", 0.0))
        bar = ProgressBar(total=self._steps, completed=step, width=40)
        row.add_row(Text(phase, style="bold"), bar, f"step {step}/{self._steps}", format_usd(cost))
        return row

    def _machines(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for node in self._job.get("where", []):
            name = f"g{node['generation']} {node['provider']}/{node['zone']}"
            table.add_row(Text(name, style="bold cyan"), str(node["state"]))
        return table


def open_screen(
    console: Console, title: str = "spotd demo (local clouds)"
) -> LiveScreen | PlainScreen:
    """Return a live page on a terminal, plain lines elsewhere."""
    return LiveScreen(console, title) if console.is_terminal else PlainScreen(console)
