"""Restore an agent's state from the journal of the previous agent."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from providers.base import Notice, NoticeKind
from spotd import wire
from spotd.wire import JournalEntry
from trainer.agent.base.health_verdict import NO_HISTORY, HealthHistory, health_history

# How many recent saves and step reports are used to estimate the next one's duration.
MAX_SAVES = 3
MAX_REPORTS = 20


@dataclass(frozen=True)
class WorkerFact:
    """Measurements in one message of a training process: its step, and seconds of a save or a
    step."""

    step: int | None
    save_s: float | None
    step_s: float | None


@dataclass(frozen=True)
class JournalReplay:
    """State from the journal of this boot of the machine.

    `is_first`: no agent was started in this boot before. `reported`: kinds of this boot's entries,
    and marks like "setup:ok".
    """

    boot_id: str
    is_first: bool
    reported: frozenset[str]
    notices: tuple[Notice, ...]
    saves_s: tuple[float, ...]
    steps_s: tuple[float, ...]
    step: int
    stepping: bool = False  # the running program had done its first step
    health: HealthHistory = NO_HISTORY
    disk_full: bool = False  # the last DISK entry, also of an earlier boot


def parse_worker_fact(kind: str, data: Mapping[str, Any]) -> WorkerFact:
    """Parse a message. Raises nothing: training processes are not trusted to send numbers."""
    step = data.get("to_step" if kind == wire.PROGRESS else "step")
    save_s = None
    if kind == wire.CHECKPOINT:
        parts = [data.get("stage_s"), data.get("write_s")]
        numbers = [part for part in parts if isinstance(part, (int, float))]
        save_s = float(sum(numbers)) if numbers else None
    stepped = kind in (wire.PROGRESS, wire.CLAIMED, wire.CHECKPOINT)
    step_s = _step_s(data) if kind == wire.PROGRESS else None
    return WorkerFact(step if stepped and isinstance(step, int) else None, save_s, step_s)


def _step_s(data: Mapping[str, Any]) -> float | None:
    """Return the seconds of one step, from a report of several."""
    first, last, busy_s = (data.get(name) for name in ("from_step", "to_step", "busy_s"))
    if not isinstance(first, int) or not isinstance(last, int) or last < first:
        return None
    return float(busy_s) / (last - first + 1) if isinstance(busy_s, (int, float)) else None


def replay_journal(entries: Sequence[JournalEntry], boot_id: str) -> JournalReplay:
    """Read the journal back. Entries before the last reboot of the machine do not count."""
    hellos = [index for index, entry in enumerate(entries) if entry.kind == wire.HELLO]
    same_boot = bool(hellos) and entries[hellos[-1]].data.get("boot_id") == boot_id
    entries_of_boot = entries[hellos[-1] :] if same_boot else []
    reported = {entry.kind for entry in entries_of_boot}
    for kind in (wire.SETUP, wire.PREPARED, wire.IMAGE):
        if any(e.kind == kind and e.data.get("status") == "ok" for e in entries_of_boot):
            reported.add(kind + ":ok")
    if any(e.kind == wire.SETUP and e.data.get("status") == "failed" for e in entries_of_boot):
        reported.add(wire.EXITED)  # the generation is over
    if any(e.kind == wire.CHECKPOINT and e.data.get("final") is True for e in entries_of_boot):
        reported.add(wire.CHECKPOINT + ":final")
    if _outputs_done(entries_of_boot):
        reported.add(f"{wire.OUTPUTS}:done")
    facts = [parse_worker_fact(entry.kind, entry.data) for entry in entries_of_boot]
    saves_s = [fact.save_s for fact in facts if fact.save_s is not None]
    steps_s = [fact.step_s for fact in facts if fact.step_s is not None]
    steps = [fact.step for fact in facts if fact.step is not None]
    return JournalReplay(
        boot_id=boot_id,
        is_first=not same_boot,
        reported=frozenset(reported),
        notices=tuple(_notices(entries_of_boot).values()),
        saves_s=tuple(saves_s[-MAX_SAVES:]),
        steps_s=tuple(steps_s[-MAX_REPORTS:]),
        step=steps[-1] if steps else 0,
        stepping=_stepping(entries_of_boot),
        health=health_history(entries_of_boot),
        disk_full=any(e.data.get("full") is True for e in _last(entries, wire.DISK)),
    )


def _last(entries: Sequence[JournalEntry], kind: str) -> list[JournalEntry]:
    return [entry for entry in entries if entry.kind == kind][-1:]


def _stepping(entries: Sequence[JournalEntry]) -> bool:
    last = [e.kind for e in entries if e.kind in (wire.STARTED, wire.PROGRESS, wire.UNWELL)]
    return last[-1:] == [wire.PROGRESS]


def _outputs_done(entries: Sequence[JournalEntry]) -> bool:
    """Whether the outputs of the newest program are stored, as far as they can be."""
    last = [e for e in entries if e.kind in (wire.STARTED, wire.OUTPUTS)][-1:]
    return any(e.kind == wire.OUTPUTS and e.data.get("status") != "begin" for e in last)


def _notices(entries: Sequence[JournalEntry]) -> dict[str, Notice]:
    notices: dict[str, Notice] = {}
    for entry in entries:
        data = entry.data
        if entry.kind == wire.NOTICE:
            remaining_s = data["remaining_s"]
            notices[data["notice_id"]] = Notice(
                notice_id=data["notice_id"],
                kind=NoticeKind(data["kind"]),
                deadline_us=None if remaining_s is None else entry.at_us + int(remaining_s * 1e6),
                source=data["source"],
                text=data["text"],
            )
        elif entry.kind == wire.NOTICE_WITHDRAWN:
            notices.pop(data["notice_id"], None)
    return notices


def read_boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def describe_hello(boot_id: str) -> dict[str, Any]:
    """Return the data of a HELLO entry."""
    return {
        "agent": "spot-node",
        "wire": wire.WIRE_VERSION,
        "python": ".".join(map(str, sys.version_info[:3])),
        "hostname": socket.gethostname(),
        "boot_id": boot_id,
        "pid": os.getpid(),
    }
