"""`spotctl demo`: watch a real job survive three preemptions."""

from __future__ import annotations

import enum
from importlib import import_module
from pathlib import Path

import typer


class Store(enum.StrEnum):
    """Where the demo keeps its checkpoints."""

    S3 = "s3"
    FOLDER = "folder"


INTO = typer.Option(Path("demo"), "--into", help="Folder for the report and the pictures.")
STEPS = typer.Option(
    None, "--steps", min=1, help="Length of the job in steps (default: the demo's own)."
)
STORE = typer.Option(
    Store.S3, "--store", help="Where checkpoints go: an S3 server of the demo's own, or a folder."
)


def demo(into: Path = INTO, steps: int | None = STEPS, store: Store = STORE) -> None:
    """Watch a real job survive three preemptions on three simulated clouds on this machine.

    The daemon, SSH and the training are real; the clouds are local processes, and nothing is
    rented. The exit code is 0 if every claim was proven; report.json has the results for programs.

    \b
    Example:
      spotctl demo --into demo
    """
    # Imported by name: the demo is a layer above the command line, which it drives.
    run = import_module("spotd.demo").main
    raise typer.Exit(run(into, steps, store.value))
