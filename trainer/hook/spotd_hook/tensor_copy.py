"""How tensors come into the memory of a snapshot: within the host, or from a GPU. Needs torch,
Python >= 3.10.

What is here for GPUs has never run on one: it is tested against a stand-in for torch.cuda, whose
streams do everything as late, or as early, as CUDA allows.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

CHUNK = 16 << 20  # bytes that are copied between two words to the saver, which follows
AHEAD = (
    16  # chunks that a GPU has been given: enough while the thread that trains has Python's lock
)
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for each device of the process
Part = tuple[Tensor, Tensor, int]  # target and source, flat; the snapshot's bytes up to their end


class TensorCopy(Protocol):
    """A way to copy. One copy at a time."""

    def begin(self) -> None:
        """By the thread that trains: all that it has begun up to now comes before the copy."""
        ...

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """By any thread, which `parts` are made by, too: what flattens a tensor is part of the
        copy. `filled` hears how many bytes have their final content. When it returns or raises,
        nothing is under way any more."""
        ...


class BlockingCopy:
    """While the thread that trains stands."""

    def begin(self) -> None:
        """Its own order is enough."""

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """As of `Copying`."""
        for target, source, end in parts:
            target.copy_(source)
            filled(end)


class HostCopy:
    """Within the host, beside training: on one core, without the interpreter's lock."""

    def begin(self) -> None:
        """The host has done what it was told."""

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """As of `Copying`."""
        for target, source, end in parts:
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
            filled(end)


class GpuCopy:
    """From a GPU, in a stream of its own. Into memory that is not pinned the driver copies while
    the thread waits, and gives the same bytes.

    A source is held until its copy is done, so that its memory, and what flattening it took, is
    nobody else's before: `record_stream` has nothing to add to that.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """As of `Copying`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """As of `Copying`."""
        under_way: deque[tuple[Any, int, Tensor]] = deque()

        def wait_first() -> None:
            done, end, _ = under_way[0]
            done.synchronize()
            filled(end)
            under_way.popleft()

        try:
            with torch.cuda.stream(self._stream):
                for target, source, end in parts:
                    target.copy_(source, non_blocking=True)
                    done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                    done.record(self._stream)
                    under_way.append((done, end, source))
                    if len(under_way) > AHEAD:
                        wait_first()
                while under_way:
                    wait_first()
        finally:
            self._stream.synchronize()


STANDING = BlockingCopy()


def copying_beside(device: torch.device) -> TensorCopy:
    """For a thread beside the one that trains, from tensors that are all on `device`."""
    return _fetching(device) if device.type == "cuda" else HostCopy()


def copying_for(tensors: Iterable[Tensor]) -> TensorCopy:
    """For the thread that trains, from wherever these are."""
    devices = {one.device for one in tensors if one.device.type == "cuda"}
    return _fetching(devices.pop()) if len(devices) == 1 else STANDING


def parts_of(target: Tensor, source: Tensor, start: int) -> Iterator[Part]:
    """Two flat tensors in chunks; the target lies at byte `start` of the snapshot."""
    item = source.element_size()
    step = CHUNK // item
    for at in range(0, source.numel(), step):
        end = min(at + step, source.numel())
        yield target[at:end], source[at:end], start + end * item


def pin(memory: memoryview, say: Callable[[str], None]) -> Callable[[], None]:
    """Where CUDA is in use, have it pin `memory`, so that a GPU copies into it by itself and at the
    full rate; what this gives takes that back, to be called while the memory is there. Where that
    cannot be, it says so: saves are slower then, and right."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    trouble = _call("cudaHostRegister", address, len(memory), _PORTABLE)
    if trouble:
        say(
            f"{len(memory) / 1e9:.1f} GB of memory for snapshots cannot be pinned ({trouble}): "
            "copies from the GPU are slower, and hold up the thread that asks for them"
        )
        return lambda: None

    def unpin() -> None:
        trouble = _call("cudaHostUnregister", address)
        if trouble:
            say(f"{len(memory) / 1e9:.1f} GB of memory for snapshots stay pinned: {trouble}")

    return unpin


@cache
def _fetching(device: torch.device) -> GpuCopy:
    """One stream a device for the whole life of the process."""
    return GpuCopy(device)


def _call(name: str, *arguments: int) -> str:
    """A function of CUDA's runtime; what went wrong, "" for nothing."""
    try:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(getattr(runtime, name)(*arguments))
        if not code:
            return ""
        said = str(runtime.cudaGetErrorString(runtime.cudaError(code)))
    except (RuntimeError, AssertionError, AttributeError) as error:
        return str(error)
    # CUDA keeps the error for whoever asks next, and that is torch, of its next kernel: it would
    # end training. A kernel of ours asks first.
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return f"CUDA error {code}: {said}"
