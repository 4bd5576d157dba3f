"""Copy tensors into the memory of a snapshot, within the host or from a GPU.

Needs torch, Python >= 3.10. Tests run against a stand-in for torch.cuda whose streams do everything
as late, or as early, as CUDA allows; bench/gpu/saves.py runs on a real GPU.
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

CHUNK = 16 << 20  # bytes copied between two progress reports
MAX_QUEUED_CHUNKS = 16  # keeps a GPU busy while the training thread holds Python's lock
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for each device of the process
Part = tuple[Tensor, Tensor, int]  # flat target and source; end offset in the snapshot


class TensorCopy(Protocol):
    """A way to copy; one copy at a time."""

    def begin(self) -> None:
        """Order the copy after everything that the calling training thread has begun."""
        ...

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """Copy `parts`; any thread may call it.

        The thread also makes the parts, so flattening a tensor belongs to the copy. `filled`
        receives the number of final bytes. When it returns or raises, no copy is running.
        """
        ...


class BlockingCopy:
    """Copies while the training thread waits."""

    def begin(self) -> None:
        """The thread's own order is enough."""

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """See TensorCopy.run."""
        for target, source, end in parts:
            target.copy_(source)
            filled(end)


class HostCopy:
    """Copies within the host beside training, on one core without the interpreter's lock."""

    def begin(self) -> None:
        """The host has finished what it began."""

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """See TensorCopy.run."""
        for target, source, end in parts:
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
            filled(end)


class GpuCopy:
    """Copies from a GPU in a stream of its own.

    Into memory that is not pinned the driver copies while the thread waits, with the same result. A
    source is referenced until its copy is done, so its memory cannot be reused before, and
    `record_stream` is not needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """See TensorCopy.begin."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        """See TensorCopy.run."""
        pending: deque[tuple[Any, int, Tensor]] = deque()

        def wait_first() -> None:
            done, end, _ = pending[0]
            done.synchronize()
            filled(end)
            pending.popleft()

        try:
            with torch.cuda.stream(self._stream):
                for target, source, end in parts:
                    target.copy_(source, non_blocking=True)
                    done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                    done.record(self._stream)
                    pending.append((done, end, source))
                    if len(pending) > MAX_QUEUED_CHUNKS:
                        wait_first()
                while pending:
                    wait_first()
        finally:
            self._stream.synchronize()


BLOCKING = BlockingCopy()


def background_copy(device: torch.device) -> TensorCopy:
    """Return the copy for a thread other than the training thread; all tensors are on `device`."""
    return _gpu_copy(device) if device.type == "cuda" else HostCopy()


def blocking_copy_for(tensors: Iterable[Tensor]) -> TensorCopy:
    """Return the copy for the training thread, from wherever the tensors are."""
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return _gpu_copy(devices.pop()) if len(devices) == 1 else BLOCKING


def parts_of(target: Tensor, source: Tensor, start: int) -> Iterator[Part]:
    """Divide two flat tensors into chunks; the target begins at byte `start` of the snapshot."""
    item = source.element_size()
    step = CHUNK // item
    for at in range(0, source.numel(), step):
        end = min(at + step, source.numel())
        yield target[at:end], source[at:end], start + end * item


def pin(memory: memoryview, warn: Callable[[str], None]) -> Callable[[], None]:
    """Pin `memory` with CUDA if it is in use, so that GPUs copy into it at the full rate.

    Returns a function that unpins it, to be called while the memory is mapped. If pinning fails,
    `warn` is called; saves are then slower, and still correct.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    error_text = _call("cudaHostRegister", address, len(memory), _PORTABLE)
    if error_text:
        warn(
            f"{len(memory) / 1e9:.1f} GB of memory for snapshots cannot be pinned ({error_text}): "
            "copies from the GPU are slower, and block the thread that requests them"
        )
        return lambda: None

    def unpin() -> None:
        error_text = _call("cudaHostUnregister", address)
        if error_text:
            warn(f"{len(memory) / 1e9:.1f} GB of memory for snapshots stay pinned: {error_text}")

    return unpin


@cache
def _gpu_copy(device: torch.device) -> GpuCopy:
    """Return the device's only stream for copies."""
    return GpuCopy(device)


def _call(name: str, *arguments: int) -> str:
    """Call a function of the CUDA runtime; return the error text, "" for none."""
    try:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(getattr(runtime, name)(*arguments))
        if not code:
            return ""
        description = str(runtime.cudaGetErrorString(runtime.cudaError(code)))
    except (RuntimeError, AssertionError, AttributeError) as error:
        return str(error)
    # CUDA reports the error again with torch's next kernel, which would end training. A kernel of
    # ours takes it first.
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return f"CUDA error {code}: {description}"
