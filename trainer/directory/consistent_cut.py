"""Choose the changed units of a folder that a save takes: a consistent cut.

It has no change whose predecessors in time it lacks, and no pointer such as `latest` to a
checkpoint that is not saved. Whatever is still being written stays in the save as it was last
stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainer.directory.completeness import UnitState, inspect_unit, is_ready
from trainer.directory.units import (
    QUIET_S,
    SMALL_BYTES,
    SettleTimer,
    Unit,
    files_open_for_writing,
    looks_like_checkpoint,
    parents_of,
    series_name,
    step_number,
)

TOGETHER_S = 60.0  # longest wait of a file for others of the same step beside it
_WHOLE = re.compile(r"best|last|latest|final|recovery")  # in the name of what needs no other file
_PART = re.compile(r"optim|sched|scaler|rng|random|ema|rank|shard")
_WORD = re.compile(r"[^\s\"'/:,;{}\[\]()]+")


@dataclass(frozen=True)
class Cut:
    """The units to save, and why others wait.

    `waiting` are still being written; `held` are pointers to what is not saved; `incomplete` are
    broken, or were being written when the program was killed.
    """

    ready: tuple[Unit, ...] = ()
    waiting: tuple[Unit, ...] = ()
    held: tuple[Unit, ...] = ()
    incomplete: tuple[Unit, ...] = ()

    @cached_property
    def not_saved(self) -> list[str]:
        """Names of the changed units that it leaves out."""
        return [unit.name for unit in (*self.waiting, *self.held, *self.incomplete)]

    @cached_property
    def _unsaved_series(self) -> set[str]:
        return {series_name(unit.name) for unit in (*self.waiting, *self.incomplete)}

    def may_drop(
        self, name: str, modified_us: int, *, newest_us: int, pointed_at: Set[str]
    ) -> bool:
        """Whether a stored unit that the program has deleted may leave the save.

        While something is being written, its successor may be: it stays until the save has a newer
        checkpoint (`newest_us`), and as long as anything of its series waits or a pointer in the
        save names it (`pointed_at`).
        """
        if not self.not_saved:
            return True
        return (
            not self.held
            and name not in pointed_at
            and series_name(name) not in self._unsaved_series
            and modified_us < newest_us
        )


class CutFinder:
    """Finds consistent cuts of one folder; remembers for how long units have not changed."""

    def __init__(self, folder: Path, poll_s: float, monotonic: Callable[[], float]) -> None:
        self._folder, self._poll_s = folder, poll_s
        self._timer = SettleTimer(monotonic)
        self._open_at_last_look: set[str] = set()

    def forget_all_but(self, units: Sequence[Unit]) -> None:
        """Drop what is known of units that are gone."""
        self._timer.forget_all_but(units)

    def find(
        self,
        changed: Sequence[Unit],
        present: Iterable[Unit],
        stored: Set[str],
        *,
        ended: bool,
        clean: bool,
    ) -> Cut:
        """Divide the changed units, oldest change first.

        `present` are all units in the folder, and `stored` the names that the last save has.
        `ended` says that the program has ended, and `clean` that it did so by itself. Raises
        OSError.
        """
        open_files: set[str] = set()
        if any(not unit.is_log for unit in changed):
            open_files = files_open_for_writing(self._folder)
        looks = [look for unit in changed if (look := self._look(unit, open_files)) is not None]
        unready = _unready_parts(looks, ended=ended)
        ready: list[Unit] = []
        waiting: list[Unit] = []
        incomplete: list[Unit] = []
        blocked = doubtful = False
        for look in looks:
            needs_others = not (ended and clean) and _needs_others(look, unready)
            if look.unit.is_log:
                ready.append(look.unit)
            elif look.state is UnitState.BROKEN:
                incomplete.append(look.unit)
            elif ended and needs_others:
                doubtful = True
                incomplete.append(look.unit)
            elif needs_others or not look.is_ready(ended=ended):
                # A file that is kept open and not written to says nothing of the order of others.
                blocked = blocked or ended or not (look.is_open and look.quiet_s >= QUIET_S)
                waiting.append(look.unit)
            elif ended and not clean and self._is_doubtful(look):
                doubtful = True
                incomplete.append(look.unit)
            elif not blocked and not (doubtful and not looks_like_checkpoint(look.unit)):
                ready.append(look.unit)
        self._open_at_last_look = open_files
        held = self._held_pointers(ready, changed, present, stored)
        return Cut(
            ready=tuple(unit for unit in ready if unit not in held),
            waiting=tuple(waiting) if blocked else (),
            held=held,
            incomplete=tuple(incomplete),
        )

    def _look(self, unit: Unit, open_files: Set[str]) -> _Look | None:
        """Look at a unit; None if the program has just removed it."""
        if unit.is_log:
            return _Look(unit, UnitState.COMPLETE, quiet_s=0.0, is_open=False)
        quiet_s = self._timer.quiet_s(unit)
        try:
            state = inspect_unit(self._folder, unit)
        except FileNotFoundError:
            return None
        is_open = any(file.path in open_files for file in unit.files)
        return _Look(unit, state, quiet_s=quiet_s, is_open=is_open)

    def _is_doubtful(self, look: _Look) -> bool:
        """Whether the program may have been writing the unit when it was killed or crashed."""
        was_open = any(file.path in self._open_at_last_look for file in look.unit.files)
        # A small file is written at once, but first it is emptied.
        is_unclear = look.state is UnitState.UNKNOWN or (look.unit.is_file and not look.unit.size)
        return is_unclear and (was_open or look.quiet_s <= self._poll_s)

    def _held_pointers(
        self,
        ready: Sequence[Unit],
        changed: Sequence[Unit],
        present: Iterable[Unit],
        stored: Set[str],
    ) -> tuple[Unit, ...]:
        """The ready units that name others which the save would not have."""
        saved = stored | {unit.name for unit in ready}
        unsaved = {unit.name for unit in changed} - saved
        unsaved |= {name for unit in present for name in parents_of(unit.name)} - {
            parent for name in saved for parent in parents_of(name)
        }
        held: list[Unit] = []
        while unsaved:
            new = [
                unit
                for unit in ready
                if unit not in held and points_to(self._folder, unit, unsaved)
            ]
            if not new:
                break
            held += new
            unsaved |= {unit.name for unit in new} - stored
        return tuple(held)


@dataclass(frozen=True)
class _Look:
    """A changed unit at one moment: its content, for how long it is quiet, whether it is open."""

    unit: Unit
    state: UnitState
    quiet_s: float
    is_open: bool

    def is_ready(self, *, ended: bool) -> bool:
        return not self.is_open and is_ready(self.state, self.quiet_s, ended=ended)


def _unready_parts(looks: Sequence[_Look], *, ended: bool) -> dict[object, list[_Look]]:
    """The files that are being written and may be parts of a checkpoint, by folder and step."""
    unready: dict[object, list[_Look]] = {}
    for look in looks:
        if _may_be_a_part(look) and not look.is_ready(ended=ended) and look.quiet_s < TOGETHER_S:
            unready.setdefault(_step_of(look.unit), []).append(look)
    return unready


def _step_of(unit: Unit) -> tuple[str, int | None]:
    return unit.name.rpartition("/")[0], unit.number


def _needs_others(look: _Look, unready: Mapping[object, Sequence[_Look]]) -> bool:
    """Whether another file of the same step beside it is still being written.

    A model and its optimizer in two files belong together; a best and a last checkpoint do not.
    """
    if not _may_be_a_part(look) or look.quiet_s >= TOGETHER_S:
        return False
    return any(
        other is not look and not (_is_whole(look.unit) and _is_whole(other.unit))
        for other in unready.get(_step_of(look.unit), ())
    )


def _may_be_a_part(look: _Look) -> bool:
    return look.unit.is_file and not look.unit.is_log and looks_like_checkpoint(look.unit)


def _is_whole(unit: Unit) -> bool:
    name = unit.name.rpartition("/")[2].lower()
    return _WHOLE.search(name) is not None and _PART.search(name) is None


def points_to(folder: Path, unit: Unit, names: Set[str]) -> bool:
    """Whether the unit is a link to one of these paths in the folder, or a text that names one.

    A small text names what lies beside it, by its name, its name without endings, or its step
    number alone.
    """
    places = {_place(link.path, link.target) for link in unit.links}
    targets = {place for place in places if place and not f"{place}/".startswith(f"{unit.name}/")}
    if any(path in names for target in targets for path in (target, *parents_of(target))):
        return True
    if not unit.is_file or unit.is_log or unit.size > SMALL_BYTES:
        return False
    parent = unit.name.rpartition("/")[0]
    beside = {name for name in names if name.rpartition("/")[0] == parent and name != unit.name}
    if not beside:
        return False
    try:
        words = set(_WORD.findall((folder / unit.name).read_text("utf-8")))
    except (OSError, ValueError):
        return False
    return any(_is_named(name.rpartition("/")[2], words) for name in beside)


def _is_named(name: str, words: Set[str]) -> bool:
    number, parts = step_number(name), name.split(".")
    if name in words or (
        number is not None and {word.lstrip("0") for word in words} == {str(number)}
    ):
        return True
    # TensorFlow names its checkpoints without the endings of their files.
    stems = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any(stem in words and step_number(stem) is not None for stem in stems)


def _place(path: str, target: str) -> str | None:
    """The path that a link points to; None if it lies outside of the folder."""
    if target.startswith("/"):
        return None
    parts = path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def pointed_at(links: Mapping[str, str]) -> set[str]:
    """The paths in the folder that links, by their paths, point to."""
    return {place for path, target in links.items() if (place := _place(path, target)) is not None}
