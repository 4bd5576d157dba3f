"""Interpret the exit of a program that uses our engine, seen through a launcher with its own
codes."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from spotd import wire
from spotd.wire import HeadRef


def interpret_exit(
    code: int, workers: Set[int], *, final: bool, released: bool, stopped: bool
) -> tuple[int, str]:
    """Return the exit code to report, and a warning or "".

    `workers`: exit codes that the training processes announced. `final`: the job's success is in
    HEAD. `released`: its release is in HEAD. `stopped`: the program was asked to stop.
    """
    codes = {code, *workers}
    if final:
        if not code or stopped:  # in a stop, its shell was held and ended
            return wire.EXIT_FINISHED, ""
        text = f"the job is finished, but its script ended with code {code} after that"
        return wire.EXIT_FINISHED, f"{text}: see its last output"
    if wire.EXIT_FENCED in codes:
        return wire.EXIT_FENCED, ""
    if wire.EXIT_DIVERGED in workers:
        return wire.EXIT_DIVERGED, ""
    if released or wire.EXIT_RELEASED in codes:
        return wire.EXIT_RELEASED, ""
    if not stopped or code == 0:
        return code, ""
    text = f"the program ended with code {code} when asked to stop, and did not say that it"
    return wire.EXIT_RELEASED, f"{text} saved: see its last output"


def final_checkpoint(current: HeadRef, size: int) -> dict[str, Any]:
    """Return the CHECKPOINT data for the final manifest of a job of scripts.

    It uploads nothing: the `size` bytes that it names were saved before.
    """
    manifest = {"step": current.step, "manifest": current.manifest, "digest": current.digest}
    sizes = {"bytes": size, "new_bytes": 0, "stage_s": 0.0, "write_s": 0.0, "trigger": "final"}
    return {**manifest, **sizes, "released": True, "final": True}
