"""What the next machine of a job needs until it trains, part by part, through the local cloud.

    python bench/startup.py [--samples 3] [--width 1536] [--setup-s 0] [--json FILE]

A job with a bucket (an S3 server on this machine) loses its machine again and again; each time the
next one's own journal and logs say how long it took to: pull its image (none here: the local
cloud's machines have no containers), run `setup` (which sleeps `--setup-s`), fetch the weights
ahead, start Python and join the other ranks (rendezvous; one rank here), build the model, and
restore, which is what the program still waits for. The floor is 2 x bytes / bandwidth; bandwidth
is that of reading the same shards from the same bucket, eight at once, unverified, in the same run.

By turns the machine dies, or is preempted with a notice. After a death all from the agent's hello
to the first step is held against the floor. After a notice the old machine trains until the next
one is ready, and what counts is the gap: from the last step there to the first one here, with the
last save, its way into the bucket and out of it, of which nothing can be fetched ahead.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from providers.stores import open_store
from spotd import wire
from spotd.api_routes import routes
from spotd.demo.box import Box, running_box, wait_for
from spotd.demo.bucket import bucket_server
from spotd.domain.phase import FINISHED
from spotd.store.sql_store import open_store as open_database
from trainer.fence import read_head
from trainer.saver.reader import read_manifest

READERS = 8  # as the saver has
PART_BYTES = 16 << 20
AWAIT_S = 180.0
SAVED_S = 8.0  # that each machine trains after its first checkpoint
ENDS: Mapping[str, Mapping[str, Any]] = {
    "death": {"kind": "none", "mode": "reset"},
    "notice": {"kind": "preempt", "mode": "notice", "notice_s": 60},
}
READY = re.compile(r"ready in ([\d.]+) s, ([\d.]+) s of it to import torch")
RESTORED = re.compile(r"restored in ([\d.]+) s(?: from (\w[\w ]*))?")
AHEAD = re.compile(r"fetched ahead: (\d+) bytes in ([\d.]+) s")
SCENARIO = "\n".join(
    f'[[zone]]\npersonality = "aws"\nregion = "r-{letter}"\nname = "r-{letter}a"\n'
    for letter in "abcdefghijklmnopqrstuvwx"
)


def job_text(options: argparse.Namespace) -> str:
    """A job that outlives all samples."""
    model = f"--layers 4 --heads 8 --width {options.width} --block 32 --batch 1"
    python = shlex.quote(sys.executable)
    return f"""\
name: startup
resources:
  cpus: 1+
  use_spot: true
  infra: aws
setup: sleep {options.setup_s}
run: {python} -m trainer.train --steps 1000000 --step-time-ms 200 --threads 1 {model}
spotd:
  checkpoint: {{engine: spotd, every: 4s}}
  progress_every: 0.5s
"""


def await_training(box: Box, job_id: str, struck: set[str]) -> Mapping[str, Any]:
    """The node that trains and was not struck yet."""

    def ask() -> Mapping[str, Any] | None:
        job = box.job(job_id)
        assert job["phase"] not in FINISHED, job["outcome_text"]
        nodes: list[dict[str, Any]] = job["nodes"]
        running = [node for node in nodes if node["state"] == "running"]
        return next((node for node in running if node["instance_id"] not in struck), None)

    return wait_for(f"machine {len(struck) + 1} to train", ask, AWAIT_S, every_s=0.1) or {}


def await_saved(box: Box, job_id: str, generation: int) -> None:
    """Until HEAD has a checkpoint of that attempt."""
    store = open_store(box.checkpoints_url, box.store_options)

    def saved() -> bool:
        entry = read_head(store, job_id)
        current = entry[0].current if entry is not None else None
        return current is not None and current.generation == generation

    wait_for(f"attempt {generation} to save", saved, AWAIT_S, every_s=0.2)


def bandwidth_bytes_per_s(box: Box, job_id: str) -> tuple[float, int]:
    """Of reading HEAD's newest checkpoint from the bucket, and that checkpoint's bytes."""
    store = open_store(box.checkpoints_url, box.store_options)
    entry = read_head(store, job_id)
    assert entry is not None
    assert entry[0].current is not None
    manifest = read_manifest(store, entry[0].current)
    parts = [
        (shard.key, start, min(PART_BYTES, shard.size - start))
        for shard in manifest.shards
        for start in range(0, shard.size, PART_BYTES)
    ]
    began_s = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        read = sum(pool.map(lambda part: len(store.get_range(*part)), parts))
    return read / (time.perf_counter() - began_s), read


def sample(box: Box, job_id: str, generation: int) -> dict[str, Any]:
    """The parts of one resume, in seconds."""
    [path] = box.folder.glob(f"cloud/**/{job_id}/g{generation}/journal.jsonl")
    lines = [wire.parse_line(line) for line in path.read_bytes().splitlines()]
    entries = [line for line in lines if isinstance(line, wire.JournalEntry)]
    at_s = {entry.kind: entry.at_us / 1e6 for entry in reversed(entries)}  # the first of each
    data = {entry.kind: entry.data for entry in entries}
    log = (path.parent / "logs" / "rank0.log").read_text()
    ready, restored = READY.search(log), RESTORED.search(log)
    assert ready is not None, log
    assert restored is not None, log
    ahead = AHEAD.search((path.parent / "saver.log").read_text())
    prepare_s, import_s = float(ready[1]), float(ready[2])
    restore_s = float(restored[1])
    return {
        "image_s": float(data.get(wire.IMAGE, {}).get("seconds", 0.0)),
        "setup_s": float(data[wire.SETUP]["seconds"]),
        "weights_ahead_s": float(ahead[2]) if ahead else 0.0,
        "weights_from": restored[2] or "",
        "start_and_rendezvous_s": round(at_s[wire.READY] - at_s[wire.STARTED] - prepare_s, 3),
        "torch_import_s": import_s,
        "model_and_data_s": round(prepare_s - import_s, 3),
        "restore_s": restore_s,
        "hello_to_first_step_s": round(at_s[wire.PROGRESS] - at_s[wire.HELLO], 3),
    }


def gap_s(box: Box, job_id: str, generation: int) -> float:
    """From the last step that the attempt before reported to the first one of this attempt."""
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    store = open_database(url, now=lambda: 0, notify=lambda: None, deployment_factory=str)
    try:
        rows = store.progress.rows(job_id)
    finally:
        store.close()
    before_us = max(row.last_at_us for row in rows if row.generation == generation - 1)
    first_us = min(row.first_at_us for row in rows if row.generation == generation)
    return round((first_us - before_us) / 1e6, 3)


def measure(box: Box, options: argparse.Namespace) -> dict[str, Any]:
    """All samples, and the floor."""
    job_id = box.submit(job_text(options), "startup")
    struck: set[str] = set()
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in ENDS}
    rates, size = [], 0
    node = await_training(box, job_id, struck)
    for name in list(ENDS) * options.samples:
        await_saved(box, job_id, int(node["generation"]))
        time.sleep(SAVED_S)
        box.preempt(node["instance_id"], **ENDS[name])
        struck.add(node["instance_id"])
        node = await_training(box, job_id, struck)
        generation = int(node["generation"])
        gap = {"gap_s": gap_s(box, job_id, generation)}
        samples[name].append(sample(box, job_id, generation) | gap)
        rate, size = bandwidth_bytes_per_s(box, job_id)
        rates.append(rate)
        print(name, json.dumps(samples[name][-1]), file=sys.stderr, flush=True)
    box.client.call(routes.CANCEL_JOB(job=job_id))
    box.wait_phase(job_id, set(FINISHED), 60)
    rate = statistics.median(rates)
    floor_s = 2 * size / rate
    medians = {name: median_of(found) for name, found in samples.items()}
    death, notice = medians["death"], medians["notice"]
    return {
        "bytes": size,
        "bandwidth_bytes_per_s": round(rate),
        "floor_s": round(floor_s, 3),
        "medians": medians,
        "ratios": {
            "death_vs_floor": round(death["hello_to_first_step_s"] / floor_s, 3),
            "notice_vs_floor": round(notice["gap_s"] / floor_s, 3),
            "restore_ahead_vs_asked": round(death["restore_s"] / notice["restore_s"], 3),
        },
        "samples": samples,
        "bandwidths": [round(one) for one in rates],
    }


def median_of(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Of each part that is a number."""
    numbers = [name for name, value in samples[0].items() if isinstance(value, float)]
    return {name: round(statistics.median(one[name] for one in samples), 3) for name in numbers}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--setup-s", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spotd-") as name:
        folder = Path(name)
        with (
            bucket_server(folder / "bucket.log") as bucket,
            running_box(folder / "box", SCENARIO, bucket=bucket) as box,
        ):
            report = measure(box, options)
    shown = {key: value for key, value in report.items() if key not in {"samples", "bandwidths"}}
    print(json.dumps(shown, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
