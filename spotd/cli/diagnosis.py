"""What was found wrong with training, and how well machines are used, in words."""

from __future__ import annotations

import re
from typing import Any

from spotd.base.text import clean, money, percent, seconds_since, span

_THREAD = re.compile(r"(Current t|T)hread (0x)?[0-9a-f]+ ")  # as both begin each thread's
FRAMES = 6  # of each process; the innermost come first


def print_verdict(verdict: dict[str, Any], *, whole: bool) -> None:
    """What was seen, what spotd does, what a person can try, and where each process was."""
    ago = span(seconds_since(verdict["at"]) or 0.0)
    times = f", {verdict['times']} times within a day" if verdict["times"] > 1 else ""
    print(f"\n{clean(verdict['title'])} ({ago} ago{times})")
    print(f"  seen: {clean(verdict['seen'])}")
    print(f"  spotd: {clean(verdict['does'])}")
    print(f"  try: {clean(verdict['attempt'])}")
    for stack in verdict["stacks"]:
        _print_stack(stack, whole=whole)


def _print_stack(stack: dict[str, Any], *, whole: bool) -> None:
    name = f"rank {stack['rank']}" if stack["rank"] >= 0 else "a process without a rank"
    print(f"  {name}, by {clean(stack['how'])}:")
    lines = stack["text"].splitlines()
    shown = lines if whole else _main_thread(lines)[:FRAMES]
    for line in shown:
        print(f"    {clean(line.rstrip())}")
    if len(shown) < len(lines):
        print(f"    ({len(lines) - len(shown)} more lines: spotctl why JOB --stacks)")


def _main_thread(lines: list[str]) -> list[str]:
    """faulthandler prints the main thread last, py-spy first and by name."""
    heads = [at for at, line in enumerate(lines) if _THREAD.match(line)]
    if not heads:
        return lines
    begin = next((at for at in heads if "MainThread" in lines[at]), heads[-1])
    end = next((at for at in heads if at > begin), len(lines))
    return lines[begin:end]


def print_use(use: dict[str, Any] | None) -> None:
    """How well machines were used lately; nothing where nobody measured it."""
    if use is None:
        return
    over = span(use["measured_hours"] * 3600)
    print(f"\nuse over the last {over}: {_shares(use)}")
    if use["cause"]:
        print(f"  idle: {money(use['idle_usd'])} of these; likely cause: {clean(use['cause'])}")


def idle_words(use: dict[str, Any] | None) -> str:
    """The cost of idle GPUs and of waiting; "-" where nobody measured it."""
    if use is None:
        return "-"
    waits = f"{money(use['data_usd'])} waiting for data, {money(use['save_usd'])} for checkpoints"
    over = f"over {use['measured_hours']:.3f} h that were measured"
    text = f"{money(use['idle_usd'])} of idle GPUs, {waits}, {over}"
    return f"{text}; {clean(use['cause'])}" if use["cause"] else text


def _shares(use: dict[str, Any]) -> str:
    return (
        f"GPUs busy {percent(use['gpu'])}, waiting for data {percent(use['data'])}, "
        f"for checkpoints {percent(use['save'])}"
    )
