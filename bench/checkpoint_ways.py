"""The ways to save that `bench.checkpoint` compares, each over the same state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from bench.least import Least
from providers.stores import open_store
from spotd.wire import Manifest
from trainer.hook.spotd_hook.async_copy import AsyncCopy
from trainer.hook.spotd_hook.engine import Engine
from trainer.hook.spotd_hook.saver_client import SaverClient
from trainer.hook.spotd_hook.spawned import SpawnedSaver
from trainer.hook.spotd_hook.tensor_copy import BLOCKING, HostCopy, TensorCopy
from trainer.saver import reader
from trainer.saver.disk import LocalTier
from trainer.saver.local_copies import DiskCopy
from trainer.saver.service import READERS
from trainer.saver.streams import Digests, FillingSlot, describe_stream

OURS = "spotd"  # as the trainer saves: copied beside forward and backward
STANDS = "spotd, the loop stands"  # as a script's own `run.save()` does
LEAST = "copy and write beside"  # what no engine goes below: see bench.least
TORCH, SAFE = "torch.save + fsync", "safetensors + fsync"
THREAD, PROCESS = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
# name -> who saves, whether a stager is kept from one save to the next, whether in shared memory
DCP = {
    "dcp thread": (THREAD, False, False),
    "dcp thread, cached stager": (THREAD, True, False),
    "dcp process": (PROCESS, False, False),
    "dcp process, shared memory": (PROCESS, True, True),
}
State = Mapping[str, torch.Tensor]
Save = Callable[[Path], Callable[[], bool]]  # begins one; what it gives says whether it is over


def make_state(state_bytes: int) -> dict[str, torch.Tensor]:
    """Of so many bytes: the layers of a transformer of width 1024, with AdamW's two moments."""
    shapes = {"qkv": (3072, 1024), "out": (1024, 1024), "up": (4096, 1024), "down": (1024, 4096)}
    shapes |= {"norm": (1024,), "bias": (4096,)}
    state: dict[str, torch.Tensor] = {}
    layer = size = 0
    while size < state_bytes:
        for name, shape in shapes.items():
            for group in ("model", "adamw.mean", "adamw.square"):
                tensor = torch.randn(*shape)
                state[f"{group}.{layer}.{name}"] = tensor
                size += tensor.nbytes
        layer += 1
    return state


def lay_out(state: State) -> tuple[list[dict[str, Any]], int]:
    """Where each tensor lies in a snapshot, at multiples of 64 bytes, and how large that is."""
    pieces, end = [], 0
    for name, tensor in state.items():
        shape = list(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        at = [0] * len(shape)
        pieces.append(
            {
                "name": name,
                "dtype": dtype,
                "shape": shape,
                "at": at,
                "block": shape,
                "offset": end,
            }
        )
        end += -(-tensor.nbytes // 64) * 64
    return pieces, end


def views_of(memory: memoryview, state: State, pieces: list[dict[str, Any]]) -> list[torch.Tensor]:
    """The places of the tensors in a snapshot's memory."""
    return [
        torch.frombuffer(
            memory, dtype=tensor.dtype, count=tensor.numel(), offset=piece["offset"]
        ).view(tensor.shape)
        for tensor, piece in zip(state.values(), pieces, strict=True)
    ]


class Ours:
    """The engine, with a saver of its own: local tier on disk, and a bucket, `env` says which."""

    def __init__(self, state: State, disk: Path, env: Mapping[str, str]) -> None:
        self._state = state
        self._pieces, self.size = lay_out(state)
        self._local = disk / "local"
        self._nowhere = open_store((disk / "nowhere").as_uri())
        said = {"SPOTD_KEEP": "1", "SPOTD_JOB_ID": "bench", "SPOTD_SAVER_LOCAL": str(self._local)}
        self._own = SpawnedSaver({**env, **said})
        self._own.wait_ready()
        self.engine = Engine(
            SaverClient(self._own.socket),
            job="bench",
            generation=1,
            name=f"b{os.getpid():x}",
            rank=0,
            ranks=[0],
            world_size=1,
        )
        self.engine.open(self._pieces, self.size)
        self.engine.claim()
        self._step = 0
        self._beside = AsyncCopy()

    def save_standing(self, _: Path) -> Callable[[], bool]:
        """The loop stands for the copy."""
        memory = self._begin()
        self.engine.stage(memory, partial(self._fill, BLOCKING))
        return self._is_durable

    def save(self, _: Path) -> Callable[[], bool]:
        """The loop goes on; what would change the state calls `fence` first."""
        memory = self._begin()
        fill = partial(self._fill, HostCopy())
        self._beside.begin(lambda: self.engine.stage(memory, fill))
        return self._is_durable

    def fence(self) -> None:
        self._beside.wait()

    def _begin(self) -> memoryview:
        self._step += 1
        memory = self.engine.begin(self._step, {"step": self._step}, trigger="bench")
        if memory is None:
            raise RuntimeError("there was no memory for the snapshot")
        return memory

    def _fill(self, copying: TensorCopy, memory: memoryview, filled: Callable[[int], None]) -> None:
        targets = views_of(memory, self._state, self._pieces)
        ends = (
            piece["offset"] + one.nbytes for one, piece in zip(targets, self._pieces, strict=True)
        )
        copying.run(zip(targets, self._state.values(), ends, strict=True), filled)

    def _is_durable(self) -> bool:
        folder = f"g00000001-s{self._step:012d}-"
        return any(name.startswith(folder) and name[-1] != "w" for name in self._names())

    def is_committed(self) -> bool:
        """The bucket has it, too."""
        return not self.engine.progress.pending

    def settle(self) -> None:
        """All of it, the bucket's copy too, before the next method's turn."""
        if not self.engine.drain(600.0):
            raise RuntimeError("the save was not committed")

    def load(self, into: memoryview, *, verified_first: bool) -> dict[str, float]:
        """Seconds to have the newest again: from the saver's memory, verified; from the local disk
        `into` memory that holds the same already, as a saver reads it, with digests and without,
        twice each, there and back: what comes later may find the disk's own cache warmer. Callers
        alternate."""
        self.engine.resume({})
        began = time.perf_counter()
        self.engine.fetch([(0, 0, self.size)])
        seconds = {"memory": time.perf_counter() - began}
        for verified in (verified_first, not verified_first, not verified_first, verified_first):
            name = "disk, verified" if verified else "disk"
            seconds[name] = seconds.get(name, 0.0) + self._read_back(into, verified=verified) / 2
        return seconds

    def _read_back(self, into: memoryview, *, verified: bool) -> float:
        """Seconds to read the newest snapshot, which the page cache does not have."""
        newest = max(name for name in self._names() if not name.endswith(".new"))
        folder = "jobs/bench/" + newest.rpartition("-")[0].replace("-s", "/s", 1)
        digests = Digests(self.size)
        digests.compute(FillingSlot(into, lambda: self.size, lambda: False), time.sleep)
        stream = describe_stream(folder, 0, self.size, digests)
        manifest = Manifest("bench", 1, self._step, 0, 1, (stream,))
        nearer = [DiskCopy(LocalTier(self._local, keep=1), folder)]
        with (self._local / newest / "data").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with ExitStack() as stack:
            if not verified:
                expected = patch.object(reader, "_digest", lambda chunk, _: chunk.digest)
                stack.enter_context(expected)
            readers = stack.enter_context(ThreadPoolExecutor(READERS))
            one = reader.Reader(self._nowhere, manifest, nearer, readers)
            began = time.perf_counter()
            one.fill(into, [reader.Range(0, 0, self.size)], lambda _: None)
            return time.perf_counter() - began

    def close(self) -> None:
        self.engine.close()
        self._own.close()

    def _names(self) -> list[str]:
        return os.listdir(self._local)  # noqa: PTH208 - asked often


def torch_save(state: State) -> Save:
    def save(folder: Path) -> Callable[[], bool]:
        with (folder / "state.pt").open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: True

    return save


def safetensors_save(state: State) -> Save:
    def save(folder: Path) -> Callable[[], bool]:
        save_file(dict(state), folder / "state.safetensors")
        fd = os.open(folder / "state.safetensors", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        return lambda: True

    return save


def dcp_save(state: State, kind: AsyncCheckpointerType, *, cached: bool, shared: bool) -> Save:
    options = StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=shared,
        use_async_staging=False,
        use_non_blocking_copy=False,
    )
    stager = DefaultStager(options) if cached else None

    def save(folder: Path) -> Callable[[], bool]:
        more: dict[str, Any] = {"async_stager": stager} if stager is not None else {}
        begun = dcp.async_save(
            dict(state),
            storage_writer=dcp.FileSystemWriter(folder),
            async_checkpointer_type=kind,
            **more,
        )
        future = getattr(begun, "upload_completion", begun)

        def over() -> bool:
            if future.done():
                future.result()
            return bool(future.done())

        return over

    return save


def all_of(state: State, ours: Ours, least: Least) -> dict[str, Save]:
    """Every way, by its name."""
    ways = {TORCH: torch_save(state), SAFE: safetensors_save(state)}
    for name, (kind, cached, shared) in DCP.items():
        ways[name] = dcp_save(state, kind, cached=cached, shared=shared)
    return {**ways, LEAST: least.save, STANDS: ours.save_standing, OURS: ours.save}
