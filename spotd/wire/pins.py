"""Pins in a job's authority store: checkpoints that retention never deletes."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from spotd.wire.checkpoints import HeadRef
from spotd.wire.fields import WireError, encode, read_count, read_field, read_object

VERSION = 1
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


def pin_folder(job_id: str) -> str:
    """Return the prefix of the keys of a job's pins."""
    return f"jobs/{job_id}/pins/"


def pin_key(job_id: str, name: str) -> str:
    """Return the key of a pin. Raises ValueError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of a pin: write up to 31 of a-z, 0-9 and -")
    return pin_folder(job_id) + name


@dataclass(frozen=True)
class Pin:
    """A pinned checkpoint: its name, when it was pinned and by whom."""

    name: str
    ref: HeadRef
    at_us: int = 0
    by: str = ""

    @property
    def folder(self) -> str:
        """The folder of the checkpoint's objects."""
        return self.ref.manifest.rpartition("/")[0]

    def to_bytes(self) -> bytes:
        return encode({"pin": asdict(self), "version": VERSION})


def parse_pin(data: bytes) -> Pin:
    """Parse a pin. Raises WireError."""
    body = read_field(read_object(data), "pin", dict)
    ref = read_field(body, "ref", dict)
    pin = Pin(
        name=read_field(body, "name", str),
        ref=HeadRef(
            generation=read_count(ref, "generation"),
            step=read_count(ref, "step"),
            manifest=read_field(ref, "manifest", str),
            digest=read_field(ref, "digest", str),
        ),
        at_us=read_count(body, "at_us"),
        by=read_field(body, "by", str),
    )
    if not pin.folder:
        raise WireError("field 'manifest' names no folder")
    return pin
