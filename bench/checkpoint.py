"""What saving costs a training loop: ours beside torch.save, DCP in its modes and safetensors.

    python -m bench.checkpoint --json checkpoint.json
    python -m bench.checkpoint --state-gb 0.4 --rounds 3        # a quick look

One state of AdamW in float32, one process; every method once a round, so that whatever else the
machine does meets all of them, and medians over the rounds. `stall` is how long the loop stands,
`lost` that and how much slower a loop of small operations is until the save is over, `durable` how
long until it is on the local disk, fsync and all. Floors: the copy into warm memory, and a write
past the page cache. What an upload costs in CPU is not measured here. Every sample is in the JSON.
It is a comparison inside one run; the seconds are the machine's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import xxhash
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from trainer.hook.spotd_hook.arena import Arena, make_memory
from trainer.hook.spotd_hook.engine import Engine
from trainer.hook.spotd_hook.line import Line
from trainer.hook.spotd_hook.spawned import Spawned
from trainer.saver.disk import LocalTier
from trainer.saver.streams import Filling

CHUNK = 16 << 20
FLOOR_COPY, FLOOR_WRITE = "copy into warm memory", "O_DIRECT write"
OURS = "spotd"
TORCH, SAFE = "torch.save + fsync", "safetensors + fsync"
DCP = ("dcp thread", "dcp process", "dcp process, shared memory")
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
    """The engine, with a saver of its own: local tier on disk, bucket in memory."""

    def __init__(self, state: State, disk: Path, bucket: Path) -> None:
        self._state = state
        self._pieces, self.size = lay_out(state)
        env = {"SPOTD_STORE_URL": bucket.as_uri(), "SPOTD_KEEP": "1", "SPOTD_JOB_ID": "bench"}
        self._local = disk / "local"
        self._own = Spawned({**env, "SPOTD_SAVER_LOCAL": str(self._local)})
        self._own.wait_ready()
        self.engine = Engine(
            Line(self._own.socket),
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

    def save(self, _: Path) -> Callable[[], bool]:
        self._step += 1
        step = self._step

        def fill(memory: memoryview, filled: Callable[[int], None]) -> None:
            targets = views_of(memory, self._state, self._pieces)
            for tensor, target, piece in zip(
                self._state.values(), targets, self._pieces, strict=True
            ):
                target.copy_(tensor)
                filled(piece["offset"] + tensor.nbytes)

        if not self.engine.save(step, fill, {"step": step}, trigger="bench"):
            raise RuntimeError("there was no memory for the snapshot")
        folder = f"g00000001-s{step:012d}-"
        return lambda: any(name.startswith(folder) and name[-1] != "w" for name in self._names())

    def settle(self) -> None:
        """All of it, the bucket's copy too, before the next method's turn."""
        if not self.engine.drain(600.0):
            raise RuntimeError("the save was not committed")

    def load(self) -> dict[str, float]:
        """Seconds to have the newest again: from the saver's memory, verified; from the local disk,
        with digests and without."""
        self.engine.resume({})
        began = time.perf_counter()
        self.engine.fetch([(0, 0, self.size)])
        seconds = {"memory": time.perf_counter() - began}
        newest = max(name for name in self._names() if not name.endswith(".new"))
        path = self._local / newest / "data"
        seconds["disk"] = read_back(path, lambda _: None)
        seconds["disk, verified"] = read_back(path, xxhash.xxh3_128_hexdigest)
        return seconds

    def close(self) -> None:
        self.engine.close()
        self._own.close()

    def _names(self) -> list[str]:
        return os.listdir(self._local)  # noqa: PTH208 - asked often


def read_back(path: Path, look: Callable[[memoryview], object]) -> float:
    """Seconds to read a file that the page cache does not have, chunk by chunk."""
    memory = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while count := file.readinto(memory):
            look(memory[:count])
    return time.perf_counter() - began


def torch_save(state: State) -> Save:
    def save(folder: Path) -> Callable[[], bool]:
        with (folder / "state.pt").open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: True

    return save


def safetensors_save(state: State) -> Save:
    from safetensors.torch import save_file

    def save(folder: Path) -> Callable[[], bool]:
        save_file(dict(state), folder / "state.safetensors")
        fd = os.open(folder / "state.safetensors", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        return lambda: True

    return save


def dcp_save(state: State, kind: AsyncCheckpointerType, *, shared: bool) -> Save:
    options = StagingOptions(False, shared, False, False)
    stager = DefaultStager(options) if shared else None

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


def small_operations() -> None:
    """What the host side of a training step is: many small operations under the GIL."""
    values = torch.zeros(8)
    for _ in range(2000):
        values.add_(1.0)


def pace() -> float:
    times = []
    for _ in range(30):
        began = time.perf_counter()
        small_operations()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def one_save(save: Save, folder: Path) -> dict[str, float]:
    """Seconds: stall, durable, lost."""
    os.sync()
    gc.collect()
    usual_s = pace()
    began = time.perf_counter()
    over = save(folder)
    stall_s = time.perf_counter() - began
    steps = 0
    while not over():
        small_operations()
        steps += 1
    durable_s = time.perf_counter() - began
    lost_s = stall_s + max(0.0, durable_s - stall_s - steps * usual_s)
    return {"stall": stall_s, "durable": durable_s, "lost": lost_s}


def floors(state: State, warm: Arena, pieces: list[dict[str, Any]], disk: Path) -> dict[str, float]:
    """Seconds to copy the state into warm memory, and to write that past the page cache."""
    os.sync()
    targets = views_of(warm.slot(0), state, pieces)
    began = time.perf_counter()
    for tensor, target in zip(state.values(), targets, strict=True):
        target.copy_(tensor)
    copied = time.perf_counter()
    tier = LocalTier(disk / "floor")
    view = warm.padded(0)
    tier.write("raw", Filling(view, lambda: warm.size, lambda: False), warm.size, time.sleep)
    wrote = time.perf_counter()
    tier.drop("raw")
    return {FLOOR_COPY: copied - began, FLOOR_WRITE: wrote - copied}


def measure(args: argparse.Namespace, told: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; what the JSON holds."""
    state = make_state(int(args.state_gb * 1e9))
    samples: dict[str, dict[str, list[float]]] = {}

    def note(name: str, values: Mapping[str, float]) -> None:
        for what, value in values.items():
            samples.setdefault(name, {}).setdefault(what, []).append(round(value, 6))

    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.folder)))
        bucket = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.bucket)))
        ours = Ours(state, disk, bucket)
        stack.callback(ours.close)
        pieces, size = lay_out(state)
        fd = make_memory(size, 1)
        warm = Arena(fd, size, 1)
        os.close(fd)
        warm.fault_in()
        thread, process = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
        methods: dict[str, Save] = {
            TORCH: torch_save(state),
            DCP[0]: dcp_save(state, thread, shared=False),
            DCP[1]: dcp_save(state, process, shared=False),
            DCP[2]: dcp_save(state, process, shared=True),
            OURS: ours.save,
        }
        try:
            methods[SAFE] = safetensors_save(state)
        except ImportError:
            told("safetensors is not installed here: left out")
        for number in range(-1, args.rounds):  # the first is to warm up, and is not counted
            found = floors(state, warm, pieces, disk)
            if number >= 0:
                for name, seconds in found.items():
                    note(name, {"seconds": seconds})
            for name, save in methods.items():
                folder = disk / "one"
                folder.mkdir()
                values = one_save(save, folder)
                if save == ours.save:
                    ours.settle()
                shutil.rmtree(folder)
                if number >= 0:
                    note(name, values)
            if number >= 0:
                note("load", ours.load())
            told(f"round {number + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}")
    return report(samples, size)


def report(samples: Mapping[str, Mapping[str, list[float]]], size: int) -> dict[str, Any]:
    """Medians, and the ratios that goals are about: each of two things of the same round."""
    medians = {
        name: {what: statistics.median(values) for what, values in one.items()}
        for name, one in samples.items()
    }

    def ratio(a: list[float], b: list[float]) -> float:
        return round(statistics.median(x / y for x, y in zip(a, b, strict=True)), 3)

    best = min(DCP, key=lambda name: medians[name]["lost"])
    mine, loads = samples[OURS], samples["load"]
    return {
        "bytes": size,
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "best_dcp": best,
        "medians": medians,
        "ratios": {
            "stall_vs_memcpy": ratio(mine["stall"], samples[FLOOR_COPY]["seconds"]),
            "lost_vs_best_dcp": ratio(mine["lost"], samples[best]["lost"]),
            "durable_vs_direct": ratio(mine["durable"], samples[FLOOR_WRITE]["seconds"]),
            "verify_share": round(ratio(loads["disk, verified"], loads["disk"]) - 1.0, 3),
        },
        "samples": samples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--state-gb", type=float, default=1.6, help="of the state (default: 1.6)")
    parser.add_argument("--rounds", type=int, default=5, help="counted (default: 5)")
    parser.add_argument("--folder", help="on the disk to be measured (default: $TMPDIR)")
    parser.add_argument("--bucket", default="/dev/shm", help="for our bucket's copy")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({name: os.environ.get(name, value) for name, value in environ.items()})
    with tempfile.TemporaryDirectory() as meeting:
        distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}/store", rank=0, world_size=1
        )
        found = measure(args, lambda text: print(text, file=sys.stderr, flush=True))
        distributed.destroy_process_group()
    for name, values in found["medians"].items():
        print(f"{name:28}", "  ".join(f"{what} {value:.3f} s" for what, value in values.items()))
    for name, value in found["ratios"].items():
        print(f"{name:28} {value}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
