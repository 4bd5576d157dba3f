"""Test helpers: a checkpoint folder, programs that write to it, and generations that sync it."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from providers.stores.base import ObjectStore
from trainer.directory.sync import DirectorySettings, DirectorySync
from trainer.directory.units import ALL_FILES, STATE, Rules
from trainer.fence import Fence

LONG_S = 60.0


class Clock:
    """A monotonic clock set by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


class Generation:
    """A generation on its own machine, with the journal entries it reported."""

    def __init__(
        self,
        root: Path,
        store: ObjectStore,
        generation: int = 1,
        *,
        keep: int = 3,
        every: int = 0,
        rules: Rules = ALL_FILES,
        job: str = "job",
        open_within_s: float = math.inf,
    ) -> None:
        self.folder = root / f"g{generation}"
        self.store, self.clock = store, Clock()
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self.fence = Fence(store, job, generation, f"owner-{generation}", sleep=lambda _: None)
        self.settings = DirectorySettings(self.folder, keep, every, rules, open_within_s)
        self.directory = self._make()

    def _make(self) -> DirectorySync:
        return DirectorySync(
            self.settings,
            lambda: self.fence,
            lambda kind, data: self.reports.append((kind, data)),
            pause=self.clock.pause,
            monotonic=self.clock.monotonic,
        )

    def start(self) -> Generation:
        self.directory.restore(self.fence.claim())
        return self

    def restart(self) -> None:
        """Replace the agent on the same machine, while the program keeps running."""
        self.fence = Fence(self.store, self.fence.job_id, self.fence.generation, self.fence.owner)
        self.directory = self._make()

    def settle(self, seconds: float = LONG_S) -> None:
        """Sync, wait, and sync again."""
        self.directory.sync()
        self.clock.pause(seconds)
        self.directory.sync()

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.reports]

    def errors(self) -> list[str]:
        return [data["error"] for kind, data in self.reports if kind == "checkpoint_failed"]

    def checkpoints(self) -> list[Path]:
        """The folders named checkpoint-N, by name."""
        return sorted(self.folder.glob("checkpoint-*"))

    def size(self, name: str) -> int:
        """Bytes of a folder's files."""
        return sum(
            path.stat().st_size for path in (self.folder / name).rglob("*") if path.is_file()
        )

    def skipped(self) -> list[str]:
        return [data["error"] for kind, data in self.reports if kind == "checkpoint_skipped"]

    def steps(self) -> list[int]:
        return [data["step"] for kind, data in self.reports if kind == "checkpoint"]

    def units(self) -> list[str]:
        names = (path.name for path in self.folder.iterdir())
        return sorted(name for name in names if not name.startswith("."))


def write_hf(folder: Path, step: int, *, complete: bool = True, text: str = "") -> Path:
    """Write a checkpoint as transformers does, with its state file last."""
    path = folder / f"checkpoint-{step}"
    (path / "sub").mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 300)
    (path / "optimizer.pt").write_text(text or f"moments at {step}")
    (path / "sub" / "empty").write_bytes(b"")
    if complete:
        (path / STATE).write_text(json.dumps({"global_step": step}))
    return path


def torch_file(content: str) -> bytes:
    """A zip archive like that of torch.save, with the same bytes for the same content."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), content * 50)
    return data.getvalue()
