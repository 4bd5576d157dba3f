"""What one side did at each tick, in words that both share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from spotd.planner.spot_policy import Choice, PoolRecord, Situation

NOTHING = ""
Told = Mapping[str, object]


@dataclass(frozen=True)
class Look:
    """One call of the policy. `began_s` is its side's time at the first tick."""

    situation: Situation
    choice: Choice
    began_s: float

    @property
    def told(self) -> Told:
        """All that the choice is made of, by name, times from the first tick on.

        A pool that was refused or taken away at this very moment is not to be had, whatever it
        costs."""
        now = self.situation
        told: dict[str, object] = {"now_s": self._since(now.now_s)}
        told |= {f"work.{one.name}": getattr(now.work, one.name) for one in fields(now.work)}
        due_s = now.work.deadline_s
        told["work.deadline_s"] = None if due_s is None else self._since(due_s)
        told |= {"signalled": now.signalled, "probe_s": now.probe_s, "running": None}
        if now.running is not None:
            told["running"] = f"{now.running.capacity.value} {now.running.pool}"
            told["running.since_s"] = self._since(now.running.since_s)
            told["running.starting_s"] = now.running.starting_s
        for pool in now.pools:
            told |= {
                f"{pool.key} {one.name}": getattr(pool, one.name)
                for one in fields(pool)
                if one.name not in ("key", "record")
            }
            told |= {f"{pool.key} record.{n}": v for n, v in self._record(pool.record).items()}
        return told

    def _since(self, at_s: float) -> float:
        return round(at_s - self.began_s, 3)

    def _record(self, record: PoolRecord) -> dict[str, object]:
        told: dict[str, object] = {one.name: getattr(record, one.name) for one in fields(record)}
        if record.up is not None:
            told |= {name: self._since(getattr(record, name)) for name in ("since_s", "seen_s")}
        return told

    @property
    def decided(self) -> tuple[str, str, bool]:
        return self.choice.action.value, self.choice.pool, self.choice.guarded

    def __str__(self) -> str:
        action, pool, guarded = self.decided
        return f"{action} {pool}".rstrip() + (" (the guard)" if guarded else "")


@dataclass
class Tick:
    """`asked` are launches in their order: capacity type, pool, and whether it was granted. `runs`
    is what is held when everything is done, "" for nothing."""

    looks: list[Look] = field(default_factory=list)
    asked: list[tuple[str, str, bool]] = field(default_factory=list)
    runs: str = NOTHING

    @property
    def done(self) -> str:
        words = [
            f"{kind} {pool} {'granted' if granted else 'refused'}"
            for kind, pool, granted in self.asked
        ]
        return f"{', '.join(words) or 'asked for nothing'}; holds {self.runs or 'nothing'}"
