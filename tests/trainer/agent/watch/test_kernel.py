"""A GPU failure in the kernel's log makes the agent give the machine up."""

from __future__ import annotations

import shlex
import sys
import threading
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node
from trainer.agent.watch.kernel import Grade, Xid, find_xids, watch_kernel

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"
# As the driver words them; /dev/kmsg puts "priority,number,microseconds,flags;" before each.
BOOT = b"6,1201,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15\n"
OFF_THE_BUS = (
    b"3,1320,81230411,-;NVRM: Xid (PCI:0000:c0:00): 79, pid='<unknown>', name=<unknown>, "
    b"GPU has fallen off the bus.\n"
)
CONTAINED = (
    b"3,1321,81230500,-;NVRM: Xid (PCI:0000:3b:00): 94, pid=4211, name=python, "
    b"Contained: LTC (0x4,0x0). RST: No, D-RST: No\n"
)
THEIR_OWN = b"3,1322,81230600,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=4211, Graphics Exception\n"


@pytest.mark.parametrize(
    ("message", "device", "number", "grade"),
    [
        (OFF_THE_BUS, "0000:c0:00", 79, Grade.FATAL),
        (b"NVRM: Xid (0000:03:00): 48, An uncorrectable", "0000:03:00", 48, Grade.FATAL),
        (b"NVRM: Xid (PCI:0000:3b:00): 64, pid=1", "0000:3b:00", 64, Grade.FATAL),
        (b"NVRM: Xid (PCI:0000:3b:00): 74, pid=1", "0000:3b:00", 74, Grade.FATAL),
        (b"NVRM: Xid (PCI:0000:3b:00): 95, pid=1", "0000:3b:00", 95, Grade.FATAL),
        (b"NVRM: Xid (PCI:0000:3b:00): 119, pid=1", "0000:3b:00", 119, Grade.FATAL),
        (b"NVRM: Xid (PCI:0000:3b:00): 120, pid=1", "0000:3b:00", 120, Grade.FATAL),
        (CONTAINED, "0000:3b:00", 94, Grade.CONTAINED),
        (THEIR_OWN, "0000:3b:00", 13, Grade.NOTED),
        (b"NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper", "0000:10:1c", 63, Grade.NOTED),
        (b"NVRM: Xid (PCI:0000:3b:00): 31, pid=1", "0000:3b:00", 31, Grade.NOTED),
        (b"NVRM: Xid (PCI:0000:3b:00): 43, pid=1", "0000:3b:00", 43, Grade.NOTED),
        (b"NVRM: Xid (PCI:0000:3b:00): 9999", "0000:3b:00", 9999, Grade.NOTED),
    ],
)
def test_the_grade_of_a_number(message: bytes, device: str, number: int, grade: Grade) -> None:
    (xid,) = find_xids(message)
    assert (xid.device, xid.number, xid.grade) == (device, number, grade)
    assert f"Xid {number}" in xid.text


@pytest.mark.parametrize(
    "message",
    [
        BOOT,
        b"NVRM: Xid (PCI:0000:3b:00)",
        b"NVRM: Xid (): 79",
        b"somebody: Xid 79",
        b"NVRM: Xid (PCI:../..): x",
    ],
)
def test_what_is_no_report(message: bytes) -> None:
    assert find_xids(message) == []


def test_what_was_there_before_is_told_from_news(tmp_path: Path) -> None:
    kmsg, ended, heard = tmp_path / "kmsg", threading.Event(), list[tuple[Xid, bool]]()
    kmsg.write_bytes(BOOT + CONTAINED)

    def hear(xid: Xid, news: bool) -> None:
        heard.append((xid, news))

    thread = threading.Thread(target=watch_kernel, args=(str(kmsg), ended, hear, heard.clear))
    thread.start()
    wait_until("what was there", lambda: heard)
    with kmsg.open("ab") as file:
        file.write(OFF_THE_BUS[:40])
        file.flush()
        file.write(OFF_THE_BUS[40:])
    wait_until("the news", lambda: len(heard) == 2)
    ended.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert [(xid.number, news) for xid, news in heard] == [(94, False), (79, True)]


@pytest.fixture
def kmsg(node: Node) -> Path:
    path = node.home.parent / "kmsg"
    path.write_bytes(BOOT)
    node.environ["SPOTD_KMSG"] = str(path)
    return path


def says(kmsg: Path, message: bytes) -> None:
    with kmsg.open("ab") as file:
        file.write(message)


def test_a_gpu_that_fails_ends_training_on_its_machine(node: Node, kmsg: Path) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    says(kmsg, OFF_THE_BUS)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_UNFIT
    unwell = node.wait_for(wire.UNWELL).data
    assert (unwell["what"], unwell["again"]) == ("gpu", False)
    assert "Xid 79 (fallen off the bus)" in unwell["text"]
    wait_until("the program is gone", lambda: not node.is_program_alive())


def test_a_gpu_that_failed_before_we_came_is_found(node: Node, kmsg: Path) -> None:
    says(kmsg, OFF_THE_BUS)
    node.run()
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_UNFIT


def test_after_a_contained_error_the_program_begins_again_once(node: Node, kmsg: Path) -> None:
    says(kmsg, CONTAINED)  # of before: it killed somebody else
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    assert wire.UNWELL not in node.kinds()
    says(kmsg, CONTAINED)
    wait_until("the second begin", lambda: node.kinds().count(wire.STARTED) == 2)
    wait_until("that it is heard", lambda: node.kinds().count(wire.CLAIMED) == 2)
    says(kmsg, CONTAINED)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_UNFIT
    assert [entry.data["again"] for entry in node.entries(wire.UNWELL)] == [True, False]


def test_what_programs_do_to_themselves_is_told_once(node: Node, kmsg: Path) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    says(kmsg, THEIR_OWN * 50)
    says(kmsg, THEIR_OWN.replace(b" 13,", b" 31,"))

    def told() -> list[str]:
        texts = [entry.data["text"] for entry in node.entries(wire.WARNING)]
        return [text for text in texts if "Xid" in text]

    wait_until("both", lambda: len(told()) >= 2)
    assert ["Xid 13" in text for text in told()] == [True, False]
    assert wire.UNWELL not in node.kinds()
    assert node.is_program_alive()
