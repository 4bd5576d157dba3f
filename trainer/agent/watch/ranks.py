"""The progress of each rank on this machine, from its own step reports."""

from __future__ import annotations

from collections.abc import Sequence


class RankProgress:
    """Belongs to the agent's loop. Ranks that report no steps, and those of other machines, are
    unknown."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._silent_s: dict[int, float] = {}
        self._since: dict[int, float] = {}

    def on_step(self, rank: int, step: int, now: float) -> float | None:
        """Record a rank's step count; returns the seconds of one step, if known."""
        previous, since = self._steps.get(rank), self._since.get(rank)
        if step == previous:
            return None
        self._steps[rank], self._silent_s[rank], self._since[rank] = step, 0.0, now
        if previous is None or since is None or step < previous:
            return None
        return (now - since) / (step - previous)

    def remove(self, rank: int) -> None:
        """Forget a rank that has ended."""
        for of_rank in (self._steps, self._silent_s, self._since):
            of_rank.pop(rank, None)

    def reset_silence(self) -> None:
        """Reset the silence of all ranks: one does a long operation that the others wait for."""
        self._silent_s = dict.fromkeys(self._silent_s, 0.0)

    def clear(self) -> None:
        """Forget all ranks: new processes start."""
        for of_rank in (self._steps, self._silent_s, self._since):
            of_rank.clear()

    def pass_time(self, seconds: float) -> float:
        """Add observed time; returns the longest silence of a rank, or 0.0 if none is known."""
        self._silent_s = {rank: s + seconds for rank, s in self._silent_s.items()}
        return max(self._silent_s.values(), default=0.0)

    @property
    def silent_s(self) -> float:
        """The longest silence of a rank, in seconds."""
        return max(self._silent_s.values(), default=0.0)

    @property
    def steps(self) -> dict[int, int]:
        """The newest reported step of each rank."""
        return dict(sorted(self._steps.items()))

    @property
    def text(self) -> str:
        """Describe which rank stopped at which step; empty if fewer than two ranks reported
        steps."""
        if len(self._steps) < 2:
            return ""
        by_step: dict[int, list[int]] = {}
        for rank, step in sorted(self._steps.items()):
            by_step.setdefault(step, []).append(rank)
        if len(by_step) == 1:
            return f"all {len(self._steps)} ranks stopped after step {next(iter(by_step))}"
        parts = [f"{_named(ranks)} after step {step}" for step, ranks in sorted(by_step.items())]
        return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
