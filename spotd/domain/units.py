"""Units of time used across the daemon."""

from __future__ import annotations

S = 1_000_000  # microseconds in a second
