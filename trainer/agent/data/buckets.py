"""Copy the job's buckets to the machine before its caches and its `setup`.

A helper process (`trainer.mounts`) does the work and counts the bytes read; for buckets that are
mounted it only checks the mount point's folder. The counts are reported each minute and at the end.
A restarted agent does not repeat counts that are already in the journal.
"""

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
from trainer.agent.base.pythons import find_python, start_side_program
from trainer.mounts.byte_counter import Source, read_counts

REPORT_EVERY_S = 60.0
_POLL_S = 0.2


def copy_buckets(context: AgentContext, start: StartDocument, cancelled: Callable[[], bool]) -> str:
    """Copy all buckets and return the error, or "". Blocks."""
    if not start.files.buckets:
        return ""
    paths = context.paths
    urls = [url for bucket in start.files.buckets for url in (bucket.url, bucket.near) if url]
    python = find_python(paths.home, *urls)
    if not python:
        text = "no Python 3.11 or newer here has obstore and xxhash: see the previous warning"
        return f"file_mounts.{start.files.buckets[0].target}: {text}"
    report = CopyReport(paths, context.journal, context.monotonic())
    request = [_bucket_request(paths, bucket) for bucket in start.files.buckets]
    try:
        process = start_side_program(python, "trainer.mounts", request, str(report.folder))
    except OSError as error:
        return f"buckets cannot be read: {error}"
    with process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            if cancelled():
                process.kill()
            report.report(context.monotonic())
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        output = process.stdout.read()
    report.report(context.monotonic(), last=True)
    if process.returncode == 0:
        return ""
    with suppress(ValueError, KeyError):
        return str(json.loads(output)["error"])
    return f"buckets were not read: code {process.returncode}; see agent.log"


class CopyReport:
    """Reports copied bytes to the journal by target and store URL. Only the node knows which copy
    of a data set it read."""

    def __init__(self, paths: AgentPaths, journal: Journal, now: float) -> None:
        self._journal, self._report_at = journal, now + REPORT_EVERY_S
        self.folder = paths.folder / "copied"
        self._reported: dict[Source, int] = {}
        for entry in JournalReader(paths.journal, paths.overflow, 0).read():
            if entry.kind == wire.MOUNT_READ and "url" in entry.data:
                self._add((entry.data["target"], entry.data["url"]), entry.data["bytes"])

    def report(self, now: float, *, last: bool = False) -> None:
        """Report new bytes at intervals, or all of them with `last`."""
        if not last and now < self._report_at:
            return
        self._report_at = now + REPORT_EVERY_S
        for source, size in read_counts(self.folder).items():
            new_bytes = size - self._reported.get(source, 0)
            if new_bytes > 0:
                target, url = source
                entry = {"target": target, "bytes": new_bytes, "url": url}
                self._journal.append(wire.MOUNT_READ, entry)
                self._add(source, new_bytes)

    def _add(self, source: Source, size: int) -> None:
        self._reported[source] = self._reported.get(source, 0) + size


def _bucket_request(paths: AgentPaths, bucket: Bucket) -> dict[str, object]:
    folder = paths.in_workdir(str(Path(bucket.target).expanduser()))
    name = hashlib.sha256(f"{folder} {bucket.url}".encode()).hexdigest()[:32]
    note = paths.home / "mounts" / f"{name}.json"
    mount = {**asdict(bucket), "options": dict(bucket.options)}
    return {**mount, "folder": str(folder), "note": str(note)}
