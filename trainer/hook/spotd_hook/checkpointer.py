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
from typing import Any

from .arena import Told
from .beside import Beside
from .engine import Engine, Found
from .kinds import CHECKPOINT_FAILED
from .line import CorruptError, FencedError, Line, SaverError
from .rates import Rates

REVIVE_S = 60.0  # for another saver to have HEAD; the next save tries again
CLAIM_S = 0.2  # how long the saver looks at HEAD for us before we look whether we are to stop
Stage = Callable[[memoryview, Callable[[int], None]], None]


class Checkpointer:
    """Saves and restores one job's state of `size` bytes, laid out as `pieces` say; without them,
    as `lay_out` says later, and any state is restored.

    `dial()` gives a line to a saver, again when that one has died. `report(kind, data)` takes
    journal entries and must not block; what the saver does it reports itself.
    """

    def __init__(
        self,
        dial: Callable[[], Line],
        *,
        job_id: str,
        generation: int,
        pieces: Sequence[Mapping[str, Any]] = (),
        size: int = 0,
        report: Callable[[str, Mapping[str, Any]], None],
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._dial, self._report, self._make_nonce = dial, report, make_nonce
        self._job_id, self._generation = job_id, generation
        self._pieces, self._size = [dict(piece) for piece in pieces], size
        self._fixed, self._stale = size > 0, size > 0  # stale: no memory of this layout yet
        self._engine: Engine | None = None
        self._config: Mapping[str, Any] = {}
        self._step = 0
        self._rates, self._noted = Rates(), 0
        self._staging_at = self._staged_at = 0.0  # monotonic, of the newest save
        self._beside, self._stall_s = Beside(), 0.0
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
                name=self._make_nonce(),
                rank=0,
                ranks=[0],
                world_size=1,
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
    ) -> Found | None:
        """Load the newest checkpoint that can be used, or one `back` further; None when there is
        none at all. Damaged ones are passed over. Raises AwayError while the store is, which is no
        reason to go back in time, and SaverError where nothing fits or can be read."""
        self.fence()
        self._config = config
        engine = self._opened
        found = engine.resume(config, back=back)
        while found is not None:
            self._fit(found)
            try:
                memory, self.sources = engine.fetch([(0, 0, self._size)])
            except CorruptError as error:
                found = engine.skip(str(error), config)
                continue
            load(memory)
            engine.resumed()
            return found
        return None

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

        def begin() -> bool:
            engine = self._opened
            memory = engine.begin(step, state, **label)
            if memory is None:
                return False

            def copy() -> None:
                engine.stage(memory, stage)
                self._staged_at = time.monotonic()

            self._beside.begin(copy) if beside else copy()
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
        self._beside.wait()
        waited_s = time.monotonic() - began
        self._stall_s += waited_s
        return waited_s

    def drain(self, timeout_s: float, again: Callable[[], object] = lambda: None) -> bool:
        """Wait until everything is committed; False when it was not. What a saver that dies had not
        committed is lost with it: `again` saves once more."""
        until = time.monotonic() + timeout_s
        self.fence()
        while self._fenced is None:
            drained = self._drained(until)
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
    def _told(self) -> Told:
        return Told() if self._engine is None else self._engine.told

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ConnectionResetError("there is no saver")
        return self._engine

    def _drained(self, until: float) -> bool | None:
        """None when the saver died meanwhile; another one is there then, if one could be had."""
        try:
            return self._opened.drain(max(0.0, until - time.monotonic()))
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

    def _fit(self, found: Found) -> None:
        """Have memory for it. Raises SaverError unless it has our layout, where that is fixed."""
        if not self._fixed:
            self.lay_out(pieces_of(found), found.sizes[0])
            self.open()
            return
        theirs = {tensor["name"]: tensor for tensor in found.tensors}
        same = list(found.sizes) == [self._size] and len(theirs) == len(self._pieces)
        for piece in self._pieces if same else []:
            one = theirs.get(piece["name"], {"dtype": "", "blocks": []})
            block = {"stream": 0, "at": list(piece["at"]), "shape": list(piece["block"])}
            block["offset"] = piece["offset"]
            same &= one["dtype"] == piece["dtype"] and list(one["blocks"]) == [block]
        if not same:
            text = f"the checkpoint of step {found.step} holds other tensors than this model has"
            raise SaverError("MismatchError", text + _differences(self._pieces, theirs))

    def _say(self, text: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": self._step, "error": text})


def _differences(
    pieces: Sequence[Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]
) -> str:
    """The first of those that it has not, has otherwise, or has beside them."""
    ours = {piece["name"]: piece for piece in pieces}
    missing = [name for name in ours if name not in theirs]
    other = [
        f"{name} is {one['dtype']} {list(one['shape'])}"
        for name, one in theirs.items()
        if name in ours
        and (one["dtype"], list(one["shape"])) != (ours[name]["dtype"], list(ours[name]["shape"]))
    ]
    more = [name for name in theirs if name not in ours]
    found = {"missing": missing, "otherwise": other, "beside them": more}
    said = [f"{what}: {', '.join(names[:3])}" for what, names in found.items() if names]
    return f" ({'; '.join(said)})" if said else ", or has them in other places"


def pieces_of(found: Found) -> list[dict[str, Any]]:
    """Its layout, as one rank's. Raises SaverError where it has several streams."""
    if len(found.sizes) != 1:
        text = f"the checkpoint of step {found.step} was saved in {len(found.sizes)} streams"
        raise SaverError("MismatchError", f"{text}, by another program: start a new job")
    return [
        {"name": tensor["name"], "dtype": tensor["dtype"], "shape": list(tensor["shape"])}
        | {"at": list(block["at"]), "block": list(block["shape"]), "offset": block["offset"]}
        for tensor in found.tensors
        for block in tensor["blocks"]
    ]
