"""Copies of a checkpoint on this machine, nearer than the bucket: what slots of memory still hold,
and what the local disk has. What they give is verified like anything else."""

from __future__ import annotations

from collections.abc import Mapping

from spotd.wire import Manifest
from trainer.hook.spotd_hook.shared_memory import SharedMemory
from trainer.saver.disk import LocalTier, name_of


def folder_of(manifest: Manifest) -> str:
    """Where the bucket has its shards; "" for a manifest of none."""
    return next((shard.key.rpartition("/")[0] for shard in manifest.shards), "")


class MemoryCopy:
    """`slots`: by rank, the memory and the slot that hold the checkpoint."""

    name = "memory"

    def __init__(self, slots: Mapping[int, tuple[SharedMemory, int]]) -> None:
        self._slots = slots

    def read(self, stream: int, start: int, into: memoryview) -> bool:
        """Fill `into` with those bytes of a rank's stream, if they are here."""
        if stream not in self._slots:
            return False
        arena, slot = self._slots[stream]
        if start + len(into) > arena.size:
            return False
        into[:] = arena.slot(slot)[start : start + len(into)]
        return True


class DiskCopy:
    """What the local tier has of the checkpoint below `folder`."""

    name = "disk"

    def __init__(self, tier: LocalTier, folder: str) -> None:
        self._tier, self._folder = tier, folder

    def read(self, stream: int, start: int, into: memoryview) -> bool:
        """As of `Memory`."""
        return self._tier.read(name_of(self._folder, stream), start, into)
