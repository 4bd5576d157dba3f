"""Save and restore a job's state through the saver process, without stopping training.

A failed save is reported and never ends training. If the saver dies, another one is started, which
claims HEAD again for this process.

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

RECLAIM_S = 60.0  # for a new saver to claim HEAD; the next save tries again
CLAIM_WAIT_S = 0.2  # the saver's wait for HEAD between our checks for a stop
Stage = Callable[[memoryview, Callable[[int], None]], None]


@dataclass(frozen=True)
class RankGroup:
    """The rank that saves here, and the `ranks` on its machine that save.

    If several ranks save, `name` is the same for all of them and differs between starts of the
    program. `pin` is called with this rank's memory.
    """

    rank: int = 0
    ranks: tuple[int, ...] = (0,)
    world_size: int = 1
    name: str = ""
    pin: Pin | None = None


class Checkpointer:
    """Saves and restores a state of `size` bytes laid out as `pieces`.

    Without `pieces`, the layout is set by `lay_out`, and a checkpoint of any layout can be
    restored. `connect()` opens a connection to a saver, again after that one died. `report(kind,
    data)` takes journal entries and must not block; the saver reports its own work itself.
    """

    def __init__(
        self,
        connect: Callable[[], SaverClient],
        *,
        job_id: str,
        generation: int,
        pieces: Sequence[Mapping[str, Any]] = (),
        size: int = 0,
        report: Callable[[str, Mapping[str, Any]], None],
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(6),
        group: RankGroup = RankGroup(),
    ) -> None:
        self._connect, self._report, self._make_nonce = connect, report, make_nonce
        self._group, self._count = group, 0
        self._job_id, self._generation = job_id, generation
        self._pieces, self._size = [dict(piece) for piece in pieces], size
        self._layout_is_fixed = size > 0
        self._layout_changed = size > 0  # there is no memory for this layout yet
        self._engine: Engine | None = None
        self._config: Mapping[str, Any] | None = {}
        self._found: FoundCheckpoint | None = None  # what `fetch` reads
        self._step = 0
        self._rates, self._noted_saves = Rates(), 0
        self._staging_at_s = self._staged_at_s = 0.0  # monotonic, of the newest save
        self._async_copy, self._stall_s = AsyncCopy(), 0.0
        self._fenced: FencedError | None = None
        self.claimed = False
        self.sources: Mapping[str, int] = {}  # of the restored checkpoint: source -> bytes

    def lay_out(self, pieces: Sequence[Mapping[str, Any]], size: int) -> None:
        """Set the layout of further snapshots."""
        new_pieces = [dict(piece) for piece in pieces]
        if (new_pieces, size) != (self._pieces, self._size):
            self._pieces, self._size, self._layout_changed = new_pieces, size, True

    def open(self) -> None:
        """Connect, and map memory if the layout is known. Raises SaverError, OSError."""
        if self._engine is None:
            client = self._connect()
            try:
                client.check()
            except OSError:
                client.close()
                raise
            self._engine = Engine(
                client,
                job=self._job_id,
                generation=self._generation,
                name=self._group.name or self._make_nonce(),
                rank=self._group.rank,
                ranks=self._group.ranks,
                world_size=self._group.world_size,
                pin=self._group.pin,
            )
            self._noted_saves, self._layout_changed = 0, self._size > 0
        if self._layout_changed:
            try:
                self._engine.open(self._pieces, self._size)
            except BaseException:
                self.close()
                self._engine = None
                raise
            self._layout_changed = False

    def claim(self, claim: str, remaining_s: float) -> Mapping[str, Any] | None:
        """Claim HEAD; None if it cannot be claimed yet: call again.

        `final` in the reply means that the job is finished. Raises FencedError, StoreAwayError and
        other SaverErrors.
        """
        self.open()
        reply = self._open_engine.claim(claim, remaining_s, CLAIM_WAIT_S)
        self.claimed = reply is not None
        return reply

    def restore(
        self, config: Mapping[str, Any], load: Callable[[memoryview], None], back: int = 0
    ) -> FoundCheckpoint | None:
        """Load the newest usable checkpoint, or one `back` further; None if the job has none.

        Damaged checkpoints are skipped. Raises StoreAwayError while the store does not answer (no
        reason to use an older checkpoint), and SaverError if no checkpoint fits or can be read.
        """
        checkpoint = self.find_checkpoint(config, back)
        while checkpoint is not None:
            try:
                memory = self.fetch_all(checkpoint)
            except CorruptError as error:
                checkpoint = self.skip(str(error))
                continue
            load(memory)
            self.confirm_resume()
            return checkpoint
        return None

    def find_checkpoint(
        self, config: Mapping[str, Any] | None, back: int = 0
    ) -> FoundCheckpoint | None:
        """Return the checkpoint that `restore` would load, whatever its configuration if None.

        Then `fetch` and `confirm_resume` it, or `skip` it.
        """
        self.wait_for_copy()
        self._config = config
        self._found = self._open_engine.resume(config, back=back)
        return self._found

    def fetch_all(self, checkpoint: FoundCheckpoint) -> memoryview:
        """Return the bytes of a checkpoint that one rank saved. Raises CorruptError for damage."""
        if checkpoint is not self._found:
            self.find_by_ref(checkpoint.ref)
        self._prepare_memory(checkpoint)
        return self.fetch([(0, 0, self._size)])

    def find_by_ref(self, ref: Mapping[str, Any]) -> FoundCheckpoint:
        """Return the checkpoint of a reference: rank 0's for other ranks, or an earlier one."""
        self.wait_for_copy()
        self._found = self._open_engine.resume({}, ref=ref)
        assert self._found is not None  # noqa: S101 - else an error is raised
        return self._found

    def fetch(self, ranges: Sequence[tuple[int, int, int]]) -> memoryview:
        """See Engine.fetch; `sources` tells where the bytes came from."""
        memory, self.sources = self._open_engine.fetch(ranges)
        return memory

    def skip(self, why: str) -> FoundCheckpoint | None:
        """Skip the found checkpoint and return the one before it."""
        self._found = self._open_engine.skip(why, self._config)
        return self._found

    def confirm_resume(self) -> None:
        """Confirm that the found checkpoint is used: commits follow it."""
        self._open_engine.confirm_resume()

    def save(
        self,
        step: int,
        stage: Stage,
        state: Mapping[str, Any],
        *,
        trigger: str,
        released: bool = False,
        final: bool = False,
        background: bool = False,
    ) -> None:
        """Take a snapshot; it is committed in the background.

        Blocks for the copy only, and with `background` not even for that; then nothing that is
        copied may change before `wait_for_copy`. `released`: this save also releases HEAD, and
        nothing may be saved after it.
        """
        self.wait_for_copy()
        self._step, self._staging_at_s, self._staged_at_s = step, time.monotonic(), math.inf
        label = {"trigger": trigger, "released": released, "final": final}
        self._count += 1
        count = self._count if self._group.name else 0

        def begin() -> bool:
            engine = self._open_engine
            memory = engine.begin(step, state, count=count, **label)
            if memory is None:
                return False

            def copy() -> None:
                engine.stage(memory, stage)
                self._staged_at_s = time.monotonic()

            if background:
                self._async_copy.begin(copy)
                return True
            try:
                copy()
            except Exception as error:  # noqa: BLE001 - no failure of a save may end training
                self._abandon_copy(error)
            return True

        try:
            try:
                self._open_and_reclaim()
                begun = begin()
            except OSError as error:
                self._replace_saver(error)
                begun = begin()
            if begun:
                return
            self._report_failure("no memory is free: earlier snapshots are still being saved")
        except FencedError as error:
            self._fenced = error
        except (SaverError, OSError) as error:
            self._report_failure(str(error))
        finally:
            self._stall_s = time.monotonic() - self._staging_at_s
        self._staged_at_s = time.monotonic()

    def wait_for_copy(self) -> float:
        """Wait until the copied state may change; return the seconds waited."""
        began_s = time.monotonic()
        try:
            self._async_copy.wait()
        except Exception as error:  # noqa: BLE001 - no failure of a save may end training
            self._abandon_copy(error)
        waited_s = time.monotonic() - began_s
        self._stall_s += waited_s
        return waited_s

    def drain(
        self,
        timeout_s: float,
        save_again: Callable[[], object] = lambda: None,
        *,
        drop_waiting: bool = False,
    ) -> bool:
        """Wait until everything is committed; False if it was not.

        If the saver dies, its uncommitted snapshots are lost: `save_again` saves once more. With
        `drop_waiting`, a snapshot that waits behind another one is abandoned.
        """
        until_s = time.monotonic() + timeout_s
        self.wait_for_copy()
        while self._fenced is None:
            drained = self._try_drain(until_s, drop_waiting=drop_waiting)
            if drained is not None:
                return drained
            save_again()
        return False

    def release(self) -> Mapping[str, Any]:
        """Release HEAD and abandon what is uncommitted; return HEAD's step and manifest.

        Raises FencedError, SaverError, OSError.
        """
        self.wait_for_copy()
        if self._fenced is not None:
            raise self._fenced
        try:
            return self._open_engine.release()
        except OSError as error:
            self._replace_saver(error)
            return self._open_engine.release()

    def finish_job(self) -> bool:
        """Record that the job is done, if its last training has ended; return whether it is.

        Nothing can be saved afterwards. Raises FencedError, SaverError, OSError.
        """
        return self._open_engine.finish_job()

    @property
    def fenced(self) -> FencedError | None:
        """The error that another generation owns HEAD, or None. Cheap."""
        if self._fenced is None and self._engine is not None and self._engine.fenced:
            self.drain(0.0)  # stores the saver's error
        return self._fenced

    @property
    def size(self) -> int:
        """Bytes of a snapshot."""
        return self._size

    @property
    def pieces(self) -> Sequence[Mapping[str, Any]]:
        """Layout of a snapshot."""
        return self._pieces

    @property
    def newest_ref(self) -> Mapping[str, Any] | None:
        """How HEAD names its checkpoint, as of the last complete `drain`; for rank 0."""
        return None if self._engine is None else self._engine.newest_ref

    @property
    def committed(self) -> int:
        """Step of the newest committed save; -1 before the first."""
        return self._progress.committed

    @property
    def puts(self) -> int:
        """Number of writes of the newest save."""
        return self._progress.puts

    @property
    def rates(self) -> Rates:
        """Speeds measured by the saver. Read it about once per step, so that no save is missed."""
        progress = self._progress
        if progress.saves and progress.saves != self._noted_saves:
            self._noted_saves = progress.saves
            stage_s, upload_s = progress.stage_us / 1e6, progress.write_us / 1e6
            self._rates.add(self._size, stage_s, upload_s, min(self._stall_s, stage_s))
        return self._rates

    def save_s(self) -> float:
        """Return the expected seconds of a save begun now."""
        return self.rates.save_s(self._size)

    def in_flight_s(self) -> float | None:
        """Return the expected remaining seconds of the running or waiting save, or None.

        A waiting save is replaced by any newer one.
        """
        progress = self._progress
        if not progress.pending:
            return None
        if not progress.since_us:
            return self.rates.upload_s(self._size)
        since_s = progress.since_us / 1e6
        if since_s > self._staging_at_s:  # the upload overlapped the copy: count from its end
            since_s = max(since_s, self._staged_at_s)
        done = self._size * progress.done_ppm // 1_000_000
        return self.rates.remaining_s(self._size, max(time.monotonic() - since_s, 0.0), done)

    def close(self) -> None:
        """Disconnect. Staged snapshots are saved nevertheless."""
        self.wait_for_copy()
        if self._engine is not None:
            self._engine.close()

    @property
    def _progress(self) -> SaveProgress:
        return SaveProgress() if self._engine is None else self._engine.progress

    @property
    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ConnectionResetError("there is no saver")
        return self._engine

    def _abandon_copy(self, error: Exception) -> None:
        """Abandon a snapshot that was not copied completely, by disconnecting."""
        self._report_failure(f"the copy of the snapshot failed: {type(error).__name__}: {error}")
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _try_drain(self, until_s: float, *, drop_waiting: bool) -> bool | None:
        """Return None if the saver died meanwhile; another one is then running if possible."""
        try:
            return self._open_engine.drain(
                max(0.0, until_s - time.monotonic()), drop_waiting=drop_waiting
            )
        except FencedError as error:
            self._fenced = error
            return False
        except OSError as error:
            try:
                self._replace_saver(error)
            except (SaverError, OSError) as second:
                self._report_failure(str(second))
                return False
            return None

    def _replace_saver(self, error: OSError) -> None:
        """Start another saver, which claims HEAD for us and continues after the last commit.

        Raises SaverError, OSError.
        """
        self._report_failure(f"the saver is gone ({error}): another one is started")
        self.close()
        self._engine = None
        self._open_and_reclaim()

    def _open_and_reclaim(self) -> None:
        """Like `open`, but a new saver first claims HEAD for us."""
        saver_lost = self._engine is None and self.claimed
        self.open()
        if not saver_lost:
            return
        try:
            self._reclaim()
        except BaseException:  # this saver cannot commit: the next save reclaims
            self.close()
            self._engine, self.claimed = None, True
            raise

    def _reclaim(self) -> None:
        until_s = time.monotonic() + RECLAIM_S
        while self.claim("now", 0.0) is None:
            if time.monotonic() >= until_s:
                raise SaverError(
                    "TimeoutError", f"HEAD could not be claimed within {RECLAIM_S:g} s"
                )
        if self._open_engine.resume(self._config, max_step=self._step) is not None:
            self._open_engine.confirm_resume()

    def _prepare_memory(self, checkpoint: FoundCheckpoint) -> None:
        """Map memory for a checkpoint. Raises SaverError if the layout is fixed and differs."""
        if not self._layout_is_fixed:
            self.lay_out(pieces_of(checkpoint), checkpoint.sizes[0])
            self.open()
            return
        check_fits(checkpoint, self._pieces, self._size)

    def _report_failure(self, message: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": self._step, "error": message})
