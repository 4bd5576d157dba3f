"""A stand-in for torch.cuda, as unkind as CUDA may be: what a stream was given is done when
somebody waits for it and no sooner (`late`), or at once, ahead of every stream that it was not told
to wait for; memory that nobody holds any more is overwritten, and new memory holds NaN.

It is no GPU: it knows the few calls that copying makes, and what CUDA's documentation says of them.
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
    """What it was given, in order; `done` of it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.late = device, True
        self.given: list[Callable[[], object]] = []
        self.done = 0
        self.lock = threading.RLock()

    def give(self, work: Callable[[], object]) -> None:
        with self.lock:
            self.given.append(work)
            if not self.late:
                self.do(len(self.given))

    def do(self, count: int) -> None:
        with self.lock:
            while self.done < count:
                self.done += 1
                self.given[self.done - 1]()

    def wait_stream(self, other: Stream) -> None:
        count = len(other.given)
        self.give(lambda: other.do(count))

    def synchronize(self) -> None:
        self.do(len(self.given))


class Event:
    def __init__(self, *, blocking: bool = False) -> None:
        assert blocking, "a thread that waits would burn a core"
        self.stream: Stream | None = None
        self.count = 0

    def record(self, stream: Stream) -> None:
        self.stream, self.count = stream, len(stream.given)

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.do(self.count)


class Block:
    """Memory of the device. Nobody's any more, it is overwritten at once."""

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw
        weakref.finalize(self, raw.fill_, math.nan)


class Cuda:
    """Set in place of torch.cuda."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        self.late, self.main = late, Stream(DEVICE)
        self.made: list[Stream] = []
        self.pinned: dict[int, int] = {}
        self.room, self.error = 1 << 40, 0
        self._current = threading.local()
        for name in ("Stream", "Event", "stream", "current_stream", "cudart", "is_initialized"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch, "zeros", self._kernel)
        tensor_copy._fetching.cache_clear()

    def is_initialized(self) -> bool:
        return True

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802 - torch's name
        made = Stream(device)
        made.late = self.late
        self.made.append(made)
        return made

    def Event(self, **how: bool) -> Event:  # noqa: N802 - torch's name
        return Event(**how)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._current.stream = self.current_stream(DEVICE), stream
        try:
            yield
        finally:
            self._current.stream = before

    def current_stream(self, _: torch.device) -> Stream:
        """Of this thread; each begins with the same one, which training uses."""
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
        """A launch is told of the last error of anybody's, once."""
        assert device == "cuda"
        if self.error:
            self.error = 0
            raise RuntimeError("CUDA error: out of memory")

    # --- tensors

    def put(self, values: torch.Tensor) -> Any:
        """Those values on the device."""
        return self._tensor(Block(values.clone()), values)

    def _tensor(self, block: Block, like: torch.Tensor) -> Any:
        """A view of the block, of the shape and strides of `like`."""
        made = block.raw.as_strided(like.shape, like.stride(), like.storage_offset())
        found: Any = made.as_subclass(OnDevice)
        found.block, found.cuda_ = block, self
        return found


class OnDevice(torch.Tensor):
    """Its content is `block.raw`'s, of which no host code may ask."""

    block: Block
    cuda_: Cuda

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, more = func.__name__, kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
                return DEVICE
            mine = next(one for one in args if isinstance(one, OnDevice))
            cuda, raw = mine.cuda_, mine.as_subclass(torch.Tensor)
            here = cuda.current_stream(DEVICE)
            if name == "copy_":
                return cls._copy(cuda, here, args[0], raw, **more)
            if name == "add_":
                here.give(lambda: raw.add_(args[1]))
                return mine
            if name == "reshape" and not raw.is_contiguous():
                flat = torch.full((raw.numel(),), math.nan, dtype=raw.dtype)
                here.give(lambda: flat.copy_(raw.reshape(-1)))
                return cuda._tensor(Block(flat), flat)
            found = func(*args, **more)
            if isinstance(found, torch.Tensor):
                found = found.as_subclass(OnDevice)
                found.block, found.cuda_ = mine.block, cuda
            return found

    @staticmethod
    def _copy(
        cuda: Cuda, here: Stream, target: Any, raw: torch.Tensor, *, non_blocking: bool = False
    ) -> Any:
        here.give(lambda: target.copy_(raw))
        if not non_blocking or not cuda.is_pinned(target):
            here.synchronize()
        return target
