"""What the exit of a program that uses our engine means, seen through a launcher that has exit
codes of its own."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from spotd import wire
from spotd.wire import HeadRef


def meaning_of(
    code: int, workers: Set[int], *, final: bool, released: bool, stopped: bool
) -> tuple[int, str]:
    """The code to be told, and what is to be told besides.

    `workers`: what its training processes said that they end with. `final`: the job's success is in
    HEAD. `released`: so is that nothing more comes. `stopped`: it was asked to stop.
    """
    said = {code, *workers}
    if final:
        if not code or stopped:  # when it was stopped, its shell was held back and ended
            return wire.EXIT_FINISHED, ""
        text = f"the job is finished, but its script ended with code {code} after that"
        return wire.EXIT_FINISHED, f"{text}: see its last output"
    if wire.EXIT_FENCED in said:
        return wire.EXIT_FENCED, ""
    if wire.EXIT_DIVERGED in workers:
        return wire.EXIT_DIVERGED, ""
    if released or wire.EXIT_RELEASED in said:
        return wire.EXIT_RELEASED, ""
    if not stopped or code == 0:
        return code, ""
    text = f"the program ended with code {code} when asked to stop, and did not say that it"
    return wire.EXIT_RELEASED, f"{text} saved: see its last output"


def final_save(current: HeadRef) -> dict[str, Any]:
    """What CHECKPOINT says of the manifest that ends a job of scripts: nothing was saved in it."""
    named = {"step": current.step, "manifest": current.manifest, "digest": current.digest}
    took = {"bytes": 0, "stage_s": 0.0, "write_s": 0.0, "trigger": "final"}
    return {**named, **took, "released": True, "final": True}
