"""The changes of one node that its journal entries cause, collected before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from spotd.domain.events import Event
from spotd.domain.job import HeadSnapshot, Job
from spotd.store.evaluations import EvaluationRow
from spotd.store.journal_fields import MAX_TEXT
from spotd.store.notices import NoticeObservation as HeardNotice
from spotd.store.outputs import StoredOutput
from spotd.store.rows import NodeRow
from spotd.store.transfers import DataTransfer

# The node columns that the journal owns; written together, once a batch.
COLUMNS = (
    "hello_at_us",
    "ready_at_us",
    "claimed_at_us",
    "resumed_step",
    "anew_at_us",
    "printed_steps",
    "first_step_at_us",
    "last_step",
    "total_steps",
    "heard_at_us",
    "link_down_at_us",
    "released_at_us",
    "exit_code",
    "exited_at_us",
    "exit_tail",
    "exit_cause",
    "failed_part",
    "setup_failed",
    "journal_seq",
    "wire",
    "disk_full_at_us",
    "wiped_at_us",
    "wiped_text",
    "outputs_since_us",
)


@dataclass
class JobFacts:
    """The facts about a job in the entries of one transaction."""

    job: Job
    heads: list[HeadSnapshot] = field(default_factory=list)
    first_step_at_us: int = 0
    outputs_at_us: int = 0


class NodeProjection:
    """One node while its entries are read: its journal columns, and the rows and events to
    write."""

    def __init__(self, row: NodeRow, facts: JobFacts) -> None:
        self.row = row
        self.facts = facts
        self.columns: dict[str, Any] = {name: getattr(row, name) for name in COLUMNS}
        self.events: list[tuple[Event, int]] = []
        self.progress: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.read: list[DataTransfer] = []
        self.outputs: list[StoredOutput] = []
        self.evaluations: list[EvaluationRow] = []
        self.notices: list[HeardNotice] = []
        self.withdrawn: list[str] = []
        self.heard_at_us = 0
        self.due = False

    @property
    def job(self) -> Job:
        return self.facts.job

    def hear(self, at_us: int) -> None:
        """The node is alive; if its link was down its job becomes due."""
        self.heard_at_us = max(self.heard_at_us, at_us)
        self.columns["heard_at_us"] = max(self.columns["heard_at_us"], at_us)
        if self.columns["link_down_at_us"]:
            self.columns["link_down_at_us"] = 0
            self.due = True

    def first(self, column: str, at_us: int) -> None:
        """Set a time that is recorded once."""
        self.columns[column] = self.columns[column] or at_us
        self.due = True

    def say(self, event: Event, at_us: int) -> None:
        """Add an event about this node."""
        key = event.key or f"{self.job.id}:{event.kind}"
        named = replace(event, text=event.text[:MAX_TEXT], node_id=self.row.id, key=key)
        self.events.append((named, at_us))

    def stepped(self, at_us: int) -> None:
        """The program makes steps: record the node's, and perhaps the job's, first one."""
        if not self.columns["first_step_at_us"]:
            self.columns["first_step_at_us"] = at_us
            self.due = True
        self.facts.first_step_at_us = self.facts.first_step_at_us or at_us

    def head(self, step: int, manifest: str, at_us: int, *, released: bool) -> None:
        """HEAD as its owner reports it. Only the daemon's own reading makes it final."""
        generation = self.row.generation
        self.facts.heads.append(
            HeadSnapshot(
                generation, step, manifest, released=released, final=False, seen_at_us=at_us
            )
        )
        self.due = True
