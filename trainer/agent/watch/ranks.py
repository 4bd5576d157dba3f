"""How far each rank on this machine has come, by what it says of its steps itself."""

from __future__ import annotations

from collections.abc import Sequence


class Ranks:
    """Belongs to the agent's loop. A rank that tells of no steps is unknown here, and so is what
    those of other machines do."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._silent_s: dict[int, float] = {}
        self._since: dict[int, float] = {}

    def hear(self, rank: int, step: int, now: float) -> float | None:
        """The rank has done so many steps; how long one of them took, in seconds, if that is now
        known."""
        before, since = self._steps.get(rank), self._since.get(rank)
        if step == before:
            return None
        self._steps[rank], self._silent_s[rank], self._since[rank] = step, 0.0, now
        if before is None or since is None or step < before:
            return None
        return (now - since) / (step - before)

    def leave(self, rank: int) -> None:
        """It has ended by itself."""
        for of_rank in (self._steps, self._silent_s, self._since):
            of_rank.pop(rank, None)

    def excuse(self) -> None:
        """One is at something that takes long, and the others wait for it."""
        self._silent_s = dict.fromkeys(self._silent_s, 0.0)

    def forget(self) -> None:
        """Other processes begin."""
        for of_rank in (self._steps, self._silent_s, self._since):
            of_rank.clear()

    def pass_time(self, seconds: float) -> float:
        """So much time was looked at; how long the most silent rank has made no step, 0.0 where
        none is known."""
        self._silent_s = {rank: s + seconds for rank, s in self._silent_s.items()}
        return max(self._silent_s.values(), default=0.0)

    @property
    def silent_s(self) -> float:
        """How long the most silent one has made no step."""
        return max(self._silent_s.values(), default=0.0)

    @property
    def steps(self) -> dict[int, int]:
        """By rank, the newest step that it has told of."""
        return dict(sorted(self._steps.items()))

    @property
    def text(self) -> str:
        """Who stopped where; empty where fewer than two ranks told of their steps."""
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
