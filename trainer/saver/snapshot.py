"""What a saver works on: ranks and their memory, and the snapshots that they stage in it."""

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
    """One rank of this machine: its memory, and what it puts there."""

    arena: SharedMemory
    fd: int
    pieces: tuple[TensorPiece, ...]
    held: dict[int, str] = field(default_factory=dict)  # slot -> folder of what it wholly has


@dataclass
class Snapshot:
    """What the ranks of this machine stage together; `slots` by rank."""

    label: SnapshotLabel
    slots: dict[int, int] = field(default_factory=dict)
    outgoing: dict[int, RankUpload] = field(default_factory=dict)
    abandoned: bool = False
    failures: int = 0
    local_s: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nobody reads its memory any more."""
        return all(outgoing.ended() for outgoing in self.outgoing.values())

    def put(self, pool: Executor, at_once: int, store: ObjectStore, url: str) -> None:
        """What this machine has of it; see Outgoing.put."""
        for outgoing in self.outgoing.values():
            outgoing.put(store, pool, at_once, url)


@dataclass(frozen=True)
class SaverRole:
    """What this saver is for: the machine's ranks of a generation, and whether it is the one that
    commits (it has the first rank)."""

    store: ObjectStore
    job_id: str
    generation: int
    world_size: int
    ranks: tuple[int, ...]
    keep: int
    fence: Fence | None = None
    local: LocalTier | None = None
    keep_every_steps: int = 0


def said_of(
    snapshot: Snapshot, head: Head, manifest: Manifest, stage_s: float, write_s: float
) -> Mapping[str, Any]:
    """What the journal has of a commit."""
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
