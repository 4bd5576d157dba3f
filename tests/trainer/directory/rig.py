"""A folder of checkpoints, programs that write to it, and generations that keep it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from providers.stores.base import ObjectStore
from trainer.directory.sync import Directory
from trainer.directory.units import STATE
from trainer.fence import Fence

LONG_S = 60.0


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


class Keeper:
    """One generation on a machine of its own, with what it has told."""

    def __init__(
        self, root: Path, store: ObjectStore, generation: int = 1, *, keep: int = 3, every: int = 0
    ) -> None:
        self.folder = root / f"g{generation}"
        self.store, self.clock = store, Clock()
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.fence = Fence(store, "job", generation, f"owner-{generation}", sleep=lambda _: None)
        self.directory = self._make(keep, every)

    def _make(self, keep: int = 3, every: int = 0) -> Directory:
        return Directory(
            self.folder,
            keep,
            every,
            lambda: self.fence,
            lambda kind, data: self.told.append((kind, data)),
            pause=self.clock.pause,
            monotonic=self.clock.monotonic,
        )

    def start(self) -> Keeper:
        self.directory.restore(self.fence.claim())
        return self

    def restart(self) -> None:
        """Another agent on the same machine, which the program did not notice."""
        self.fence = Fence(self.store, "job", self.fence.generation, self.fence.owner)
        self.directory = self._make()

    def settle(self, seconds: float = LONG_S) -> None:
        """Look, wait, and look again."""
        self.directory.sync()
        self.clock.pause(seconds)
        self.directory.sync()

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]

    def errors(self) -> list[str]:
        return [data["error"] for kind, data in self.told if kind == "checkpoint_failed"]

    def units(self) -> list[str]:
        names = (path.name for path in self.folder.iterdir())
        return sorted(name for name in names if not name.startswith("."))


def write_hf(folder: Path, step: int, *, whole: bool = True, text: str = "") -> Path:
    """As transformers does: its own state last."""
    path = folder / f"checkpoint-{step}"
    (path / "sub").mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 300)
    (path / "optimizer.pt").write_text(text or f"moments at {step}")
    (path / "sub" / "empty").write_bytes(b"")
    if whole:
        (path / STATE).write_text(json.dumps({"global_step": step}))
    return path


def torch_file(content: str) -> bytes:
    """What torch.save writes is a zip archive: the same bytes for the same content, at any time."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), content * 50)
    return data.getvalue()
