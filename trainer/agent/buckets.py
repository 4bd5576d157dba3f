"""What the job has in buckets, copied here before its caches and its `setup`; at those that
are to be mounted (`mounting.py`) it looks. The work is that of a process beside us
(`trainer.mounts`)."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from spotd.wire import Bucket, StartDocument
from trainer.agent.beside import start_beside
from trainer.agent.places import Places
from trainer.agent.pythons import find_python

_LOOK_S = 0.2


def copy_buckets(places: Places, start: StartDocument, given_up: Callable[[], bool]) -> str:
    """Why they are not all here; or nothing. Waits."""
    if not start.buckets:
        return ""
    urls = [url for one in start.buckets for url in (one.url, one.near) if url]
    python = find_python(places.home, *urls)
    if not python:
        text = "no Python of 3.11 or newer here has obstore and xxhash: see the warning before"
        return f"file_mounts.{start.buckets[0].target}: {text}"
    try:
        process = start_beside(python, "trainer.mounts", [_told(places, b) for b in start.buckets])
    except OSError as error:
        return f"buckets cannot be read: {error}"
    with process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            if given_up():
                process.kill()
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        said = process.stdout.read()
    if process.returncode == 0:
        return ""
    with suppress(ValueError, KeyError):
        return str(json.loads(said)["error"])
    return f"buckets were not read: code {process.returncode}; see agent.log"


def _told(places: Places, bucket: Bucket) -> dict[str, object]:
    folder = places.below_workdir(str(Path(bucket.target).expanduser()))
    name = hashlib.sha256(f"{folder} {bucket.url}".encode()).hexdigest()[:32]
    note = places.home / "mounts" / f"{name}.json"
    mount = {**asdict(bucket), "options": dict(bucket.options)}
    return {**mount, "folder": str(folder), "note": str(note)}
