"""What the job has in buckets, copied here before its caches and its `setup`; at those that
are to be mounted (`mounting.py`) it looks. The work is that of a process beside us
(`trainer.mounts`), which counts what it reads. We tell that, each minute and at the end; what the
journal has already is not told again by an agent that comes after."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from spotd import wire
from spotd.wire import Bucket, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.journal import Journal, JournalReader
from trainer.agent.base.paths import AgentPaths
from trainer.agent.base.pythons import find_python
from trainer.agent.base.side_programs import start_beside
from trainer.mounts.byte_counter import Source, counted

TELL_EVERY_S = 60.0
_LOOK_S = 0.2


def copy_buckets(site: AgentContext, start: StartDocument, given_up: Callable[[], bool]) -> str:
    """Why they are not all here; or nothing. Waits."""
    if not start.buckets:
        return ""
    places = site.places
    urls = [url for one in start.buckets for url in (one.url, one.near) if url]
    python = find_python(places.home, *urls)
    if not python:
        text = "no Python of 3.11 or newer here has obstore and xxhash: see the warning before"
        return f"file_mounts.{start.buckets[0].target}: {text}"
    copied = Copied(places, site.journal, site.monotonic())
    order = [_told(places, bucket) for bucket in start.buckets]
    try:
        process = start_beside(python, "trainer.mounts", order, str(copied.folder))
    except OSError as error:
        return f"buckets cannot be read: {error}"
    with process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            if given_up():
                process.kill()
            copied.tell(site.monotonic())
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        said = process.stdout.read()
    copied.tell(site.monotonic(), last=True)
    if process.returncode == 0:
        return ""
    with suppress(ValueError, KeyError):
        return str(json.loads(said)["error"])
    return f"buckets were not read: code {process.returncode}; see agent.log"


class Copied:
    """What the journal is to have of the bytes that came: with the URL of the store that they came
    from, which of a data set only the node knows."""

    def __init__(self, places: AgentPaths, journal: Journal, now: float) -> None:
        self._journal, self._tell_at = journal, now + TELL_EVERY_S
        self.folder = places.folder / "copied"
        self._told: dict[Source, int] = {}
        for entry in JournalReader(places.journal, places.overflow, 0).read():
            if entry.kind == wire.MOUNT_READ and "url" in entry.data:
                self._note((entry.data["target"], entry.data["url"]), entry.data["bytes"])

    def tell(self, now: float, *, last: bool = False) -> None:
        """Once in a while, or as the `last` of it."""
        if not last and now < self._tell_at:
            return
        self._tell_at = now + TELL_EVERY_S
        for source, size in counted(self.folder).items():
            news = size - self._told.get(source, 0)
            if news > 0:
                target, url = source
                told = {"target": target, "bytes": news, "url": url}
                self._journal.append(wire.MOUNT_READ, told)
                self._note(source, news)

    def _note(self, source: Source, size: int) -> None:
        self._told[source] = self._told.get(source, 0) + size


def _told(places: AgentPaths, bucket: Bucket) -> dict[str, object]:
    folder = places.below_workdir(str(Path(bucket.target).expanduser()))
    name = hashlib.sha256(f"{folder} {bucket.url}".encode()).hexdigest()[:32]
    note = places.home / "mounts" / f"{name}.json"
    mount = {**asdict(bucket), "options": dict(bucket.options)}
    return {**mount, "folder": str(folder), "note": str(note)}
