"""Test that the demo's S3 server serves a bucket, and never outlives the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ConflictError
from spotd.demo import bucket
from spotd.demo.box import Box, wait_for
from tests.fixtures.processes import alive
from tests.fixtures.waiting import LIMIT_S

HOLDER = """
import os, sys
from pathlib import Path
from spotd.demo.bucket import bucket_server
with bucket_server(Path(sys.argv[1])) as made:
    [child] = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    print(child, flush=True)
    sys.stdin.read()
"""


def test_it_serves_a_bucket_with_conditional_writes(tmp_path: Path) -> None:
    with bucket.bucket_server(tmp_path / "log") as made:
        store = open_store(made.url, made.options)
        store.put_if("jobs/j1/HEAD", b"1", None)
        with pytest.raises(ConflictError):
            store.put_if("jobs/j1/HEAD", b"2", None)
        assert store.get("jobs/j1/HEAD")[0] == b"1"


def test_it_ends_with_who_has_started_it_however_that_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "log")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        server = int(holder.stdout.readline())
        assert alive(server)
        holder.send_signal(signal.SIGKILL)
        wait_for("the server's end", lambda: not alive(server), LIMIT_S)


def test_one_that_cannot_start_shows_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "moto.py").write_text("raise SystemExit('no moto today')")
    with (
        pytest.raises(OSError, match="did not start:\nno moto today"),
        bucket.bucket_server(tmp_path / "log"),
    ):
        raise AssertionError("it started")


def test_a_box_keeps_its_checkpoints_there_and_its_key_in_a_file(tmp_path: Path) -> None:
    made = bucket.Bucket("http://127.0.0.1:1", folder="f")
    box = Box(tmp_path, bucket=made)
    box.write_config()
    text = box.config_path.read_text()
    assert 'store = "s3://spotd/f"' in text
    assert f'secret_access_key_file = "{tmp_path / "bucket-key"}"' in text
    assert "secret_access_key = " not in text
    assert box.store_options == made.options
