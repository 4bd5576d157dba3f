"""Text of diagnoses, and of how well a job's machines are used."""

from __future__ import annotations

import re
from typing import Any

from spotd.base.text import clean, money, percent, seconds_since, span
from spotd.cli.render import print_text

# First line of a thread in the dumps of faulthandler and py-spy.
_THREAD = re.compile(r"(Current t|T)hread (0x)?[0-9a-f]+ ")
FRAMES = 6  # stack lines shown of each process; the innermost come first


def print_diagnosis(diagnosis: dict[str, Any], *, all_frames: bool) -> None:
    """Print what was observed, how spotd reacts, what a person can try, and the stacks."""
    ago = span(seconds_since(diagnosis["at"]) or 0.0)
    times = f", {diagnosis['times']} times within a day" if diagnosis["times"] > 1 else ""
    print()
    print_text(f"{diagnosis['title']} ({ago} ago{times})")
    print_text(f"seen: {diagnosis['seen']}", indent=2)
    print_text(f"spotd: {diagnosis['does']}", indent=2)
    print_text(f"try: {diagnosis['attempt']}", indent=2)
    for stack in diagnosis["stacks"]:
        _print_stack(stack, all_frames=all_frames)


def _print_stack(stack: dict[str, Any], *, all_frames: bool) -> None:
    name = f"rank {stack['rank']}" if stack["rank"] >= 0 else "a process without a rank"
    print(f"  {name}, by {clean(stack['how'])}:")
    lines = stack["text"].splitlines()
    shown = lines if all_frames else _main_thread(lines)[:FRAMES]
    for line in shown:
        print(f"    {clean(line.rstrip())}")
    if len(shown) < len(lines):
        print(f"    ({len(lines) - len(shown)} more lines: spotctl why JOB --stacks)")


def _main_thread(lines: list[str]) -> list[str]:
    """Return the main thread's lines: faulthandler prints it last, py-spy first and by name."""
    starts = [at for at, line in enumerate(lines) if _THREAD.match(line)]
    if not starts:
        return lines
    start = next((at for at in starts if "MainThread" in lines[at]), starts[-1])
    end = next((at for at in starts if at > start), len(lines))
    return lines[start:end]


def print_utilization(use: dict[str, Any] | None) -> None:
    """Print how well machines were used recently; nothing if it was not measured."""
    if use is None:
        return
    measured = span(use["measured_hours"] * 3600)
    print()
    print_text(f"use over the last {measured}: {_shares(use)}")
    if use["cause"]:
        idle = f"idle: {money(use['idle_usd'])} of these; likely cause: {use['cause']}"
        print_text(idle, indent=2)


def idle_text(use: dict[str, Any] | None) -> str:
    """Return the cost of idle GPUs and of waiting as text; "-" if it was not measured."""
    if use is None:
        return "-"
    waiting = f"{money(use['data_usd'])} waiting for data, {money(use['save_usd'])} for checkpoints"
    measured = f"over {use['measured_hours']:.3f} h that were measured"
    text = f"{money(use['idle_usd'])} of idle GPUs, {waiting}, {measured}"
    return f"{text}; {clean(use['cause'])}" if use["cause"] else text


def _shares(use: dict[str, Any]) -> str:
    return (
        f"GPUs busy {percent(use['gpu'])}, waiting for data {percent(use['data'])}, "
        f"for checkpoints {percent(use['save'])}"
    )
