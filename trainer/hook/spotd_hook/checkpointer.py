"""Saving without stopping training, and resuming from what was really committed: rank 0's side of
the saver, which does the work (trainer.saver).

A save that fails is reported and never ends training, nor does a saver that dies: another one is
started, and told where we are.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .async_copy import AsyncCopy
from .constants import CHECKPOINT_FAILED
from .engine import Engine, FoundCheckpoint, Pin
from .memory_check import check_fits, pieces_of
from .rates import Rates
from .saver_client import CorruptError, FencedError, SaverClient, SaverError
from .shared_memory import SaveProgress

REVIVE_S = 60.0  # for another saver to have HEAD; the next save tries again
CLAIM_S = 0.2  # how long the saver looks at HEAD for us before we look whether we are to stop
Stage = Callable[[memoryview, Callable[[int], None]], None]


@dataclass(frozen=True)
class RankGroup:
    """Which rank of how many saves here, and all `ranks` of its machine that do. Where several
    save, `name` is the same for all of them, and another one for each start of the program. `pin`
    is given this one's memory."""

    rank: int = 0
    ranks: tuple[int, ...] = (0,)
    world_size: int = 1
    name: str = ""
    pin: Pin | None = None


class Checkpointer:
    """Saves and restores one job's state of `size` bytes, laid out as `pieces` say; without them,
    as `lay_out` says later, and any state is restored.

    `dial()` gives a line to a saver, again when that one has died. `report(kind, data)` takes
    journal entries and must not block; what the saver does it reports itself.
    """

    def __init__(
        self,
        dial: Callable[[], SaverClient],
        *,
        job_id: str,
        generation: int,
        pieces: Sequence[Mapping[str, Any]] = (),
        size: int = 0,
        report: Callable[[str, Mapping[str, Any]], None],
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(6),
        seat: RankGroup = RankGroup(),
    ) -> None:
        self._dial, self._report, self._make_nonce = dial, report, make_nonce
        self._seat, self._count = seat, 0
        self._job_id, self._generation = job_id, generation
        self._pieces, self._size = [dict(piece) for piece in pieces], size
        self._fixed, self._stale = size > 0, size > 0  # stale: no memory of this layout yet
        self._engine: Engine | None = None
        self._config: Mapping[str, Any] = {}
        self._step = 0
        self._rates, self._noted = Rates(), 0
        self._staging_at = self._staged_at = 0.0  # monotonic, of the newest save
        self._beside, self._stall_s = AsyncCopy(), 0.0
        self._fenced: FencedError | None = None
        self.claimed = False
        self.sources: Mapping[str, int] = {}  # of what was restored: bytes by where they were

    def lay_out(self, pieces: Sequence[Mapping[str, Any]], size: int) -> None:
        """What is saved from now on looks like this."""
        found = [dict(piece) for piece in pieces]
        if (found, size) != (self._pieces, self._size):
            self._pieces, self._size, self._stale = found, size, True

    def open(self) -> None:
        """Have memory for snapshots, where it is known how they look. Raises SaverError,
        OSError."""
        if self._engine is None:
            line = self._dial()
            try:
                line.check()
            except OSError:
                line.close()
                raise
            self._engine = Engine(
                line,
                job=self._job_id,
                generation=self._generation,
                name=self._seat.name or self._make_nonce(),
                rank=self._seat.rank,
                ranks=self._seat.ranks,
                world_size=self._seat.world_size,
                pin=self._seat.pin,
            )
            self._noted, self._stale = 0, self._size > 0
        if self._stale:
            try:
                self._engine.open(self._pieces, self._size)
            except BaseException:
                self.close()
                self._engine = None
                raise
            self._stale = False

    def claim(self, claim: str, left_s: float) -> Mapping[str, Any] | None:
        """Take HEAD; None when it may not be had yet: ask again. `final` in the answer: the job is
        finished. Raises FencedError, AwayError and other SaverErrors."""
        self.open()
        answer = self._opened.claim(claim, left_s, CLAIM_S)
        self.claimed = answer is not None
        return answer

    def restore(
        self, config: Mapping[str, Any], load: Callable[[memoryview], None], back: int = 0
    ) -> FoundCheckpoint | None:
        """Load the newest checkpoint that can be used, or one `back` further; None when there is
        none at all. Damaged ones are passed over. Raises AwayError while the store is, which is no
        reason to go back in time, and SaverError where nothing fits or can be read."""
        found = self.find(config, back)
        while found is not None:
            self._fit(found)
            try:
                memory = self.fetch([(0, 0, self._size)])
            except CorruptError as error:
                found = self.skip(str(error))
                continue
            load(memory)
            self.use()
            return found
        return None

    def find(self, config: Mapping[str, Any], back: int = 0) -> FoundCheckpoint | None:
        """The checkpoint that `restore` would load; `fetch` and then `use` it, or `skip` it."""
        self.fence()
        self._config = config
        return self._opened.resume(config, back=back)

    def find_same(self, ref: Mapping[str, Any]) -> FoundCheckpoint:
        """What the first rank has found, on another one."""
        self.fence()
        found = self._opened.resume({}, ref=ref)
        assert found is not None  # noqa: S101 - its manifest was read, or an error raised
        return found

    def fetch(self, ranges: Sequence[tuple[int, int, int]]) -> memoryview:
        """As `Engine.fetch`; `sources` says where the bytes were."""
        memory, self.sources = self._opened.fetch(ranges)
        return memory

    def skip(self, why: str) -> FoundCheckpoint | None:
        """What was found is not to be used: the one before it."""
        return self._opened.skip(why, self._config)

    def use(self) -> None:
        """What was found is used: commits follow it."""
        self._opened.resumed()

    def save(
        self,
        step: int,
        stage: Stage,
        state: Mapping[str, Any],
        *,
        trigger: str,
        released: bool = False,
        final: bool = False,
        beside: bool = False,
    ) -> None:
        """Snapshot now, commit in the background. Blocks for the copy only; with `beside` not even
        for that: nothing of what is copied may change before `fence`.

        `released`: with this save HEAD is given away, nothing may be saved after it.
        """
        self.fence()
        self._step, self._staging_at, self._staged_at = step, time.monotonic(), math.inf
        label = {"trigger": trigger, "released": released, "final": final}
        self._count += 1
        count = self._count if self._seat.name else 0

        def begin() -> bool:
            engine = self._opened
            memory = engine.begin(step, state, count=count, **label)
            if memory is None:
                return False

            def copy() -> None:
                engine.stage(memory, stage)
                self._staged_at = time.monotonic()

            if beside:
                self._beside.begin(copy)
                return True
            try:
                copy()
            except Exception as error:  # noqa: BLE001 - as in `fence`
                self._drop(error)
            return True

        try:
            try:
                self._reopen()
                taken = begin()
            except OSError as error:
                self._revive(error)
                taken = begin()
            if taken:
                return
            self._say("all memory for snapshots is being saved")
        except FencedError as error:
            self._fenced = error
        except (SaverError, OSError) as error:
            self._say(str(error))
        finally:
            self._stall_s = time.monotonic() - self._staging_at
        self._staged_at = time.monotonic()

    def fence(self) -> float:
        """Wait until what is being copied may change; the seconds that this took."""
        began = time.monotonic()
        try:
            self._beside.wait()
        except Exception as error:  # noqa: BLE001 - no save that fails may end training
            self._drop(error)
        waited_s = time.monotonic() - began
        self._stall_s += waited_s
        return waited_s

    def drain(
        self,
        timeout_s: float,
        again: Callable[[], object] = lambda: None,
        *,
        alone: bool = False,
    ) -> bool:
        """Wait until all is committed; False when it was not. What a saver that dies had not is
        lost with it: `again` saves once more. With `alone` what waits behind one is given up."""
        until = time.monotonic() + timeout_s
        self.fence()
        while self._fenced is None:
            drained = self._drained(until, alone=alone)
            if drained is not None:
                return drained
            again()
        return False

    def release(self) -> Mapping[str, Any]:
        """Give HEAD away, without what is still under way; its step and manifest. Raises
        FencedError, SaverError, OSError."""
        self.fence()
        if self._fenced is not None:
            raise self._fenced
        try:
            return self._opened.release()
        except OSError as error:
            self._revive(error)
            return self._opened.release()

    @property
    def fenced(self) -> FencedError | None:
        """That another writer owns HEAD. Costs nothing to look at."""
        if self._fenced is None and self._engine is not None and self._engine.fenced:
            self.drain(0.0)  # raises it, with its words
        return self._fenced

    @property
    def size(self) -> int:
        """Bytes of a snapshot."""
        return self._size

    @property
    def pieces(self) -> Sequence[Mapping[str, Any]]:
        """How one is laid out."""
        return self._pieces

    @property
    def committed(self) -> int:
        """The step of the newest save that the saver has committed; -1 before the first."""
        return self._told.committed

    @property
    def puts(self) -> int:
        """Writes of the newest save."""
        return self._told.puts

    @property
    def rates(self) -> Rates:
        """As the saver has measured them, up to now: to be asked after each step or so."""
        told = self._told
        if told.saves and told.saves != self._noted:
            self._noted = told.saves
            stage_s, upload_s = told.stage_us / 1e6, told.write_us / 1e6
            self._rates.note(self._size, stage_s, upload_s, min(self._stall_s, stage_s))
        return self._rates

    def save_s(self) -> float:
        """What a save begun now is expected to take."""
        return self.rates.save_s(self._size)

    def flight_s(self) -> float | None:
        """What is left of the save under way, or of one that waits for its turn; None when there is
        none. One that waits behind another gives way to any newer one."""
        told = self._told
        if not told.pending:
            return None
        if not told.since_us:
            return self.rates.upload_s(self._size)
        since = told.since_us / 1e6
        if since > self._staging_at:  # it went out behind the copy, and is told from its end on
            since = max(since, self._staged_at)
        done = self._size * told.done_ppm // 1_000_000
        return self.rates.left_s(self._size, max(time.monotonic() - since, 0.0), done)

    def close(self) -> None:
        """Hang up; what is staged is saved all the same."""
        self.fence()
        if self._engine is not None:
            self._engine.close()

    @property
    def _told(self) -> SaveProgress:
        return SaveProgress() if self._engine is None else self._engine.told

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ConnectionResetError("there is no saver")
        return self._engine

    def _drop(self, error: Exception) -> None:
        """What was not wholly copied is not saved. The saver knows it when we hang up."""
        self._say(f"the copy of the snapshot failed: {type(error).__name__}: {error}")
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _drained(self, until: float, *, alone: bool) -> bool | None:
        """None when the saver died meanwhile; another one is there then, if one could be had."""
        try:
            return self._opened.drain(max(0.0, until - time.monotonic()), alone=alone)
        except FencedError as error:
            self._fenced = error
            return False
        except OSError as error:
            try:
                self._revive(error)
            except (SaverError, OSError) as second:
                self._say(str(second))
                return False
            return None

    def _revive(self, error: OSError) -> None:
        """Another saver takes over: it claims HEAD for us, who own it, and commits behind what the
        one before had committed. Raises SaverError, OSError."""
        self._say(f"the saver is gone ({error}): another one is started")
        self.close()
        self._engine = None
        self._reopen()

    def _reopen(self) -> None:
        """As `open`; a saver that is another than before owns HEAD for us first."""
        lost = self._engine is None and self.claimed
        self.open()
        if not lost:
            return
        try:
            self._reclaim()
        except BaseException:  # it is none that could commit: the next save begins here again
            self.close()
            self._engine, self.claimed = None, True
            raise

    def _reclaim(self) -> None:
        until = time.monotonic() + REVIVE_S
        while self.claim("now", 0.0) is None:
            if time.monotonic() >= until:
                raise SaverError("TimeoutError", f"HEAD cannot be had within {REVIVE_S:g} s")
        if self._opened.resume(self._config, most_step=self._step) is not None:
            self._opened.resumed()

    def _fit(self, found: FoundCheckpoint) -> None:
        """Have memory for it. Raises SaverError unless it has our layout, where that is fixed."""
        if not self._fixed:
            self.lay_out(pieces_of(found), found.sizes[0])
            self.open()
            return
        check_fits(found, self._pieces, self._size)

    def _say(self, text: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": self._step, "error": text})
