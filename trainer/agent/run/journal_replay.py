"""What an agent learns from the journal of the one before it."""

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
from trainer.agent.base.health_verdict import NOTHING, HealthHistory, past_of

# How many of the last saves, and reports of steps, tell how long the next one may take.
SAVES = 3
REPORTS = 20


@dataclass(frozen=True)
class WorkerFact:
    """What one message of a training process tells: the step it is at, how long a save or one step
    took, in seconds."""

    step: int | None
    save_s: float | None
    step_s: float | None


@dataclass(frozen=True)
class JournalReplay:
    """`is_first`: no agent of this boot was here before. `said`: kinds of entry of this boot."""

    boot_id: str
    is_first: bool
    said: frozenset[str]
    notices: tuple[Notice, ...]
    saves_s: tuple[float, ...]
    steps_s: tuple[float, ...]
    step: int
    stepping: bool = False  # the program that runs had come to its first step
    unwell: HealthHistory = NOTHING
    disk_full: bool = False  # what was last said of it, before this boot or in it

    @staticmethod
    def of_fact(kind: str, data: Mapping[str, Any]) -> WorkerFact:
        """Raises nothing: training processes are not trusted to send numbers."""
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
    """Seconds of one step in a report of several."""
    first, last, busy_s = (data.get(name) for name in ("from_step", "to_step", "busy_s"))
    if not isinstance(first, int) or not isinstance(last, int) or last < first:
        return None
    return float(busy_s) / (last - first + 1) if isinstance(busy_s, (int, float)) else None


def recall(entries: Sequence[JournalEntry], boot_id: str) -> JournalReplay:
    """Read the journal back; what was before a restart of the machine counts no more."""
    begins = [index for index, entry in enumerate(entries) if entry.kind == wire.HELLO]
    since = begins[-1] if begins and entries[begins[-1]].data.get("boot_id") == boot_id else None
    found = entries[since:] if since is not None else []
    said = {entry.kind for entry in found}
    for kind in (wire.SETUP, wire.PREPARED, wire.IMAGE):
        if any(e.kind == kind and e.data.get("status") == "ok" for e in found):
            said.add(kind + ":ok")
    if any(e.kind == wire.SETUP and e.data.get("status") == "failed" for e in found):
        said.add(wire.EXITED)  # nothing more is to be done
    if any(e.kind == wire.CHECKPOINT and e.data.get("final") is True for e in found):
        said.add(wire.CHECKPOINT + ":final")
    facts = [JournalReplay.of_fact(entry.kind, entry.data) for entry in found]
    saves_s = [fact.save_s for fact in facts if fact.save_s is not None]
    steps_s = [fact.step_s for fact in facts if fact.step_s is not None]
    steps = [fact.step for fact in facts if fact.step is not None]
    return JournalReplay(
        boot_id=boot_id,
        is_first=since is None,
        said=frozenset(said),
        notices=tuple(_notices(found).values()),
        saves_s=tuple(saves_s[-SAVES:]),
        steps_s=tuple(steps_s[-REPORTS:]),
        step=steps[-1] if steps else 0,
        stepping=_stepping(found),
        unwell=past_of(found),
        disk_full=any(e.data.get("full") is True for e in _last(entries, wire.DISK)),
    )


def _last(entries: Sequence[JournalEntry], kind: str) -> list[JournalEntry]:
    return [entry for entry in entries if entry.kind == kind][-1:]


def _stepping(entries: Sequence[JournalEntry]) -> bool:
    last = [e.kind for e in entries if e.kind in (wire.STARTED, wire.PROGRESS, wire.UNWELL)]
    return last[-1:] == [wire.PROGRESS]


def _notices(entries: Sequence[JournalEntry]) -> dict[str, Notice]:
    found: dict[str, Notice] = {}
    for entry in entries:
        data = entry.data
        if entry.kind == wire.NOTICE:
            left_s = data["remaining_s"]
            found[data["notice_id"]] = Notice(
                notice_id=data["notice_id"],
                kind=NoticeKind(data["kind"]),
                deadline_us=None if left_s is None else entry.at_us + int(left_s * 1e6),
                source=data["source"],
                text=data["text"],
            )
        elif entry.kind == wire.NOTICE_WITHDRAWN:
            found.pop(data["notice_id"], None)
    return found


def read_boot_id() -> str:
    """Names this run of the machine's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def describe_agent(boot_id: str) -> dict[str, Any]:
    """What HELLO says."""
    return {
        "agent": "spot-node",
        "wire": wire.WIRE_VERSION,
        "python": ".".join(map(str, sys.version_info[:3])),
        "hostname": socket.gethostname(),
        "boot_id": boot_id,
        "pid": os.getpid(),
    }
