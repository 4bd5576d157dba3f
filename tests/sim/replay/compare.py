"""Where the daemon and the bench differ first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from spotd.planner.spot_policy import choose
from tests.sim.replay.bench import Player, Policy, play, played
from tests.sim.replay.steps import NOTHING, Look, Tick
from tests.sim.replay.trace import Case
from tests.sim.replay.world import lived

NEAR = 1e-6  # of times in seconds, dollars and hours


@dataclass(frozen=True)
class Outcome:
    """`ticks` are what the bench did; `difference` is "" where the daemon did the same."""

    case: Case
    ticks: Sequence[Tick]
    difference: str = ""

    @property
    def looks(self) -> int:
        return sum(len(tick.looks) for tick in self.ticks)

    @property
    def counts(self) -> Counter[str]:
        """What there was of everything."""
        found: Counter[str] = Counter()
        before = NOTHING
        for tick in self.ticks:
            found["refused"] += sum(not granted for *_, granted in tick.asked)
            found["guarded"] += any(look.choice.guarded for look in tick.looks)
            taken = before.startswith("spot") and tick.looks[0].situation.running is None
            found["preempted"] += taken
            for kind, _, granted in tick.asked:
                if granted:
                    to = "return" if kind == "spot" and before.startswith("on_demand") else "launch"
                    found[f"{to} {kind}"] += 1
            found["waits"] += not tick.runs
            before = tick.runs
        return found

    @property
    def story(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()) if count)

    def as_json(self) -> dict[str, object]:
        counts = {name: count for name, count in self.counts.items() if count}
        told = {"ticks": len(self.ticks), "decisions": self.looks, "difference": self.difference}
        return {"case": self.case.name, **told, "counts": counts}


def replayed(
    case: Case,
    player: Player = play,
    hear: Callable[[str], None] | None = None,
    policy: Policy = choose,
) -> Outcome:
    """Play it twice, and compare. Raises AssertionError where the bench does not finish."""
    bench = played(case, player, policy)
    daemon = lived(case, len(bench), hear, policy)
    found = difference(case, bench, daemon.ticks)
    if not found and daemon.unfinished:
        found = (
            f"{case.name}: the job is done on the bench, and not by the daemon: {daemon.unfinished}"
        )
    return Outcome(case, bench, found)


def difference(case: Case, bench: Sequence[Tick], daemon: Sequence[Tick]) -> str:
    """In words; "" where there is none. The daemon may look more often than the bench, as whenever
    something is on record, as long as nothing else comes of it."""
    for number, (mine, theirs) in enumerate(zip(bench, daemon, strict=True)):
        where = f"{case.name}, tick {number} ({number * case.gap_s / 3600:.2f} h)"
        at = 0
        for look in mine.looks:
            same = [n for n in range(at, len(theirs.looks)) if not apart(look, theirs.looks[n])]
            if not same:
                return f"{where}: {_looks_apart(look, theirs.looks[at:])}"
            at = same[0] + 1
        if mine.asked != theirs.asked or mine.runs != theirs.runs:
            told = _told(mine.looks[-1], theirs.looks[-1:])
            return f"{where}:\n  bench:  {mine.done}\n  daemon: {theirs.done}\n{told}"
    return ""


def apart(one: Look, other: Look) -> list[str]:
    """What is not the same of two looks."""
    found = [] if one.decided == other.decided else [f"  chosen: bench {one}, daemon {other}"]
    told, heard = one.told, other.told
    for name in sorted({*told, *heard}):
        mine, theirs = told.get(name), heard.get(name)
        if not _near(mine, theirs):
            found.append(f"  {name}: bench {mine}, daemon {theirs}")
    return found


def _near(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(_near(*pair) for pair in zip_longest(one, other))
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or abs(one - other) <= NEAR * max(1.0, abs(one))
    return one == other


def _looks_apart(look: Look, others: Sequence[Look]) -> str:
    if not others:
        return f"the daemon does not look where the bench does\n{_told(look, ())}"
    nearest = min(others, key=lambda other: len(apart(look, other)))
    return "\n".join(["they do not agree", *apart(look, nearest), _told(look, [nearest])])


def _told(bench: Look, daemon: Sequence[Look]) -> str:
    lines = [f"  the bench's situation: {bench.situation}", f"    chose {bench}"]
    for look in daemon:
        lines += [f"  the daemon's situation: {look.situation}", f"    chose {look}"]
    return "\n".join(lines)
