"""Save and resume through the saver, for one rank of a training program.

    engine = Engine(SaverClient(path), job="j1", generation=1, name="a", rank=0, ranks=[0],
                    world_size=1)
    engine.open(pieces, size)               # memory, once
    while (head := engine.claim()) is None: # rank 0; it waits until HEAD may be claimed
        ...
    found = engine.resume(config)           # the checkpoint to resume from, or None
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

from .saver_client import REPLY_TIMEOUT_S, SaverClient, SaverError
from .shared_memory import SaveProgress, SharedMemory

Pin = Callable[[memoryview], Callable[[], None]]  # returns a function that unpins


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from.

    `ref`: how HEAD names it. `state`: its JSON part. `tensors`: the position of each tensor.
    `sizes`: bytes of each stream.
    """

    ref: Mapping[str, Any]
    state: Mapping[str, Any]
    tensors: Sequence[Mapping[str, Any]]
    sizes: Sequence[int]

    @property
    def step(self) -> int:
        return int(self.ref["step"])


class Engine:
    """The saving engine of one rank.

    `name` is part of the store keys of snapshots: it must be the same for all ranks and differ
    between starts of the program. `pin` is called with the memory before the first copy into it.
    Methods raise SaverError, and OSError when the saver is gone.
    """

    def __init__(
        self,
        client: SaverClient,
        *,
        job: str,
        generation: int,
        name: str,
        rank: int,
        ranks: Sequence[int],
        world_size: int,
        pin: Pin | None = None,
    ) -> None:
        self._client = client
        self._prefix = f"jobs/{job}/g{generation:08d}"
        self._name = name
        self._rank, self._ranks, self._world_size = rank, list(ranks), world_size
        self._shared_memory: SharedMemory | None = None
        self._save_count = 0
        self._slot = -1
        self._pin, self._unpin = pin, _no_unpin
        self.newest_ref: Mapping[str, Any] | None = None  # in HEAD, as of the last `drain`

    def open(self, pieces: Sequence[Mapping[str, Any]], size: int, slots: int = 2) -> None:
        """Map memory for this rank's snapshots, laid out as `pieces`."""
        self._unpin_memory()
        self._shared_memory = self._client.join(
            self._rank, self._ranks, self._world_size, size, slots, pieces
        )
        if self._pin is not None:
            self._unpin = self._pin(self._shared_memory.slot_area)

    def claim(
        self, claim: str = "now", left_s: float = 0.0, wait_s: float = 1.0
    ) -> Mapping[str, Any] | None:
        """Claim HEAD; None if that was not possible within `wait_s`: call again.

        `claim` is "now", or "after_release" and at the latest in `left_s`. Snapshots that an
        earlier process staged are committed first. `final` in the reply means that the job is
        finished.
        """
        answer = self._client.request("claim", claim=claim, left_s=left_s, wait_s=wait_s)
        return None if answer["waiting"] else answer

    def resume(
        self,
        config: Mapping[str, Any] | None,
        *,
        back: int = 0,
        max_step: int | None = None,
        ref: Mapping[str, Any] | None = None,
    ) -> FoundCheckpoint | None:
        """Return the newest usable checkpoint in HEAD; None if the job never had one.

        `back` goes back that many checkpoints if there are so many; `max_step` leaves out later
        ones; with `config` None any configuration is accepted. Instead of these a `ref` can name
        the checkpoint: rank 0's for the other ranks, or that of an earlier training.
        """
        request: dict[str, Any] = {"config": _plain(config), "back": back, "most_step": max_step}
        if ref is not None:
            request = {"ref": dict(ref)}
        checkpoint = self._client.request("resume", **request)["found"]
        return None if checkpoint is None else FoundCheckpoint(**checkpoint)

    def fetch(self, ranges: Sequence[tuple[int, int, int]]) -> tuple[memoryview, Mapping[str, int]]:
        """Read (stream, start, size) ranges one after the other, verified.

        Returns the bytes and how many came from each source. Raises CorruptError for damage.
        """
        answer = self._client.request("fetch", ranges=[list(one) for one in ranges])
        return self._memory.slot(int(answer["slot"])), answer["from"]

    def skip(self, why: str, config: Mapping[str, Any] | None) -> FoundCheckpoint | None:
        """Skip the found checkpoint and return the one before it."""
        checkpoint = self._client.request("skip", why=why, config=_plain(config))["found"]
        return None if checkpoint is None else FoundCheckpoint(**checkpoint)

    def confirm_resume(self) -> None:
        """Confirm that the found checkpoint is used: commits follow it."""
        self._client.request("resumed")

    def begin(
        self, step: int, state: Mapping[str, Any], *, count: int = 0, **label: Any
    ) -> memoryview | None:
        """Return memory to fill with a snapshot after `step` steps; None if there is none now.

        `count` is the number of the save under this name, the same for all ranks; 0: count here.
        """
        self._save_count = count or self._save_count + 1
        folder = f"{self._prefix}/s{step:012d}-{self._name}{self._save_count:x}"
        label |= {"folder": folder, "step": step, "state": dict(state)}
        answer = self._client.request("begin", within_s=REPLY_TIMEOUT_S, **label)
        self._slot = int(answer["slot"])
        return None if self._slot < 0 else self._memory.slot(self._slot)

    def set_filled(self, count: int) -> None:
        """The first `count` bytes of that memory are final."""
        self._memory.set_filled(self._slot, count)

    def save(
        self,
        step: int,
        fill: Callable[[memoryview, Callable[[int], None]], None],
        state: Mapping[str, Any],
        **label: Any,
    ) -> bool:
        """Take a snapshot; False if there is no memory for it now.

        `fill(memory, filled)` copies and may report its progress, so that the upload overlaps the
        copy.
        """
        memory = self.begin(step, state, **label)
        if memory is None:
            return False
        self.stage(memory, fill)
        return True

    def stage(
        self, memory: memoryview, fill: Callable[[memoryview, Callable[[int], None]], None]
    ) -> None:
        """Fill the memory that `begin` returned. Makes no request, so any thread may call it."""
        began_s = time.perf_counter()
        fill(memory, self.set_filled)
        took_s = time.perf_counter() - began_s
        self._memory.set_staged_us(self._slot, round(took_s * 1e6))
        self.set_filled(self._memory.size)

    @property
    def fenced(self) -> bool:
        """Whether another generation owns HEAD. Cheap enough to check after every step."""
        return self._shared_memory is not None and self._shared_memory.fenced

    @property
    def progress(self) -> SaveProgress:
        """The progress of saving. Cheap."""
        return SaveProgress() if self._shared_memory is None else self._shared_memory.progress

    def drain(self, timeout_s: float, *, drop_waiting: bool = False) -> bool:
        """Wait until everything is committed; False if time ran out. Raises FencedError.

        With `drop_waiting`, a snapshot that waits behind another one is abandoned.
        """
        request = {"timeout_s": timeout_s, "alone": drop_waiting}
        reply = self._client.request("drain", within_s=timeout_s + REPLY_TIMEOUT_S, **request)
        self.newest_ref = reply.get("ref")
        return bool(reply["drained"])

    def release(self) -> Mapping[str, Any]:
        """Release HEAD and abandon what is uncommitted; return HEAD's step and manifest."""
        return self._client.request("release")

    def finish_job(self) -> bool:
        """Record that the job is done, if its last training has ended; return whether it is."""
        return bool(self._client.request("finish")["finished"])

    def close(self) -> None:
        """Disconnect. Staged snapshots are saved nevertheless."""
        self._unpin_memory()
        self._client.close()

    def _unpin_memory(self) -> None:
        unpin, self._unpin = self._unpin, _no_unpin
        unpin()

    @property
    def _memory(self) -> SharedMemory:
        if self._shared_memory is None:
            raise SaverError("ValueError", "open() comes first")
        return self._shared_memory


def _plain(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if config is None else dict(config)


def _no_unpin() -> None:
    """Nothing is pinned."""
