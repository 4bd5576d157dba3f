"""More of what reads bytes from outside: on the node, beside the daemon, and the local cloud's."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from providers.local import scenario_file
from providers.local.scenario_fields import ScenarioError
from spotd.errors import UserError
from spotd.reaper import config as reaper
from tests.rigs.memory import MEMORY
from trainer.agent import kernel
from trainer.agent.worker_link import WORKER_KINDS, WorkerLink


class _Ear:
    """Hears what a training process says."""

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        assert kind in WORKER_KINDS
        assert isinstance(data, dict)

    def on_worker_exit(self, rank: int, code: int) -> None:
        assert isinstance(rank, int)
        assert isinstance(code, int)

    def on_busy(self, for_s: float) -> None:
        assert abs(for_s) < 1e9

    def on_nonsense(self, text: str) -> None:
        assert text

    def on_hang_up(self) -> None:
        """Nothing more."""


def hear_worker(data: bytes) -> None:
    """Lines of a training process: a fact, or nonsense that is told."""
    link = WorkerLink.__new__(WorkerLink)  # without its socket
    link._listener = _Ear()
    for line in data.split(b"\n"):
        link._greeted(line)
        link._hear(line)


def read_reaper(data: bytes) -> None:
    """The reaper's configuration: a value, or an error that says what is wrong and what helps."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, "reaper.toml")
        path.write_bytes(data)
        told: UserError | None = None
        try:
            reaper.load(path, {})
        except UserError as error:
            told = error
        assert told is None or (told.text and told.try_)


def read_scenario(data: bytes) -> None:
    """A scenario of the local cloud: a value, or all that is wrong with it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, "scenario.toml")
        path.write_bytes(data)
        with contextlib.suppress(ScenarioError):
            found = scenario_file.load(path)
            assert 0 <= found.visibility_s < 1e16


def read_kernel(data: bytes) -> None:
    """What the kernel says: the driver's reports, each with a text."""
    for xid in kernel.find_xids(data):
        assert xid.text
        assert xid.grade
