"""The journal's numbering through crashes and full disks."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.journal import Journal, JournalReader

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"


def open_journal(folder: Path) -> Journal:
    return Journal(folder / "j", folder / "over", 3, now_us=lambda: 7)


def numbers(folder: Path, after: int = 0) -> list[int]:
    reader = JournalReader(folder / "j", folder / "over", after)
    return [entry.seq for entry in reader.read()]


def test_it_numbers_on_after_a_restart(tmp_path: Path) -> None:
    first = open_journal(tmp_path)
    first.append(wire.HELLO, {"a": 1})
    first.append(wire.WARNING, {})
    first.close()
    second = open_journal(tmp_path)
    assert [entry.kind for entry in second.entries] == [wire.HELLO, wire.WARNING]
    entry = second.append(wire.READY)
    second.close()
    assert (entry.seq, entry.at_us, entry.generation) == (3, 7, 3)
    assert numbers(tmp_path) == [1, 2, 3]
    assert numbers(tmp_path, after=2) == [3]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_cut_away(tmp_path: Path, cut: int) -> None:
    journal = open_journal(tmp_path)
    journal.append(wire.HELLO)
    journal.append(wire.WARNING, {"text": "x" * 50})
    journal.close()
    path = tmp_path / "j"
    path.write_bytes(path.read_bytes()[:-cut])
    assert numbers(tmp_path) == [1]
    again = open_journal(tmp_path)
    again.append(wire.READY)
    again.close()
    assert numbers(tmp_path) == [1, 2]


def test_a_last_line_of_garbage_is_cut_away(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(wire.HELLO)
    journal.close()
    with (tmp_path / "j").open("ab") as file:
        file.write(b"\0\0\0\0\n")
    again = open_journal(tmp_path)
    again.append(wire.READY)
    again.close()
    assert numbers(tmp_path) == [1, 2]


def test_a_reader_sees_only_whole_lines(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(wire.HELLO)
    journal.close()
    path = tmp_path / "j"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    reader = JournalReader(path, tmp_path / "over", 0)
    assert reader.read() == []
    path.write_bytes(whole)
    assert [entry.seq for entry in reader.read()] == [1]
    assert reader.read() == []


def test_numbers_are_never_used_twice(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(wire.HELLO)
    assert journal.skip_to(40)
    assert not journal.skip_to(12)
    assert journal.append(wire.READY).seq == 41
    journal.close()
    assert numbers(tmp_path, after=40) == [41]


FULL = """
import resource, signal, sys
from pathlib import Path
from trainer.agent.base.journal import Journal
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
told = []
journal = Journal(folder / "j", folder / "over", 3, now_us=lambda: 7)
journal.on_append = told.append
journal.append("hello")
# Room for two more lines and a part of a third.
resource.setrlimit(resource.RLIMIT_FSIZE, (260, limit))
over = resource.getrlimit(resource.RLIMIT_FSIZE)
for number in range(3):
    journal.append("notice", {"n": number})
if sys.argv[2] == "killed":
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
journal.retry()
journal.append("exited")
assert told == [1, 2, 3, 4, 5], told
journal.close()
"""


def fill(folder: Path, how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FULL, str(folder), how], check=False)
    return done.returncode


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    assert fill(tmp_path, "room again") == 0
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert not (tmp_path / "over").exists()


def test_a_broken_disk_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a partly written line can be removed, and the notice is still reported."""
    journal = open_journal(tmp_path)
    journal.append(wire.HELLO)

    def write_a_part(file: int, data: bytes) -> int:
        return write(file, data[:9])

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    write = os.write
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", write_a_part)
        broken.setattr(os, "ftruncate", refuse)
        assert journal.append(wire.NOTICE).seq == 2
        assert journal.out_of_space, "there was room for a part"
        assert numbers(tmp_path) == [1, 2], "from memory"
        assert journal.append(wire.DRAINING).seq == 3
        assert not journal.out_of_space, "it is broken, not full"
    journal.append(wire.READY)
    journal.close()
    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert not (tmp_path / "over").exists()


def test_a_kill_while_the_disk_is_full_loses_nothing(tmp_path: Path) -> None:
    assert fill(tmp_path, "killed") == -9
    whole = (tmp_path / "j").read_bytes()
    assert whole.endswith(b"\n")
    assert len(whole.splitlines()) == 3
    assert (tmp_path / "over").exists()
    assert numbers(tmp_path) == [1, 2, 3, 4]
    again = open_journal(tmp_path)
    assert [entry.seq for entry in again.entries] == [1, 2, 3, 4]
    again.append(wire.READY)
    again.retry()
    again.close()
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert len((tmp_path / "j").read_bytes().splitlines()) == 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB. Root is needed to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_under_the_whole_agent(small_disk: Path) -> None:
    """A notice can be read, training continues, and the journal is complete in the end."""
    with serve_metadata("aws") as service:
        node = Node(small_disk / "home", watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=f"yes fill | head -c 50000; exec {WORKER}", engine="spotd")
            node.wait_for(wire.PROGRESS)
            wait_until("the disk is full", lambda: is_full(small_disk))
            wait_until("lines go to memory", node.paths.overflow.exists)
            service.publish("rebalance", int((time.time() + 60) * 1e6))
            reader = JournalReader(node.paths.journal, node.paths.overflow, 0)
            found: list[str] = []

            def heard(kind: str) -> bool:
                found.extend(entry.kind for entry in reader.read())
                return kind in found

            wait_until("the notice", lambda: heard(wire.NOTICE))
            wait_until("training goes on", lambda: found.count(wire.PROGRESS) > 50 or heard(""))
            assert wire.NOTICE not in node.kinds(), "it was heard from memory"
            (small_disk / "ballast").unlink()
            wait_until("it is on disk again", lambda: not node.paths.overflow.exists())
            node.send(wire.RELEASE)
            assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
            seqs = [entry.seq for entry in node.journal()]
            assert seqs == list(range(1, len(seqs) + 1))
            assert wire.NOTICE in node.kinds()


def is_full(folder: Path) -> bool:
    """Fill the remaining space and return whether it is full."""
    try:
        with (folder / "ballast").open("ab") as file:
            file.write(b"x" * 4096)
    except OSError:
        return True
    return False
