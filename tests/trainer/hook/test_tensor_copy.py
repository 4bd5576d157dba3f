"""Copying a snapshot from a GPU, with a stand-in for CUDA that is as unhelpful as allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from providers.stores import open_store
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.gpu import DEVICE, Cuda, OnDevice
from tests.trainer.saver.rig import Gate, Rig
from trainer.hook.spotd_hook import tensor_copy
from trainer.hook.spotd_hook.async_copy import AsyncCopy
from trainer.hook.spotd_hook.checkpointer import Checkpointer, RankGroup
from trainer.hook.spotd_hook.layout import Layout, lay_out, stage
from trainer.hook.spotd_hook.saver_client import SaverClient
from trainer.hook.spotd_hook.shared_memory import SharedMemory, make_memory
from trainer.hook.spotd_hook.tensor_copy import (
    BLOCKING,
    GpuCopy,
    HostCopy,
    background_copy,
    blocking_copy_for,
    pin,
)

Warnings = list[str]


@pytest.fixture(params=["late", "early"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    monkeypatch.setattr(tensor_copy, "CHUNK", 1 << 12)  # several of each tensor
    yield Cuda(monkeypatch, late=request.param == "late")
    tensor_copy._gpu_copy.cache_clear()


@pytest.fixture(params=["pinned", "pageable"])
def pinned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "pinned")


def state_on(cuda: Cuda) -> dict[str, Any]:
    """Return a contiguous tensor, one that must be flattened, and one on the host."""
    plain = torch.arange(40_000, dtype=torch.float32)
    return {
        "plain": cuda.put(plain),
        "turned": cuda.put(plain.reshape(200, 200).T),
        "odd": on_host(),
    }


def on_host() -> torch.Tensor:
    return torch.tensor(7.0)  # as the steps of torch's optimizers are


def bytes_of(plus: float) -> list[bytes]:
    plain = torch.arange(40_000, dtype=torch.float32) + plus
    turned = plain.reshape(200, 200).T.contiguous()
    return [tensor.numpy().tobytes() for tensor in (plain, turned)]


def check(memory: memoryview, layout: Layout, count: int, plus: float) -> None:
    """Check the first `count` bytes: the state after the step that added `plus`."""
    for piece, content in zip(layout.pieces, bytes_of(plus), strict=False):
        start = piece["offset"]
        end = max(start, min(count, start + len(content)))
        assert bytes(memory[start:end]) == content[: end - start], piece["name"]


def update(state: dict[str, Any]) -> None:
    """Do a step of the optimizer: kernels in training's stream."""
    for tensor in state.values():
        if isinstance(tensor, OnDevice):
            tensor.add_(1.0)


@pytest.mark.req("CKP-16")
def test_a_snapshot_beside_training_is_of_the_moment_when_it_was_begun(
    cuda: Cuda, pinned: bool
) -> None:
    state = state_on(cuda)
    layout = lay_out(state)
    fd = make_memory(layout.size, 1)
    shared, warnings = SharedMemory(fd, layout.size, 1), Warnings()
    unpin = pin(shared.slot_area, warnings.append) if pinned else lambda: None
    memory, reported = shared.slot(0), list[int]()

    def filled(count: int) -> None:
        """What the saver is told of is there: it is on its way at once."""
        check(memory, layout, count, 2.0)
        reported.append(count)

    for _ in range(2):
        update(state)  # under way still: the host is ahead of the device
    way = background_copy(DEVICE)
    way.begin()
    background = AsyncCopy()
    background.begin(lambda: stage(state, layout, memory, filled, way))
    background.wait()
    update(state)  # the step that the fence is for
    cuda.main.synchronize()
    for stream in cuda.made:
        stream.synchronize()
    check(memory, layout, layout.size, 2.0)
    assert reported == sorted(reported)
    assert len(reported) > tensor_copy.MAX_QUEUED_CHUNKS
    assert bytes(memory[layout.pieces[2]["offset"] :]) == on_host().numpy().tobytes() + bytes(
        layout.size - layout.pieces[2]["offset"] - 4
    )
    unpin()
    assert (warnings, cuda.pinned) == ([], {})


def test_nothing_is_under_way_any_more_when_a_copy_fails(cuda: Cuda) -> None:
    state = state_on(cuda)
    layout = lay_out(state)
    fd = make_memory(layout.size, 1)
    shared = SharedMemory(fd, layout.size, 1)
    pin(shared.slot_area, pytest.fail)

    def fail(_: int) -> None:
        raise MemoryError

    way = background_copy(DEVICE)
    way.begin()
    with pytest.raises(MemoryError):
        stage(state, layout, shared.slot(0), fail, way)
    [stream] = cuda.made
    assert stream.done == len(stream.work)


def test_there_is_one_stream_for_all_saves(cuda: Cuda) -> None:
    state = state_on(cuda)
    assert background_copy(DEVICE) is blocking_copy_for(state.values()) is background_copy(DEVICE)
    assert len(cuda.made) == 1
    assert blocking_copy_for([on_host()]) is BLOCKING
    assert isinstance(background_copy(torch.device("cpu")), HostCopy)


def test_tensors_of_several_devices_are_copied_while_training_stands(cuda: Cuda) -> None:
    class Far(torch.Tensor):
        device = torch.device("cuda:1")  # type: ignore[assignment]

    far = torch.ones(3).as_subclass(Far)
    assert isinstance(blocking_copy_for([cuda.put(on_host())]), GpuCopy)
    assert blocking_copy_for([cuda.put(on_host()), far]) is BLOCKING


def test_memory_that_cannot_be_pinned_is_said_and_leaves_no_error_behind(cuda: Cuda) -> None:
    cuda.room, warnings = 0, Warnings()
    fd = make_memory(5000, 2)
    pin(SharedMemory(fd, 5000, 2).slot_area, warnings.append)()
    assert len(warnings) == 1
    assert "cannot be pinned (CUDA error 2: out of memory)" in warnings[0]
    assert not cuda.error, "the next kernel of training would raise it"


def test_without_cuda_nothing_is_pinned() -> None:
    pin(memoryview(bytearray(16)), pytest.fail)()


@pytest.mark.parametrize("background", [False, True])
def test_the_saver_commits_what_was_there_when_the_save_began(
    cuda: Cuda, background: bool, pinned: bool, tmp_path: Path
) -> None:
    rig = Rig(tmp_path / "s", Gate(open_store(tmp_path.as_uri())), 1, claim=False)
    state = state_on(cuda)
    layout = lay_out(state)
    made = Checkpointer(
        lambda: SaverClient(str(rig.path)),
        job_id="job",
        generation=1,
        pieces=layout.pieces,
        size=layout.size,
        report=rig.note,
        group=RankGroup(pin=_pin if pinned else None),
    )
    assert made.claim("now", 0.0) is not None
    assert bool(cuda.pinned) == pinned
    for step in (1, 2, 3):
        made.wait_for_copy()
        update(state)
        way = blocking_copy_for(state.values())
        way.begin()

        def fill(memory: memoryview, filled: Callable[[int], None], way: Any = way) -> None:
            stage(state, layout, memory, filled, way)

        made.save(step, fill, {"config": {}}, trigger="test", background=background)
        assert made.drain(LIMIT_S)
    update(state)
    cuda.main.synchronize()
    loaded = list[bytes]()
    found = made.restore({}, lambda memory: loaded.append(bytes(memory)))
    assert found is not None
    assert found.step == 3
    check(memoryview(loaded[0]), layout, layout.size, 3.0)
    made.close()
    assert cuda.pinned == {}
    rig.close()


def _pin(memory: memoryview) -> Callable[[], None]:
    return pin(memory, pytest.fail)
