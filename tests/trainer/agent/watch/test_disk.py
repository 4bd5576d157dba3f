"""A disk that stays full is reported once, from memory if necessary, and again when it has
space."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotd import wire
from spotd.wire import JournalEntry
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.journal import Journal, JournalReader
from trainer.agent.watch.disk import CONFIRM_S, LOW_MIB, DiskMonitor

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"
MIB = 1 << 20
SIZE_MIB = 4096


class Space:
    """The values of statvfs; `full` by default."""

    def __init__(self, **fields: int) -> None:
        self.f_frsize = 4096
        self.f_blocks = SIZE_MIB * MIB // 4096
        self.f_bfree = self.f_bavail = 0
        self.f_files, self.f_ffree = 1000, 10
        self.set(**fields)

    def set(self, **fields: int) -> None:
        vars(self).update(fields)


def blocks(mib: int) -> int:
    return mib * MIB // 4096


ROOM = {"f_bfree": blocks(LOW_MIB), "f_bavail": blocks(LOW_MIB)}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "j", tmp_path / "over", 1, now_us=lambda: 7)
    yield found
    found.close()


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    found = Space()
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    return found


def said(folder: Path) -> list[tuple[bool, str]]:
    entries = JournalReader(folder / "j", folder / "over", 0).read()
    return [(e.data["full"], e.data["text"]) for e in entries if e.kind == wire.DISK]


def check(disk: DiskMonitor, begin_s: float, end_s: float) -> None:
    """Check twice a second, as the agent does."""
    for half in range(int(begin_s * 2), int(end_s * 2) + 1):
        disk.check(half / 2)


def test_one_that_stays_full_is_told_once(tmp_path: Path, journal: Journal, space: Space) -> None:
    disk = DiskMonitor(tmp_path, journal, 0.0, full=False)
    check(disk, 0, CONFIRM_S - 0.5)
    assert said(tmp_path) == []
    check(disk, CONFIRM_S, 10 * CONFIRM_S)
    assert said(tmp_path) == [(True, f"0 of {SIZE_MIB} MiB are free at {tmp_path}")]
    space.set(**ROOM)
    check(disk, 10 * CONFIRM_S + 1, 20 * CONFIRM_S)
    assert said(tmp_path)[1:] == [(False, f"{LOW_MIB} of {SIZE_MIB} MiB are free at {tmp_path}")]


def test_one_that_is_full_again_and_again_does_not_stay_so(
    tmp_path: Path, journal: Journal, space: Space
) -> None:
    """A program that saves to files and removes old ones; also the other way round."""
    for full in (False, True):
        disk = DiskMonitor(tmp_path, journal, 0.0, full=full)
        for minute in range(10):
            space.set(f_bfree=0, f_bavail=0)
            check(disk, minute * 60, minute * 60 + 30)
            space.set(**ROOM)
            check(disk, minute * 60 + 30.5, minute * 60 + 59.5)
    assert said(tmp_path) == []


@pytest.mark.parametrize(
    ("fields", "uid", "full"),
    [
        (ROOM, 0, False),
        ({"f_bfree": blocks(LOW_MIB) - 1, "f_bavail": blocks(LOW_MIB) - 1}, 0, True),
        (ROOM | {"f_bavail": 0}, 0, False),  # what is kept for root is room to root
        (ROOM | {"f_bavail": 0}, 1000, True),
        (ROOM | {"f_ffree": 0}, 0, True),
        (ROOM | {"f_ffree": 0, "f_files": 0}, 0, False),  # it does not count them
        ({"f_blocks": 0}, 0, False),  # nor this one what it has
    ],
)
def test_what_counts_as_full(
    tmp_path: Path,
    journal: Journal,
    space: Space,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, int],
    uid: int,
    full: bool,
) -> None:
    space.set(**fields)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    check(DiskMonitor(tmp_path, journal, 0.0, full=False), 0, CONFIRM_S)
    assert [one for one, _ in said(tmp_path)] == [True] * full


def test_a_journal_that_is_refused_counts_whatever_is_said_to_be_free(
    tmp_path: Path, journal: Journal, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.set(**ROOM)
    disk = DiskMonitor(tmp_path, journal, 0.0, full=False)
    with monkeypatch.context() as over_quota:
        for error, full in ((errno.EIO, False), (errno.EDQUOT, True)):
            over_quota.setattr(os, "write", refusing(error))
            journal.append(wire.WARNING)
            check(disk, 100 * full, 100 * full + CONFIRM_S)
            assert [one for one, _ in said(tmp_path)] == [True] * full
    assert said(tmp_path)[0][1].startswith("it refuses the journal at")
    journal.retry()
    check(disk, 200, 200 + CONFIRM_S)
    assert [one for one, _ in said(tmp_path)] == [True, False]


def refusing(error: int) -> Callable[[int, bytes], int]:
    def write(_file: int, _data: bytes) -> int:
        raise OSError(error, os.strerror(error))

    return write


# --- a real agent on a real disk


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    """A machine with a disk of 96 MiB. Root is needed to mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={LOW_MIB + 32}m", "tmpfs", str(folder)]
    subprocess.run(["mount", *options], check=True)
    try:
        with Node(folder / "home", environ={"SPOTD_DISK_FULL_S": "1"}) as node:
            yield node
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def ballast(node: Node) -> Path:
    return node.home.parent / "ballast"


def is_full(node: Node) -> bool:
    """Fill the remaining space and return whether it is full."""
    try:
        with ballast(node).open("ab", buffering=0) as file:
            while file.write(bytes(MIB)):
                pass
    except OSError:
        return True
    return False


def heard(node: Node) -> list[JournalEntry]:
    entries = JournalReader(node.paths.journal, node.paths.overflow, 0).read()
    return [entry for entry in entries if entry.kind == wire.DISK]


@pytest.mark.root
def test_a_disk_that_gets_full_under_training(machine: Node) -> None:
    """It is reported and training continues; a restarted agent knows what was reported."""
    machine.run()
    machine.start(run=WORKER, engine="spotd")
    machine.wait_for(wire.PROGRESS)
    machine.live_on(2.0)
    assert heard(machine) == []
    ballast(machine).write_bytes(bytes(40 * MIB))
    told = machine.wait_for(wire.DISK).data
    assert told["full"] is True
    assert told["text"].endswith(f"of {LOW_MIB + 32} MiB are free at {machine.paths.folder}")
    machine.kill_agent()
    machine.run()
    machine.live_on(3.0)
    assert len(heard(machine)) == 1
    ballast(machine).unlink()
    wait_until("there is room", lambda: len(heard(machine)) == 2)
    assert heard(machine)[1].data["full"] is False
    assert machine.is_program_alive()
    assert not {wire.UNWELL, wire.DRAINING, wire.EXITED} & set(machine.kinds())


@pytest.mark.root
def test_it_is_told_from_memory_where_nothing_can_be_written(machine: Node) -> None:
    machine.environ["SPOTD_DISK_FULL_S"] = "3"  # the last page of the journal is full by then
    machine.run()
    machine.start(run=WORKER, engine="spotd")
    machine.wait_for(wire.PROGRESS)
    wait_until("lines go to memory", lambda: is_full(machine) and machine.paths.overflow.exists())
    wait_until("it is told", lambda: heard(machine))
    assert wire.DISK not in machine.kinds()
    ballast(machine).unlink()
    wait_until("there is room", lambda: len(heard(machine)) == 2)
    assert machine.send(wire.RELEASE).ok
    assert machine.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    seqs = [entry.seq for entry in machine.journal()]
    assert seqs == list(range(1, len(seqs) + 1))
