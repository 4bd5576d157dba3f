"""A stand-in for torch.cuda that is as unhelpful as CUDA allows.

A stream does its work only when somebody waits for it (`late`), or at once, ahead of every stream
that it was not told to wait for. Freed memory is overwritten, and new memory holds NaN.

It is not a GPU: it knows the few calls that copying makes, as documented by CUDA.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from trainer.hook.spotd_hook import tensor_copy

DEVICE = torch.device("cuda:0")
OUT_OF_MEMORY = 2


class Stream:
    """Work in order; the first `done` entries are done."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.late = device, True
        self.work: list[Callable[[], object]] = []
        self.done = 0
        self.lock = threading.RLock()

    def submit(self, work: Callable[[], object]) -> None:
        with self.lock:
            self.work.append(work)
            if not self.late:
                self.do(len(self.work))

    def do(self, count: int) -> None:
        with self.lock:
            while self.done < count:
                self.done += 1
                self.work[self.done - 1]()

    def wait_stream(self, other: Stream) -> None:
        count = len(other.work)
        self.submit(lambda: other.do(count))

    def synchronize(self) -> None:
        self.do(len(self.work))


class Event:
    def __init__(self, *, blocking: bool = False) -> None:
        assert blocking, "a thread that waits would burn a core"
        self.stream: Stream | None = None
        self.count = 0

    def record(self, stream: Stream) -> None:
        self.stream, self.count = stream, len(stream.work)

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.do(self.count)


class Block:
    """Device memory, which is overwritten as soon as it is freed."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw
        weakref.finalize(self, raw.fill_, math.nan)


class Cuda:
    """Replaces torch.cuda."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        self.late, self.main = late, Stream(DEVICE)
        self.made: list[Stream] = []
        self.pinned: dict[int, int] = {}
        self.room, self.error = 1 << 40, 0
        self._current = threading.local()
        for name in ("Stream", "Event", "stream", "current_stream", "cudart", "is_initialized"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch, "zeros", self._kernel)
        tensor_copy._gpu_copy.cache_clear()

    def is_initialized(self) -> bool:
        return True

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802 - torch's name
        new_stream = Stream(device)
        new_stream.late = self.late
        self.made.append(new_stream)
        return new_stream

    def Event(self, **how: bool) -> Event:  # noqa: N802 - torch's name
        return Event(**how)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        previous, self._current.stream = self.current_stream(DEVICE), stream
        try:
            yield
        finally:
            self._current.stream = previous

    def current_stream(self, _: torch.device) -> Stream:
        """Return this thread's stream; all threads start with the one that training uses."""
        return getattr(self._current, "stream", self.main)

    # --- CUDA's runtime

    def cudart(self) -> Cuda:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert flags == 1
        assert not address % 4096
        self.error = 0 if size <= self.room else OUT_OF_MEMORY
        if not self.error:
            self.pinned[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        return {OUT_OF_MEMORY: "out of memory"}[code]

    def cudaError(self, code: int) -> int:  # noqa: N802
        return code

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        at = tensor.data_ptr()
        return any(a <= at and at + tensor.nbytes <= a + size for a, size in self.pinned.items())

    def _kernel(self, *_: object, device: str) -> None:
        """A kernel launch reports the last error of any call, once."""
        assert device == "cuda"
        if self.error:
            self.error = 0
            raise RuntimeError("CUDA error: out of memory")

    # --- tensors

    def put(self, values: torch.Tensor) -> Any:
        """Return a tensor with these values on the device."""
        return self._tensor(Block(values.clone()), values)

    def _tensor(self, block: Block, like: torch.Tensor) -> Any:
        """Return a view of the block with the shape and strides of `like`."""
        new_view = block.raw.as_strided(like.shape, like.stride(), like.storage_offset())
        result: Any = new_view.as_subclass(OnDevice)
        result.block, result.cuda_ = block, self
        return result


class OnDevice(torch.Tensor):
    """A device tensor; its content is in `block.raw`, which host code must not read."""

    block: Block
    cuda_: Cuda

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, more = func.__name__, kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
                return DEVICE
            tensor = next(one for one in args if isinstance(one, OnDevice))
            cuda, raw = tensor.cuda_, tensor.as_subclass(torch.Tensor)
            stream = cuda.current_stream(DEVICE)
            if name == "copy_":
                return cls._copy(cuda, stream, args[0], raw, **more)
            if name == "add_":
                stream.submit(lambda: raw.add_(args[1]))
                return tensor
            if name == "reshape" and not raw.is_contiguous():
                flat = torch.full((raw.numel(),), math.nan, dtype=raw.dtype)
                stream.submit(lambda: flat.copy_(raw.reshape(-1)))
                return cuda._tensor(Block(flat), flat)
            result = func(*args, **more)
            if isinstance(result, torch.Tensor):
                result = result.as_subclass(OnDevice)
                result.block, result.cuda_ = tensor.block, cuda
            return result

    @staticmethod
    def _copy(
        cuda: Cuda, stream: Stream, target: Any, raw: torch.Tensor, *, non_blocking: bool = False
    ) -> Any:
        stream.submit(lambda: target.copy_(raw))
        if not non_blocking or not cuda.is_pinned(target):
            stream.synchronize()
        return target
