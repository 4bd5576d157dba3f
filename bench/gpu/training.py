"""The loop that is measured: our trainer's model, state and engine, with a saver of its own."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from trainer.hook.spotd_hook.checkpointer import Checkpointer, RankGroup
from trainer.hook.spotd_hook.saver_client import SaverClient
from trainer.hook.spotd_hook.spawned import SpawnedSaver
from trainer.hook.spotd_hook.tensor_copy import CHUNK, background_copy, pin
from trainer.reference.model import VOCABULARY, Shape, make_model
from trainer.reference.state import Schedule, TrainState

NONE, BESIDE, STANDING = "no save", "beside training", "the loop stands"
SEED, COMMIT_S, TIDY_S = 1, 1800.0, 600.0
BETWEEN = 2  # steps without a save before each that is measured: what is left of the last one ends


class Training:
    """Of a model of `shape` (layers, heads, width, context) with random bytes, whose batch is a
    function of the step's number. `warn` hears warnings. Enter it, and it has a saver."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        batch: int,
        device: torch.device,
        folder: Path,
        warn: Callable[[str], None],
        generation: int = 1,
    ) -> None:
        self.shape, self.device, self.batch, self.folder, self.say = (
            shape,
            device,
            batch,
            folder,
            warn,
        )
        self._generation = generation
        layers, heads, width, block = shape
        made = make_model(Shape(layers, heads, width, block, dropout=0.1), SEED).to(device)
        self._model = made
        self._state = TrainState(made, device)
        self._schedule = Schedule(steps=10_000)
        self.size = self._state.size
        self.parameters = sum(one.numel() for one in made.parameters())
        self.position, self._copy_s = 0, 0.0
        self.failures: list[str] = []

    def __enter__(self) -> Training:
        job = {"SPOTD_JOB_ID": "bench", "SPOTD_STORE_URL": (self.folder / "store").as_uri()}
        self._saver = SpawnedSaver(
            {**job, "SPOTD_GENERATION": str(self._generation), "SPOTD_KEEP": "1"}
        )
        self._saver.wait_ready()
        self._checkpointer = Checkpointer(
            lambda: SaverClient(self._saver.socket),
            job_id="bench",
            generation=self._generation,
            pieces=self._state.pieces,
            size=self.size,
            report=self._heard,
            group=RankGroup(pin=partial(pin, warn=self.say)),
        )
        self._checkpointer.claim("now", 0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._checkpointer.close()
        self._saver.close()

    def _heard(self, kind: str, data: Mapping[str, Any]) -> None:
        if "error" in data:
            self.failures.append(f"{kind}: {data['error']}")

    # --- steps

    def step(self) -> float:
        """One; the seconds for which its update waited for a copy."""
        torch.manual_seed(SEED + self.position)  # dropout's, on the device as well
        drawn = torch.Generator().manual_seed(self.position)
        shape = (self.batch, self.shape[3] + 1)
        rows = torch.randint(VOCABULARY, shape, generator=drawn).to(self.device)
        torch.autograd.backward(self._model(rows[:, :-1], rows[:, 1:]))
        waited_s = self._checkpointer.wait_for_copy()
        self._state.update(self._schedule.rate(self.position), self.position)
        self.position += 1
        return waited_s

    def warm_up(self) -> None:
        """Kernels are chosen, and both slots of memory written to."""
        for background in (True, False):
            self.step()
            self._save(background=background)
            self._commit()

    def one_round(self, kind: str) -> dict[str, float]:
        """Seconds of one step and the save that comes before it. All is committed afterwards."""
        for _ in range(BETWEEN):
            self.step()
        self._wait()
        began_s = time.perf_counter()
        stall_s = 0.0
        if kind != NONE:
            self._save(background=kind == BESIDE)
            stall_s = time.perf_counter() - began_s
        stall_s += self.step()
        self._wait()
        found = {"step_s": time.perf_counter() - began_s, "stall_s": stall_s}
        if kind != NONE:
            self._commit()
            found["copy_s"] = self._copy_s
        return found

    def _save(self, *, background: bool) -> None:
        way = background_copy(self.device)
        way.begin()

        def stage(memory: memoryview, filled: Callable[[int], None]) -> None:
            began_s = time.perf_counter()
            self._state.stage(memory, filled, way)
            self._copy_s = time.perf_counter() - began_s

        state: dict[str, Any] = {"config": {}}
        self._checkpointer.save(self.position, stage, state, trigger="bench", background=background)

    def _commit(self) -> None:
        if not self._checkpointer.drain(COMMIT_S) or self.failures:
            raise RuntimeError(f"a save was not committed: {'; '.join(self.failures)}")
        self._wait_tidy()

    def _wait_tidy(self) -> None:
        """Until the saver has read the newest save back and removed what is old, whose folder goes
        with its last file: saves that follow each other as closely as here would be beyond it, and
        measured beside it."""
        end_s = time.monotonic() + TIDY_S
        while len(list(self.folder.glob("store/jobs/bench/g*/s*-*"))) > 1:
            if time.monotonic() > end_s:
                raise RuntimeError(f"old saves were not removed within {TIDY_S:.0f} s")
            time.sleep(0.05)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # --- the end, and the beginning of another one

    def go_on(self, steps: int) -> tuple[int, str]:
        """Save, and do so many steps more; where that was saved, and what has become of it."""
        self._save(background=True)
        self._commit()
        saved = self.position
        for _ in range(steps):
            self.step()
        return saved, self.digest()

    def restore(self) -> int:
        """The newest of the store; its step. Raises RuntimeError where there is none."""
        found = self._checkpointer.restore({}, self._state.load)
        if found is None:
            raise RuntimeError("there is no checkpoint")
        self.position = found.step
        return found.step

    @property
    def restored_from(self) -> dict[str, int]:
        """Bytes, by where they were."""
        return dict(self._checkpointer.sources)

    def digest(self) -> str:
        """Of every bit of weights and moments."""
        found = xxhash.xxh3_128()
        for flat in self._state.flat_tensors():
            for part in flat.split(CHUNK // 4):
                found.update(_host_bytes(part))
        return found.hexdigest()


def restored_equal(before: Training, end: int, saved: int, wanted: str) -> dict[str, Any]:
    """Whether a program that knows nothing of the one before comes to the same bits."""
    again = Training(
        before.shape, before.batch, before.device, before.folder, before.say, generation=2
    )
    began_s = time.perf_counter()
    with again:
        step = again.restore()
        restore_s = time.perf_counter() - began_s
        sources = again.restored_from
        while again.position < end:
            again.step()
        equal = again.digest() == wanted
    return {
        "bit_equal": equal and step == saved,
        "from_step": step,
        "steps_done_again": end - step,
        "restore_s": round(restore_s, 3),
        "bytes_from": sources,
    }


def about_machine(training: Training) -> dict[str, Any]:
    """What the figures are of."""
    name = platform.processor() or platform.machine()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    host = next((one.partition(":")[2].strip() for one in lines if "model name" in one), name)
    on_gpu = training.device.type == "cuda"
    return {
        "device_name": torch.cuda.get_device_name(training.device) if on_gpu else host,
        "host": host,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "parameters": training.parameters,
    }


def _host_bytes(part: Tensor) -> memoryview:
    return memoryview(part.cpu().numpy()).cast("B")
