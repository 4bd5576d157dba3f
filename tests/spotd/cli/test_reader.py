"""docs/read_checkpoint.py in a process without spotd, on a folder and on a real S3 server."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from providers.stores import open_store
from spotd.demo.bucket import CREDENTIALS
from spotd.demo.s3 import serving
from spotd.wire import Pin, pin_key
from tests.spotd.api.rig import Rig
from tests.spotd.cli.saves import Saver
from tests.spotd.cli.sharded import save_sharded, tensor_bytes
from trainer.saver.reader import read_manifest

READER = Path("docs/read_checkpoint.py").absolute()
LINES = """
import runpy, sys

for name in ("spotd", "trainer", "providers"):
    sys.modules[name] = None  # whoever imports it gets an ImportError
reader, folder, bucket, job, out = sys.argv[1:]
read = runpy.run_path(reader)
for url in (folder, bucket):
    get = read["open_store"](url)
    assert read["find"](get, job)["step"] == 20
    assert read["find"](get, job, step=10)["step"] == 10
    try:
        read["find"](get, job, step=11)
    except LookupError as error:
        print(error)
sys.argv = [reader, bucket, job, "--pin", "best", "--out", out]
runpy.run_path(reader, run_name="__main__")
sys.argv = [reader, folder, job, "--step", "20"]
try:
    runpy.run_path(reader, run_name="__main__")
except ValueError as error:
    print(error)
"""


def test_reader_reads_checkpoints_and_detects_damage(rig: Rig, tmp_path: Path) -> None:
    import torch

    saver = Saver(rig, rig.submit())
    original = save_sharded(saver, 10)
    saver.save(20)
    pin = saver.fence.head.previous[0] if saver.fence.head else None
    assert pin is not None
    saver.store.put(pin_key(saver.id, "best"), Pin("best", pin).to_bytes())
    with serving() as bucket:
        copy = open_store(bucket.url, bucket.options)
        for info in saver.store.list("jobs/"):
            copy.put(info.key, saver.store.get(info.key)[0])
        shard = min(saver.file("jobs").rglob("s000000000020-*/r00000-00002"))
        data = bytearray(shard.read_bytes())
        data[700] ^= 1
        shard.write_bytes(data)
        out = tmp_path / "state.pt"
        command = [str(READER), rig.checkpoint_store, bucket.url, saver.id, str(out)]
        completed = subprocess.run(
            [sys.executable, "-c", LINES, *command],
            env={
                **os.environ,
                **{f"AWS_{name.upper()}": value for name, value in CREDENTIALS.items()},
                "AWS_ENDPOINT_URL": bucket.endpoint,
                "AWS_ALLOW_HTTP": "true",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    assert lines[:2] == ["no such checkpoint; there are steps [20, 10]"] * 2
    assert "step 10, saved by 2 ranks" in lines
    assert lines[-1].endswith("r00000-00002 is damaged at byte 512")
    read = torch.load(out, weights_only=True)
    assert (read.pop("step"), read.pop("state")["config"]) == (10, {"width": 30})
    assert read.keys() == original.keys()
    for name, tensor in original.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape), name
        assert tensor_bytes(read[name]) == tensor_bytes(tensor), name


def test_reader_reads_shards_in_another_store(rig: Rig, tmp_path: Path) -> None:
    """As a job leaves them that saves near its machine."""
    saver = Saver(rig, rig.submit())
    save_sharded(saver, 10)
    head = saver.fence.head
    assert head is not None
    assert head.current is not None
    east = open_store((tmp_path / "east").as_uri())
    manifest = read_manifest(saver.store, head.current)
    streams = []
    for stream in manifest.streams:
        for shard in stream.shards:
            east.put(shard.key, saver.store.get(shard.key)[0])
            saver.store.delete(shard.key)
        elsewhere = tuple(replace(shard, store=east.url) for shard in stream.shards)
        streams.append(replace(stream, shards=elsewhere))
    saver.fence.commit(replace(manifest, step=11, streams=tuple(streams)))
    completed = subprocess.run(
        [sys.executable, str(READER), rig.checkpoint_store, saver.id],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "step 11, saved by 2 ranks" in completed.stdout, completed.stderr
    assert "model.rows.weight  torch.bfloat16  [40, 30]" in completed.stdout, completed.stderr
