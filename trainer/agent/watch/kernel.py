"""What the kernel says about the GPUs: NVIDIA's driver reports each error with an Xid number.

Which number means what is NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, read 2026-11):
its immediate action for 64, 95, 119, 120 is to reset the GPU, for 79 to restart the machine; 48 and
74 have a page of their own that ends in a drained machine; 94 is a memory error contained to one
program, which is to be restarted. On a rented machine a reset or a restart means another machine.
For all others (13, 31 and 43 are usually the program's own doing, 63 is a repair) nothing follows.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_LOG = logging.getLogger(__name__)
KMSG = "/dev/kmsg"
_XID = re.compile(rb"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6})(?!\d)(?:, )?([^\n]{0,200})")
_FATAL = {
    48: "double-bit ECC error",
    64: "memory remapping failure",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}
_CONTAINED = {94: "contained memory error"}
_RECORD_BYTES = 8192  # the longest that /dev/kmsg gives
LOOK_EVERY_S = 1.0


class Grade(Enum):
    """How bad it is."""

    FATAL = "the machine is to be given up"
    CONTAINED = "the program dies of it, and may begin again once"
    NOTED = "for people to know"


@dataclass(frozen=True)
class Xid:
    """One report: the device's address, the number, and the driver's own words."""

    device: str
    number: int
    words: str

    @property
    def grade(self) -> Grade:
        if self.number in _FATAL:
            return Grade.FATAL
        return Grade.CONTAINED if self.number in _CONTAINED else Grade.NOTED

    @property
    def text(self) -> str:
        """In one sentence."""
        name = {**_FATAL, **_CONTAINED}.get(self.number, "")
        meaning = f" ({name})" if name else ""
        words = f": {self.words}" if self.words else ""
        return f"GPU {self.device} reports Xid {self.number}{meaning}{words}"


def find_xids(message: bytes) -> list[Xid]:
    """The reports in some messages of the kernel; whatever else they say is passed over."""
    return [
        Xid(device.decode(), int(number), words.decode("utf-8", "replace").strip())
        for device, number, words in _XID.findall(message)
    ]


def follow(path: str, ended: threading.Event) -> Iterator[tuple[bytes, bool]]:
    """The kernel's messages since the machine booted, and whether they are news: the others were
    there before. Until `ended`. Raises OSError where they cannot be read."""
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    news, rest = False, b""
    try:
        while not ended.is_set():
            try:
                data = os.read(source, _RECORD_BYTES)
            except BlockingIOError:
                data = b""
            except BrokenPipeError:
                continue  # overwritten before we came to read it
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield line, news
            if not data:
                news = True
                ended.wait(LOOK_EVERY_S)
    finally:
        os.close(source)


def _journal(ended: threading.Event) -> Iterator[tuple[bytes, bool]]:
    """The same from systemd's journal, for who may read that and not the kernel's own device."""
    argv = ["journalctl", "--dmesg", "--follow", "--lines=all", "--output=cat"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:

        def stop() -> None:
            ended.wait()
            reader.kill()

        threading.Thread(target=stop, daemon=True).start()
        for line in reader.stdout or ():
            yield line, True
    raise OSError("journalctl has ended")


def watch(
    path: str,
    ended: threading.Event,
    hear: Callable[[Xid, bool], None],
    blind: Callable[[str], None],
) -> None:
    """Tell of each Xid until `ended`; the body of a thread. `blind` is called where a machine that
    has NVIDIA's devices lets nobody read what its kernel says."""
    for messages in (follow(path, ended), _journal(ended)):
        try:
            for line, news in messages:
                for xid in find_xids(line):
                    hear(xid, news)
        except OSError as error:
            _LOG.info("the kernel's messages: %s", error)
        if ended.is_set():
            return
    if any(Path("/dev").glob("nvidia[0-9]*")):
        blind("the kernel's messages cannot be read here: a GPU that fails is not noticed")
