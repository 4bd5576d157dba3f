"""Simulated gangs: the programs of one attempt, which step together or not at all.

Rank 0 claims, computes and saves, as a program alone does; the others are there, or nobody steps.
What one of them is told all hear, at the end of a step; when one is gone, the others wait for it in
vain for a while, and fail. Who is dead, who is cut off and who has frozen looks the same to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from spotd import wire

MEET_S = 600.0  # for all ranks to come together, before the first gives up
VAIN_S = (1.0, 120.0)  # that a collective hangs before it fails
LOOK_S = 2.0


class Member(Protocol):
    """The program of one rank."""

    ended: bool
    stop_wanted: bool
    save_wanted: bool
    code: int  # it ended with

    @property
    def there(self) -> bool:
        """Whether the others can reach it."""
        ...


class Gang:
    """The members of one attempt, by rank."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}

    def others(self, rank: int) -> Iterator[Member]:
        return (member for number, member in self.members.items() if number != rank)

    def is_whole(self, size: int) -> bool:
        return len(self.members) == size and all(m.there for m in self.members.values())

    def stops(self) -> bool:
        """One of them was told to: they agree on it in the exchange of their step."""
        return any(member.stop_wanted for member in self.members.values())

    def saves(self) -> bool:
        return any(member.save_wanted for member in self.members.values())

    def verdict(self) -> int | None:
        """What rank 0 ended with, which the others end with, too; None while it goes on."""
        first = self.members.get(0)
        if first is None or not first.ended:
            return None
        return first.code if first.code in _TOGETHER else 1


_TOGETHER = frozenset({wire.EXIT_FINISHED, wire.EXIT_RELEASED, wire.EXIT_FENCED})


class Gangs:
    """Of all jobs. Each machine starts its program anew in each attempt: so does its gang."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Gang] = {}

    def of(self, job_id: str, generation: int) -> Gang:
        return self._found.setdefault((job_id, generation), Gang())
