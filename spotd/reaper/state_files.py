"""Small JSON files that outlast a run of the reaper, each replaced atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path | None) -> Any:
    """Return the contents, or None if unreadable."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError, RecursionError):
        return None


def write(path: Path | None, value: Any) -> str:
    """Write the file; return what went wrong, or ""."""
    if path is None:
        return ""
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(json.dumps(value), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""
