"""Write nodes' reports into the store, in one transaction for all, without losing any."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from spotd.base.clock import Clock
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.store.journal import JournalBatch
from spotd.wire import PROGRESS, JournalEntry

log = structlog.get_logger(__name__)

HEARD_S = 4.0  # between records of nodes that only sent heartbeats
# Nobody decides anything by a report of progress alone: it may wait for others' to share a
# transaction, which costs ten times what a report in it does.
PATIENT, LINGER_S = frozenset({PROGRESS}), 0.5


class JournalWriter:
    """Collects entries until `flush`; entries that could not be written wait for the next one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._batches: list[JournalBatch] = []
        self._due_s = 0.0  # when the batches are to be written, while there are any
        self._heard: dict[str, int] = {}
        self._down: dict[str, int] = {}
        self._known_down: set[str] = set()
        self._flushed_s = clock.monotonic_s()
        self._urgent = False

    def say(self, node_id: str, entries: Sequence[JournalEntry]) -> None:
        """Journal entries of a node, in order."""
        now_s = self._clock.monotonic_s()
        patient = all(entry.kind in PATIENT for entry in entries)
        due_s = now_s + LINGER_S if patient else now_s
        self._due_s = min(self._due_s, due_s) if self._batches else due_s
        self._batches.append(JournalBatch(node_id, tuple(entries), self._clock.now_us()))

    def hear(self, node_id: str) -> None:
        """A sign of life: its link is up."""
        self._heard[node_id] = self._clock.now_us()
        if node_id in self._known_down or node_id in self._down:
            self._down.pop(node_id, None)
            self._known_down.discard(node_id)
            self._urgent = True

    def lose(self, node_id: str, *, recorded: bool = False) -> None:
        """Note that a link is down; `recorded` if the store knows already."""
        if recorded:
            self._known_down.add(node_id)
        elif node_id not in self._known_down:
            self._down.setdefault(node_id, self._clock.now_us())

    def forget(self, present: set[str]) -> None:
        """Drop the links of nodes that are no longer wanted."""
        self._known_down &= present
        self._down = {node_id: at_us for node_id, at_us in self._down.items() if node_id in present}

    def flush(self) -> list[str]:
        """Write the collected entries. Raises StoreError, and then has lost nothing.

        Returns nodes whose own entries cannot be written; they were dropped, and the nodes have to
        be followed again.
        """
        now_s = self._clock.monotonic_s()
        due = self._batches and (self._down or now_s >= self._due_s)
        poisoned = self._flush_journal() if due else []
        # Signs of life first: they would undo a later end of the link.
        if self._heard and (self._urgent or self._down or now_s - self._flushed_s >= HEARD_S):
            self._store.nodes.record_heartbeats(self._heard)
            self._flushed_s, self._heard, self._urgent = now_s, {}, False
        for node_id, at_us in list(self._down.items()):
            self._store.nodes.record_link(node_id, at_us)
            self._known_down.add(node_id)
            del self._down[node_id]
        return poisoned

    def _flush_journal(self) -> list[str]:
        try:
            self._store.journal.record(self._batches)
        except StoreError:
            raise
        except Exception:
            log.exception("entries of some node cannot be recorded: each node by itself now")
            return self._flush_singly()
        self._batches = []
        return []

    def _flush_singly(self) -> list[str]:
        """Write each node by itself, so that one bad node does not block the others."""
        poisoned: list[str] = []
        while self._batches:
            batch = self._batches[0]
            try:
                if batch.node_id not in poisoned:
                    self._store.journal.record([batch])
            except StoreError:
                raise
            except Exception:
                log.exception("entries not recorded", node=batch.node_id)
                poisoned.append(batch.node_id)
            del self._batches[0]
        return poisoned
