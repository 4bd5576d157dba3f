"""Copies of a checkpoint on this machine: in memory slots and on the local disk.

Their bytes are verified like any others.
"""

from __future__ import annotations

from collections.abc import Mapping

from spotd.wire import Manifest
from trainer.hook.spotd_hook.shared_memory import SharedMemory
from trainer.saver.disk import LocalTier, name_of


def folder_of(manifest: Manifest) -> str:
    """Return the store folder of a manifest's shards; "" for a manifest without shards."""
    return next((shard.key.rpartition("/")[0] for shard in manifest.shards), "")


class MemoryCopy:
    """A checkpoint in memory. `slots`: rank -> (memory, slot number)."""

    name = "memory"

    def __init__(self, slots: Mapping[int, tuple[SharedMemory, int]]) -> None:
        self._slots = slots

    def read(self, stream: int, start: int, into: memoryview) -> bool:
        """Fill `into` with those bytes of a rank's stream, if they are here."""
        if stream not in self._slots:
            return False
        memory, slot = self._slots[stream]
        if start + len(into) > memory.size:
            return False
        into[:] = memory.slot(slot)[start : start + len(into)]
        return True


class DiskCopy:
    """The local tier's copy of the checkpoint at the store folder `folder`."""

    name = "disk"

    def __init__(self, tier: LocalTier, folder: str) -> None:
        self._tier, self._folder = tier, folder

    def read(self, stream: int, start: int, into: memoryview) -> bool:
        """See LocalCopy.read."""
        return self._tier.read(name_of(self._folder, stream), start, into)
