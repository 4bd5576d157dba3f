"""Adapt the number of parallel uploads to the link.

On a slow link, many parallel uploads all hit the store's request timeout; with fewer, each gets
more bandwidth.
"""

from __future__ import annotations

MAX_CONCURRENCY = 8
SUCCESSES_BEFORE_INCREASE = 10  # too much concurrency costs a save a minute


class UploadConcurrency:
    """`count` is between 1 and `MAX_CONCURRENCY`. Used by one thread."""

    def __init__(self) -> None:
        self.count = MAX_CONCURRENCY
        self._successes = 0

    def reduce(self) -> None:
        """Halve the concurrency after an upload timed out."""
        self.count, self._successes = max(1, self.count // 2), 0

    def add_success(self) -> None:
        """Count a save without failures; after several of them allow one more upload."""
        self._successes += 1
        if self._successes >= SUCCESSES_BEFORE_INCREASE:
            self.count, self._successes = min(MAX_CONCURRENCY, self.count + 1), 0
