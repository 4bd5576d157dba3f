"""The files that a job leaves behind, as they are uploaded when its program ends.

They are described like a program's folder of checkpoints (spotd/wire/saved_folders.py), in a
manifest of their own for each upload of each machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotd.wire.fields import read_count, read_field, read_list

OUTPUTS_LIMIT_S = 3600.0  # for an upload after a pause or a cancel
MAX_BYTES = 10_000_000_000  # uploaded of what a job file does not name


@dataclass(frozen=True)
class OutputRules:
    """Which files are uploaded when the program ends.

    `patterns` are those of the job file. Without any, everything below the workdir that changed is
    uploaded, up to `max_bytes`.
    """

    patterns: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES


def parse_output_rules(data: Mapping[str, Any]) -> OutputRules | None:
    """Read the field of a start document; None if nothing is uploaded. Raises WireError."""
    if data.get("outputs") is None:
        return None
    rules = read_field(data, "outputs", dict)
    return OutputRules(tuple(read_list(rules, "patterns", str)), read_count(rules, "max_bytes"))


def outputs_folder(job_id: str) -> str:
    """Return the start of the keys of all uploads of a job."""
    return f"jobs/{job_id}/outputs/"


def outputs_key(job_id: str, *, generation: int, rank: int, nonce: str) -> str:
    """Return the key of the manifest of one upload."""
    return f"{outputs_folder(job_id)}g{generation:08d}-r{rank:05d}-{nonce}/MANIFEST.json"
