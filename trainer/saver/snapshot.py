"""The data of the save worker: ranks with their memory, and the snapshots that they stage."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from providers.stores.base import ObjectStore
from spotd.wire import Head, Manifest
from trainer.fence import Fence
from trainer.hook.spotd_hook.shared_memory import SharedMemory
from trainer.saver.disk import LocalTier
from trainer.saver.parts import TensorPiece
from trainer.saver.rank_upload import RankUpload, SnapshotLabel


@dataclass
class Rank:
    """One rank of this machine: its memory and the layout of its snapshots."""

    memory: SharedMemory
    fd: int
    pieces: tuple[TensorPiece, ...]
    held: dict[int, str] = field(default_factory=dict)  # slot -> folder of its complete snapshot


@dataclass
class Snapshot:
    """A snapshot staged by the ranks of this machine. `slots`: rank -> slot."""

    label: SnapshotLabel
    slots: dict[int, int] = field(default_factory=dict)
    uploads: dict[int, RankUpload] = field(default_factory=dict)
    abandoned: bool = False
    failures: int = 0
    local_s: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nothing reads its memory any more."""
        return all(uploads.ended() for uploads in self.uploads.values())

    def put(self, pool: Executor, concurrency: int, store: ObjectStore, url: str) -> None:
        """Upload this machine's share; see RankUpload.put."""
        for uploads in self.uploads.values():
            uploads.put(store, pool, concurrency, url)


@dataclass(frozen=True)
class SaverRole:
    """The part of a job that a saver saves: this machine's ranks of one generation.

    With a `fence` the saver commits; it is the one that has rank 0.
    """

    store: ObjectStore
    job_id: str
    generation: int
    world_size: int
    ranks: tuple[int, ...]
    keep: int
    fence: Fence | None = None
    local: LocalTier | None = None
    keep_every_steps: int = 0


def commit_entry(
    snapshot: Snapshot, head: Head, manifest: Manifest, stage_s: float, write_s: float
) -> Mapping[str, Any]:
    """Return the journal entry of a commit."""
    label, ref = snapshot.label, head.current
    assert ref is not None  # noqa: S101 - it was just committed
    return {
        "step": label.step,
        "manifest": ref.manifest,
        "digest": ref.digest,
        "bytes": manifest.size,
        "near_bytes": manifest.near_size,
        "stage_s": round(stage_s, 6),
        "write_s": round(write_s, 6),
        "local_s": round(snapshot.local_s, 6),
        "trigger": label.trigger,
        "released": head.released,
        "final": head.final,
    }


def finish_entry(head: Head, manifest: Manifest) -> Mapping[str, Any]:
    """Return the journal entry of the job's end with a checkpoint that was saved before."""
    ref = head.current
    assert ref is not None  # noqa: S101 - the job has ended with it
    return {
        "step": ref.step,
        "manifest": ref.manifest,
        "digest": ref.digest,
        "bytes": manifest.size,
        "new_bytes": 0,
        "near_bytes": manifest.near_size,
        "stage_s": 0.0,
        "write_s": 0.0,
        "local_s": 0.0,
        "trigger": "final",
        "released": head.released,
        "final": head.final,
    }
