"""Compute when a job or a call may be retried after failures."""

from __future__ import annotations

FIRST_S = 5.0
CAP_S = 300.0


def backoff_s(failures: int) -> float:
    """Seconds to wait after the `failures`-th crash in the job's life: 5, 10, 20 ... 300."""
    return min(FIRST_S * float(1 << min(max(failures - 1, 0), 10)), CAP_S)


def effect_backoff_s(failures: int) -> float:
    """Return the seconds to wait after `failures` failed calls in a row: 0.25, 0.5, 1 … 15.

    The first pauses are short because a new machine's sshd is often not up yet.
    """
    return min(0.25 * float(1 << min(max(failures - 1, 0), 6)), 15.0)
