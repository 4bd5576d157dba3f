"""More of what reads bytes from outside: on the node, beside the daemon, and the local cloud's."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from providers.local import scenario_file
from providers.local.scenario_fields import ScenarioError
from spotd.base.errors import UserError
from spotd.reaper import config as reaper
from spotd.wire import Package
from tests.fixtures.memory import MEMORY
from tests.fuzz import BREAK
from trainer.agent.data.packages import PackageError, put_package, unpack_packages
from trainer.agent.main.worker_link import WORKER_KINDS, WorkerLink
from trainer.agent.watch import gpus, kernel


class _Ear:
    """Hears what a training process says."""

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        assert kind in WORKER_KINDS
        assert isinstance(data, dict)

    def on_worker_exit(self, rank: int, code: int) -> None:
        assert isinstance(rank, int)
        assert isinstance(code, int)

    def on_step(self, rank: int, step: int) -> None:
        assert rank >= 0
        assert step >= 0

    def on_saver_request(self, argv: Sequence[str]) -> None:
        assert argv
        assert all(isinstance(word, str) for word in argv)

    def on_busy(self, for_s: float) -> None:
        assert abs(for_s) < 1e9

    def on_invalid_message(self, text: str) -> None:
        assert text

    def on_disconnect(self, rank: int) -> None:
        """Nothing more."""


def hear_worker(data: bytes) -> None:
    """Lines of a training process: a fact, or nonsense that is told."""
    link = WorkerLink.__new__(WorkerLink)  # without its socket
    link._listener = _Ear()
    for line in data.split(b"\n"):
        link._parse_hello(line)
        link._dispatch(line)


def read_reaper(data: bytes) -> None:
    """The reaper's configuration: a value, or an error that says what is wrong and what helps."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, "reaper.toml")
        path.write_bytes(data)
        told: UserError | None = None
        try:
            reaper.load(path, {})
        except UserError as error:
            told = error
        assert told is None or (told.text and told.try_)


def read_scenario(data: bytes) -> None:
    """A scenario of the local cloud: a value, or all that is wrong with it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, "scenario.toml")
        path.write_bytes(data)
        with contextlib.suppress(ScenarioError):
            found = scenario_file.load(path)
            assert 0 <= found.visibility_s < 1e16


def read_kernel(data: bytes) -> None:
    """What the kernel says: the driver's reports, each with a text."""
    for xid in kernel.find_xids(data):
        assert xid.text
        assert xid.grade


def read_gpus(data: bytes) -> None:
    """What nvidia-smi prints, twice and then in other words: what follows is said of known GPUs."""
    said, _, rows = data.decode("utf-8", "replace").partition("\f")
    watch, seen = gpus.GpuMonitor(), gpus.parse(said, rows=rows)
    assert all(gpu.busy is None or gpu.busy >= 0 for gpu in seen.gpus)
    for look in (seen, seen, gpus.parse(rows)):
        assert all(finding.text for finding in watch.judge(look))


Found = dict[str, tuple[object, ...]]


def _found(folder: Path) -> Found:
    """All that is in a folder, with what can be seen of it from outside."""
    found: Found = {}
    for path in (folder, *folder.rglob("*")):
        seen = path.lstat()
        if path.is_dir():
            found[str(path)] = (seen.st_mode, sorted(path.iterdir()))
            continue
        data = path.read_bytes() if path.is_file() and seen.st_size < 1 << 16 else b""
        found[str(path)] = (seen.st_mode, seen.st_nlink, seen.st_mtime_ns, seen.st_size, data)
    return found


def _archive(data: bytes) -> bytes:
    """Headers of what is not gzip yet are given the sums that they should have."""
    if data.startswith(b"\x1f\x8b"):
        return data
    blocks = bytearray(data)
    for start in range(0, len(blocks) - 511, 512):
        if blocks[start + 257 : start + 262] == b"ustar":
            blocks[start + 148 : start + 156] = b" " * 8
            total = sum(blocks[start : start + 512])
            blocks[start + 148 : start + 155] = b"%06o\0" % total
    return gzip.compress(blocks, 1)


def unpack(data: bytes) -> None:
    """Archives, one over the other: what is beside their folder is as it was, no link in it leads
    there, and of one that is refused nothing is left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        home, beside = Path(name, "home"), Path(name, "beside")
        work = beside / "x/a/work"
        work.mkdir(parents=True)
        for place in (beside, beside / "x", beside / "x/a"):
            (place / "b").write_text("another's")
        before, there = _found(beside), str(work)
        for part in data.split(BREAK)[:3]:
            had, archive = _found(work), _archive(part)
            digest = hashlib.sha256(archive).hexdigest()
            put_package(home, digest, io.BytesIO(archive))
            try:
                unpack_packages(home, work, [Package(digest, "")])
            except PackageError as error:
                told = str(error)
                assert told
                assert _found(work) == had
        after = {path: seen for path, seen in _found(beside).items() if not path.startswith(there)}
        assert after == {path: seen for path, seen in before.items() if path != there}
        for path in work.rglob("*"):
            assert os.path.realpath(path).startswith(there)
