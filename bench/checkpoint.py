"""What saving costs a training loop: ours beside torch.save, DCP in its modes and safetensors.

    python -m bench.checkpoint --json checkpoint.json
    python -m bench.checkpoint --state-gb 0.4 --rounds 3        # a quick look

One state of AdamW in float32, one process; every method once a round, so that whatever else the
machine does meets all of them, and medians over the rounds. `stall` is how long the loop stands,
`lost` that and how much slower a loop of small operations is until the save is over, `durable` how
long until it is on the local disk, fsync and all. `spotd` saves as the
trainer does: the copy is made beside forward and backward, and waited for before the update;
`the loop stands` is a script's own call, which waits for the copy. Floors: the copy into warm
memory, and a write past the page cache; `copy and write beside` is both of them, beside the loop,
with nothing else: below what it takes from the loop is nobody. `committed` and `lost_committed` are
until ours is in the bucket as well, where the peers put nothing. `load` is from the local disk as a
saver reads it, with digests and without. `upload` is what the saver's own path takes in CPU to send
it over plain HTTP and over TLS to a process that throws it away, whose CPU is not counted, `bare
put` the client alone, `bare send` the system's own `send` of the same bytes, `bare sendfile` that
without copying them, and `digests` what of it they take.
Ours uploads to that process (over HTTP, or as `--upload` says) while it saves; the peers do not.
Every sample is in the JSON. It is a comparison inside one run; the seconds are the machine's.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
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
from torch import distributed

from bench.checkpoint_ways import (
    DCP,
    LEAST,
    OURS,
    STANDS,
    Ours,
    Save,
    State,
    all_of,
    lay_out,
    make_state,
    views_of,
)
from bench.least import Least
from bench.uploads import (
    BARE,
    DIGESTS,
    PLAIN,
    SEND,
    SENDFILE,
    TLS,
    UPLOAD,
    Uploads,
    bucket_env,
    sinks,
)
from trainer.hook.spotd_hook.shared_memory import PAGE, SharedMemory, make_memory
from trainer.saver.disk import LocalTier
from trainer.saver.streams import FillingSlot

FLOOR_COPY, FLOOR_WRITE = "copy into warm memory", "O_DIRECT write"
STEP_S = 0.5  # of a training step before its update: that long `beside` may copy for nothing
NO_DIRECT = "write past the page cache (O_DIRECT)"
Samples = dict[str, dict[str, list[float]]]


def check_direct(folder: Path) -> None:
    """Raises OSError where writes go through the page cache whatever one asks for: durable is not
    to be compared there. A tmpfs takes O_DIRECT and ignores it, so that it takes a single byte."""
    path = folder / "direct"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:
        taken = True
    else:
        try:
            taken = bool(os.pwrite(fd, b"1", 0))
        except OSError:
            taken = False
        os.close(fd)
    path.unlink(missing_ok=True)
    if taken:
        raise OSError(f"--folder {folder.parent} cannot {NO_DIRECT}: name one on a real disk")


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


def one_save(save: Save, folder: Path, ours: Ours, fence: Callable[[], None]) -> dict[str, float]:
    """Seconds: stall, durable, lost; of ours also until it is committed in the bucket, which the
    others do not do. All of it is over, and `folder` gone, when this returns."""
    folder.mkdir()
    os.sync()
    gc.collect()
    usual_s = pace()
    began = time.perf_counter()
    over = save(folder)
    stall_s = time.perf_counter() - began
    update_at = time.perf_counter() + STEP_S  # until then forward and backward: no state changes
    steps = 0

    def train_until(over: Callable[[], bool]) -> tuple[float, float]:
        """Seconds since the save began, and what of them the loop lost."""
        nonlocal stall_s, update_at, steps
        while not over():
            small_operations()
            steps += 1
            if time.perf_counter() >= update_at:
                asked, update_at = time.perf_counter(), math.inf
                fence()
                stall_s += time.perf_counter() - asked
        took_s = time.perf_counter() - began
        return took_s, stall_s + max(0.0, took_s - stall_s - steps * usual_s)

    durable_s, lost_s = train_until(over)
    found = {"stall": stall_s, "durable": durable_s, "lost": lost_s}
    if save in (ours.save, ours.save_standing):
        found["committed"], found["lost_committed"] = train_until(ours.is_committed)
        found["stall"] = stall_s
        ours.settle()
    shutil.rmtree(folder)
    return found


def no_fence() -> None:
    """Nothing is copied beside the loop."""


def floors(
    state: State, warm: SharedMemory, pieces: list[dict[str, Any]], disk: Path
) -> dict[str, dict[str, float]]:
    """Seconds to copy the state into warm memory, and to write that past the page cache."""
    os.sync()
    targets = views_of(warm.slot(0), state, pieces)
    began = time.perf_counter()
    for tensor, target in zip(state.values(), targets, strict=True):
        target.copy_(tensor)
    copied = time.perf_counter()
    tier = LocalTier(disk / "floor")
    view = warm.padded(0)
    tier.write("raw", FillingSlot(view, lambda: warm.size, lambda: False), warm.size, time.sleep)
    wrote = time.perf_counter()
    tier.discard("raw")
    return {FLOOR_COPY: {"seconds": copied - began}, FLOOR_WRITE: {"seconds": wrote - copied}}


def measure(args: argparse.Namespace, told: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; what the JSON holds. Raises OSError."""
    samples: Samples = {}

    def note(name: str, values: Mapping[str, float]) -> None:
        for what, value in values.items():
            samples.setdefault(name, {}).setdefault(what, []).append(round(value, 6))

    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.folder)))
        check_direct(disk)
        urls = stack.enter_context(sinks(disk))
        state = make_state(int(args.state_gb * 1e9))
        ours = Ours(state, disk, bucket_env(urls[args.upload]))
        stack.callback(ours.close)
        pieces, size = lay_out(state)
        fd = make_memory(size, 1)
        stack.callback(os.close, fd)
        warm = SharedMemory(fd, size, 1)
        warm.fault_in()
        uploads = Uploads(warm.slot(0), size, urls, fd, PAGE)
        stack.callback(uploads.close)
        least = Least(state, pieces, size, disk)
        stack.callback(least.close)
        ways = all_of(state, ours, least)
        fences = {LEAST: least.fence, OURS: ours.fence}
        for number in range(-1, args.rounds):  # the first is to warm up, and is not counted
            found = {
                **floors(state, warm, pieces, disk),
                **{
                    name: one_save(save, disk / "one", ours, fences.get(name, no_fence))
                    for name, save in ways.items()
                },
                "load": ours.load(warm.slot(0), verified_first=bool(number % 2)),
                **uploads.measure(),
            }
            for name, values in found.items() if number >= 0 else ():
                note(name, values)
            told(f"round {number + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}")
    return report(samples, size)


def report(samples: Samples, size: int) -> dict[str, Any]:
    """Medians, and the ratios that goals are about: each of two things of the same round."""
    medians = {
        name: {what: statistics.median(values) for what, values in one.items()}
        for name, one in samples.items()
    }

    def ratio(a: list[float], b: list[float]) -> float:
        return round(statistics.median(x / y for x, y in zip(a, b, strict=True)), 3)

    def cpu_s_per_gb(name: str) -> dict[str, float]:
        found = {scheme: medians[f"{name}, {scheme}"]["cpu_s_per_gb"] for scheme in (PLAIN, TLS)}
        return {scheme: round(value, 3) for scheme, value in found.items()}

    best = min(DCP, key=lambda name: medians[name]["lost"])
    copy_s, write_s = samples[FLOOR_COPY]["seconds"], samples[FLOOR_WRITE]["seconds"]
    peer_s, loads = samples[best]["lost"], samples["load"]

    def of(name: str) -> dict[str, float]:
        one = samples[name]
        return {
            "stall_vs_memcpy": ratio(one["stall"], copy_s),
            "lost_vs_best_dcp": ratio(one["lost"], peer_s),
            "durable_vs_direct": ratio(one["durable"], write_s),
        }

    return {
        "bytes": size,
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "best_dcp": best,
        "medians": medians,
        "ratios": {
            **of(OURS),
            "lost_committed_vs_best_dcp": ratio(samples[OURS]["lost_committed"], peer_s),
            "standing": of(STANDS),
            "floor": of(LEAST),
            "upload_cpu_s_per_gb": {
                **cpu_s_per_gb(UPLOAD),
                "floor": cpu_s_per_gb(BARE),
                **{
                    name: round(medians[name]["cpu_s_per_gb"], 3)
                    for name in (SEND, SENDFILE, DIGESTS)
                },
            },
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
    parser.add_argument("--upload", choices=(PLAIN, TLS), default=PLAIN, help="of ours meanwhile")
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
        try:
            found = measure(args, lambda text: print(text, file=sys.stderr, flush=True))
        except OSError as error:
            parser.exit(1, f"{parser.prog}: {error}\n")
        finally:
            distributed.destroy_process_group()
    for name, values in found["medians"].items():
        print(f"{name:28}", "  ".join(f"{what} {value:.3f}" for what, value in values.items()))
    for name, value in found["ratios"].items():
        print(f"{name:28} {value}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
