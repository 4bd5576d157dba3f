"""Detect GPUs that a job pays for and hardly uses, by its machines' recent reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COVERED = 0.8  # share of the time that has to be measured: reports come with steps, and late
WARN, PAUSE, ALLOW = "warn", "pause", "allow"


@dataclass(frozen=True)
class IdlePolicy:
    """The action for a job whose GPUs were used less than the share `below` for `after_s`."""

    does: str = WARN  # ALLOW, WARN or PAUSE
    below: float = 0.1
    after_s: float = 3600.0
    dry_run: bool = True  # PAUSE only reports what it would do


@dataclass(frozen=True)
class Window:
    """One machine's report: the mean share `gpu` of its GPUs' time over `seconds`."""

    node_id: str
    seconds: float
    gpu: float
    usd_per_h: float


@dataclass(frozen=True)
class Idle:
    """A job below the bound: its share, the cost of idle GPU time, and its hourly cost."""

    gpu: float
    usd: float
    usd_per_h: float


def idle_gpus(windows: Iterable[Window], policy: IdlePolicy) -> Idle | None:
    """Return the idle job of these windows within the last `after_s`, or None.

    None if it works, or if too little of that time was measured: nothing is known of a machine that
    just began. The mean is by time, over all machines that reported long enough.
    """
    by_node: dict[str, list[Window]] = {}
    for window in windows:
        by_node.setdefault(window.node_id, []).append(window)
    known = [
        window
        for node_windows in by_node.values()
        if sum(window.seconds for window in node_windows) >= COVERED * policy.after_s
        for window in node_windows
    ]
    seconds = sum(window.seconds for window in known)
    if not seconds:
        return None
    gpu = sum(window.gpu * window.seconds for window in known) / seconds
    if gpu >= policy.below:
        return None
    usd = sum((1 - window.gpu) * window.seconds * window.usd_per_h for window in known) / 3600
    newest = {window.node_id: window.usd_per_h for window in known}
    return Idle(gpu, usd, sum((1 - gpu) * rate for rate in newest.values()))
