"""Where a test's files may lie that are many commits and nothing else: no disk is waited for."""

from __future__ import annotations

from pathlib import Path

_SHM = Path("/dev/shm")
MEMORY = _SHM if _SHM.is_dir() else None  # None: where temporary files lie anyhow
