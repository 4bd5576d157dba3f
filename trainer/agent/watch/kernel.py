"""Watch the kernel's messages for Xid errors of NVIDIA's driver.

Their meaning is in NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, read 2026-11). Its
immediate action is a GPU reset for 64, 95, 119 and 120, and a restart of the machine for 79. The
pages on 48 and 74 advise to drain the machine. 94 is a memory error contained to one program, which
has to be restarted. On a rented machine, a reset or restart means another machine. Others have no
consequence here: 13, 31 and 43 are usually the program's own fault, and 63 is a repair.
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
_RECORD_BYTES = 8192  # the longest record of /dev/kmsg
POLL_S = 1.0


class Grade(Enum):
    """The severity."""

    FATAL = "the machine is given up"
    CONTAINED = "the program dies of it, and is restarted once"
    NOTED = "for people to know"


@dataclass(frozen=True)
class Xid:
    """An Xid error: the device's address, its number, and the driver's message."""

    device: str
    number: int
    message: str

    @property
    def grade(self) -> Grade:
        if self.number in _FATAL:
            return Grade.FATAL
        return Grade.CONTAINED if self.number in _CONTAINED else Grade.NOTED

    @property
    def text(self) -> str:
        """One sentence for people."""
        name = {**_FATAL, **_CONTAINED}.get(self.number, "")
        meaning = f" ({name})" if name else ""
        message = f": {self.message}" if self.message else ""
        return f"GPU {self.device} reports Xid {self.number}{meaning}{message}"


def find_xids(message: bytes) -> list[Xid]:
    """Return the Xid errors in kernel messages."""
    return [
        Xid(device.decode(), int(number), message.decode("utf-8", "replace").strip())
        for device, number, message in _XID.findall(message)
    ]


def read_messages(path: str, ended: threading.Event) -> Iterator[tuple[bytes, bool]]:
    """Yield the kernel's messages since boot until `ended`, each with whether it is new.

    Raises OSError if they cannot be read.
    """
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    is_new, rest = False, b""
    try:
        while not ended.is_set():
            try:
                data = os.read(source, _RECORD_BYTES)
            except BlockingIOError:
                data = b""
            except BrokenPipeError:
                continue  # overwritten before it was read
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield line, is_new
            if not data:
                is_new = True
                ended.wait(POLL_S)
    finally:
        os.close(source)


def _journalctl(ended: threading.Event) -> Iterator[tuple[bytes, bool]]:
    """Yield the same from systemd's journal, which may be readable when the kernel's device is
    not."""
    argv = ["journalctl", "--dmesg", "--follow", "--lines=all", "--output=cat"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:

        def stop() -> None:
            ended.wait()
            reader.kill()

        threading.Thread(target=stop, daemon=True).start()
        for line in reader.stdout or ():
            yield line, True
    raise OSError("journalctl has ended")


def watch_kernel(
    path: str,
    ended: threading.Event,
    on_xid: Callable[[Xid, bool], None],
    on_unreadable: Callable[[str], None],
) -> None:
    """Report each Xid until `ended`; the body of a thread.

    `on_unreadable` is called if the machine has NVIDIA devices but its kernel messages cannot be
    read.
    """
    for messages in (read_messages(path, ended), _journalctl(ended)):
        try:
            for line, is_new in messages:
                for xid in find_xids(line):
                    on_xid(xid, is_new)
        except OSError as error:
            _LOG.info("the kernel's messages: %s", error)
        if ended.is_set():
            return
    if any(Path("/dev").glob("nvidia[0-9]*")):
        on_unreadable("the kernel's messages cannot be read here: a GPU that fails is not noticed")
