"""Saving through the saver, and resuming from it, for one rank of a training program.

    engine = Engine(Line(path), job="j1", generation=1, name="a", rank=0, ranks=[0], world_size=1)
    engine.open(pieces, size)               # memory, once
    while (head := engine.claim()) is None: # the first rank; it waits until HEAD may be had
        ...
    found = engine.resume(config)           # where to go on, or None
    memory, _ = engine.fetch(ranges)        # its bytes, verified
    engine.save(step, fill, state)          # a snapshot; blocks while `fill` copies
    engine.drain(seconds); engine.release()

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .saver_client import ANSWER_S, SaverClient, SaverError
from .shared_memory import SaveProgress, SharedMemory

Pin = Callable[[memoryview], Callable[[], None]]  # gives what takes it back


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to go on from. `ref` is how HEAD names it, `state` its JSON part, `tensors`
    where each tensor lies, `sizes` the bytes of each stream."""

    ref: Mapping[str, Any]
    state: Mapping[str, Any]
    tensors: Sequence[Mapping[str, Any]]
    sizes: Sequence[int]

    @property
    def step(self) -> int:
        return int(self.ref["step"])


class Engine:
    """One rank's. `name` must be the same for all ranks and another one for each start of the
    program: it is part of where snapshots lie. `pin` is given the memory before the first copy into
    it. Methods raise SaverError, and OSError when the saver is gone."""

    def __init__(
        self,
        line: SaverClient,
        *,
        job: str,
        generation: int,
        name: str,
        rank: int,
        ranks: Sequence[int],
        world_size: int,
        pin: Pin | None = None,
    ) -> None:
        self._line = line
        self._below = f"jobs/{job}/g{generation:08d}"
        self._name = name
        self._rank, self._ranks, self._world_size = rank, list(ranks), world_size
        self._arena: SharedMemory | None = None
        self._saves = 0
        self._slot = -1
        self._pin, self._unpin = pin, _do_nothing

    def open(self, pieces: Sequence[Mapping[str, Any]], size: int, slots: int = 2) -> None:
        """Memory for what this rank saves, laid out as `pieces` say."""
        self._let_go()
        self._arena = self._line.join(
            self._rank, self._ranks, self._world_size, size, slots, pieces
        )
        if self._pin is not None:
            self._unpin = self._pin(self._arena.room)

    def claim(
        self, claim: str = "now", left_s: float = 0.0, wait_s: float = 1.0
    ) -> Mapping[str, Any] | None:
        """Take HEAD, as soon as it may be had: `claim` "now", or "after_release" and at the latest
        in `left_s`. None when it might not within `wait_s`: ask again. What an earlier process of
        ours staged is committed first. `final` in the answer: the job is finished already."""
        answer = self._line.ask("claim", claim=claim, left_s=left_s, wait_s=wait_s)
        return None if answer["waiting"] else answer

    def resume(
        self,
        config: Mapping[str, Any],
        *,
        back: int = 0,
        most_step: int | None = None,
        ref: Mapping[str, Any] | None = None,
    ) -> FoundCheckpoint | None:
        """The newest checkpoint of HEAD that can be used, or one `back` further, if there are so
        many; of those up to `most_step` alone. For the other ranks: the first rank's `ref`. None
        when there never was one."""
        asked: dict[str, Any] = {"config": dict(config), "back": back, "most_step": most_step}
        if ref is not None:
            asked = {"ref": dict(ref)}
        found = self._line.ask("resume", **asked)["found"]
        return None if found is None else FoundCheckpoint(**found)

    def fetch(self, ranges: Sequence[tuple[int, int, int]]) -> tuple[memoryview, Mapping[str, int]]:
        """The bytes of (stream, start, size)s one behind the other, verified, and how many came
        from where. Raises CorruptError for damage."""
        answer = self._line.ask("fetch", ranges=[list(one) for one in ranges])
        return self._memory.slot(int(answer["slot"])), answer["from"]

    def skip(self, why: str, config: Mapping[str, Any]) -> FoundCheckpoint | None:
        """What was found is not to be used: the one before it."""
        found = self._line.ask("skip", why=why, config=dict(config))["found"]
        return None if found is None else FoundCheckpoint(**found)

    def resumed(self) -> None:
        """It is used: commits follow it."""
        self._line.ask("resumed")

    def begin(
        self, step: int, state: Mapping[str, Any], *, count: int = 0, **label: Any
    ) -> memoryview | None:
        """Memory for a snapshot after `step` steps, to be filled; None when there is none now.
        `count`: which save of this name it is, the same for all ranks; 0: the next here."""
        self._saves = count or self._saves + 1
        folder = f"{self._below}/s{step:012d}-{self._name}{self._saves:x}"
        label |= {"folder": folder, "step": step, "state": dict(state)}
        answer = self._line.ask("begin", within_s=ANSWER_S, **label)
        self._slot = int(answer["slot"])
        return None if self._slot < 0 else self._memory.slot(self._slot)

    def filled(self, count: int) -> None:
        """The first `count` bytes of that memory are final."""
        self._memory.set_filled(self._slot, count)

    def save(
        self,
        step: int,
        fill: Callable[[memoryview, Callable[[int], None]], None],
        state: Mapping[str, Any],
        **label: Any,
    ) -> bool:
        """A snapshot; False when there is no memory for it now. `fill(memory, filled)` copies, and
        may say how far it is: what is filled is on its way while the rest is copied."""
        memory = self.begin(step, state, **label)
        if memory is None:
            return False
        self.stage(memory, fill)
        return True

    def stage(
        self, memory: memoryview, fill: Callable[[memoryview, Callable[[int], None]], None]
    ) -> None:
        """Fill what `begin` gave. Asks nobody anything, so that any thread may."""
        began_s = time.perf_counter()
        fill(memory, self.filled)
        took_s = time.perf_counter() - began_s
        self._memory.set_staged_us(self._slot, round(took_s * 1e6))
        self.filled(self._memory.size)

    @property
    def fenced(self) -> bool:
        """Another writer owns HEAD: to be looked at after every step, it costs nothing."""
        return self._arena is not None and self._arena.fenced

    @property
    def told(self) -> SaveProgress:
        """How saving goes; costs nothing either."""
        return SaveProgress() if self._arena is None else self._arena.told

    def drain(self, timeout_s: float, *, alone: bool = False) -> bool:
        """Wait until all is committed; False when time ran out. With `alone` a snapshot that waits
        behind another one is given up. Raises FencedError."""
        asked = {"timeout_s": timeout_s, "alone": alone}
        return bool(self._line.ask("drain", within_s=timeout_s + ANSWER_S, **asked)["drained"])

    def release(self) -> Mapping[str, Any]:
        """Give HEAD away, without what is still under way; its step and manifest."""
        return self._line.ask("release")

    def close(self) -> None:
        """Hang up. What is staged is saved all the same."""
        self._let_go()
        self._line.close()

    def _let_go(self) -> None:
        unpin, self._unpin = self._unpin, _do_nothing
        unpin()

    @property
    def _memory(self) -> SharedMemory:
        if self._arena is None:
            raise SaverError("ValueError", "open() comes first")
        return self._arena


def _do_nothing() -> None:
    """Nothing is pinned."""
