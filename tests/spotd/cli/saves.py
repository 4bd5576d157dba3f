"""Checkpoints of a rig's job, laid out as the trainer's saver lays them out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_hexdigest

from providers.stores import open_store
from providers.stores.base import ObjectStore
from spotd import wire
from spotd.wire import Block, HeadRef, Manifest, Shard, Stream, TensorLayout
from tests.spotd.api.rig import Rig
from trainer.fence import Fence

SIZE, SHARD, CHUNK = 4096, 1024, 512
TENSORS = (TensorLayout("t", "int32", (1024,), (Block((0,), (1024,), 0, 0),)),)


@dataclass(frozen=True)
class FirstManifest(Manifest):
    """A manifest of version 1, which has no streams."""

    def to_bytes(self) -> bytes:
        fields = json.loads(super().to_bytes())["manifest"]
        shards = [
            {"key": shard.key, "size": shard.size, "digest": f"{shard.kind}:{shard.digests[0]}"}
            for shard in self.shards
        ]
        tensors = [
            {"name": f"t{n}", "dtype": "int32", "shape": [256], "shard": n, "offset": 0}
            | {"nbytes": SHARD}
            for n in range(len(shards))
        ]
        del fields["streams"]
        return wire.encode(
            {"manifest": {**fields, "shards": shards, "tensors": tensors}, "version": 1}
        )


class Saver:
    """Saver of one job's checkpoints in `store`.

    A checkpoint has four shards of 1 KiB, each of two chunks, or of one in a `first` manifest.
    """

    def __init__(self, rig: Rig, job_id: str) -> None:
        self.rig, self.id = rig, job_id
        self.store: ObjectStore = open_store(rig.checkpoint_store)
        self.fence = Fence(self.store, job_id, 1, "node1")
        self.fence.claim()

    def save(self, step: int, ago_s: float = 0, *, first: bool = False, **more: Any) -> HeadRef:
        """Save a checkpoint, made `ago_s` seconds ago, and return what HEAD names then."""
        size, kind = (SHARD, FirstManifest) if first else (CHUNK, Manifest)
        return self._save(step, [step_bytes(step)], TENSORS, size, kind, ago_s, **more)

    def save_tensors(
        self, step: int, streams: Sequence[bytes], tensors: Sequence[TensorLayout], **more: Any
    ) -> HeadRef:
        """Save a checkpoint of any streams and tensors."""
        return self._save(step, streams, tuple(tensors), CHUNK, Manifest, 0, **more)

    def _save(
        self,
        step: int,
        streams: Sequence[bytes],
        tensors: tuple[TensorLayout, ...],
        chunk: int,
        kind: type[Manifest],
        ago_s: float,
        state: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> HeadRef:
        folder = wire.manifest_key(self.id, 1, step, f"n{step}").rpartition("/")[0]
        saved_streams = []
        for rank, data in enumerate(streams):
            shards = []
            for number, start in enumerate(range(0, len(data), SHARD)):
                shard = data[start : start + SHARD]
                cuts = [shard[at : at + chunk] for at in range(0, len(shard), chunk)]
                digests = tuple(xxh3_128_hexdigest(cut) for cut in cuts)
                key = f"{folder}/r{rank:05d}-{number:05d}"
                shards.append(Shard(key, len(shard), chunk, digests))
                self.store.put(key, shard)
            saved_streams.append(Stream(tuple(shards)))
        world_size, at_us = len(saved_streams), self.rig.ago(ago_s)
        manifest = kind(
            self.id, 1, step, at_us, world_size, tuple(saved_streams), tensors, state or {}
        )
        head = self.fence.commit(manifest, key=f"{folder}/MANIFEST.json", **more)
        assert head.current is not None
        return head.current

    def file(self, key: str) -> Path:
        """Return the path of an object."""
        return Path(self.rig.checkpoint_store.removeprefix("file://")) / key


def step_bytes(step: int) -> bytes:
    """Return the data that is saved after a step; no two chunks are alike."""
    return b"".join((step * 10_000 + n).to_bytes(4, "big") for n in range(SIZE // 4))
