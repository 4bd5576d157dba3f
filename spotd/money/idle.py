"""Detect GPUs that a job pays for and hardly uses, by its machines' recent reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COVERED = 0.8  # of the time that is judged has to be measured: reports come with steps, and late
WARN, PAUSE, ALLOW = "warn", "pause", "allow"


@dataclass(frozen=True)
class IdlePolicy:
    """What happens to a job whose GPUs were below the share `below` of their time for `after_s`."""

    does: str = WARN  # ALLOW, WARN or PAUSE
    below: float = 0.1
    after_s: float = 3600.0
    dry_run: bool = True  # PAUSE tells what it would do


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
        for mine in by_node.values()
        if sum(one.seconds for one in mine) >= COVERED * policy.after_s
        for window in mine
    ]
    seconds = sum(one.seconds for one in known)
    if not seconds:
        return None
    gpu = sum(one.gpu * one.seconds for one in known) / seconds
    if gpu >= policy.below:
        return None
    usd = sum((1 - one.gpu) * one.seconds * one.usd_per_h for one in known) / 3600
    newest = {one.node_id: one.usd_per_h for one in known}
    return Idle(gpu, usd, sum((1 - gpu) * rate for rate in newest.values()))
