"""Open a node's follow stream: connect, log in, request.

On separate threads, because a dead machine can make it slow.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial

import paramiko
import structlog

from spotd.act.link import SshLink, node_command, node_words
from spotd.act.node_link import LinkError
from spotd.act.ssh import Connection, HostKeyMismatchError, SshAuthRefusedError, SshError
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.domain.events import Event, Severity
from spotd.domain.node import Node
from spotd.observe.stream import NodeStream
from spotd.security.secrets import JobKeys
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.wire import JournalEntry

log = structlog.get_logger(__name__)

FRESH, AGAIN = 8, 4  # threads for nodes not tried before, and for the others
OPEN_S = 15.0
# Unread bytes of one node: bounds memory when the store is away, and is refilled
# within a round trip otherwise.
WINDOW_BYTES = 256 << 10


@dataclass
class FollowedNode:
    """A followed node. The follower's thread owns all of it."""

    node: Node
    connection: Connection
    channel: paramiko.Channel
    descriptor: int  # readable when the channel has something to say
    stream: NodeStream
    offsets: Mapping[str, int]
    heard_s: float = 0.0
    entries: list[JournalEntry] = field(default_factory=list)

    def close(self) -> None:
        """Close the connection; the descriptor must no longer be watched."""
        self.connection.hang_up(self.channel)


def open_stream(
    link: SshLink,
    node: Node,
    keys: JobKeys,
    offsets: Mapping[str, int],
    gap_after: int,
    *,
    ship: bool,
) -> FollowedNode:
    """Follow `node` from its last recorded entry and these log offsets.

    `ship` uploads our version of the agent first. Raises SshError, LinkError.
    """
    connection = link.connect(node, keys)
    try:
        if ship:
            link.ship(connection)
        words = f"follow {node_words(node)} --after {node.agent.journal_seq}"
        command = node_command(link.bundle, words)
        channel = connection.open_channel(command, OPEN_S, WINDOW_BYTES)
        channel.settimeout(OPEN_S)
        channel.sendall(json.dumps({"logs": dict(offsets)}).encode() + b"\n")
        channel.setblocking(0)
        descriptor = channel.fileno()
    except (SshError, LinkError):
        connection.close()
        raise
    except (paramiko.SSHException, EOFError, OSError) as error:
        connection.close()
        raise SshError(f"the connection broke during the request: {error}") from None
    stream = NodeStream(node.agent.journal_seq, gap_after)
    return FollowedNode(node, connection, channel, descriptor, stream, offsets)


class StreamConnector:
    """Opens streams on its own threads and keeps the results until they are taken.

    Nodes that failed before wait for separate threads, so that many dead ones do not delay one that
    has just booted. `done` is called after each, on its thread.
    """

    def __init__(
        self,
        store: Store,
        link: SshLink,
        keys: Callable[[str], JobKeys],
        clock: Clock,
        done: Callable[[], None],
    ) -> None:
        self._store = store
        self._link = link
        self._keys = keys
        self._clock = clock
        self._done = done
        self._lock = threading.Lock()
        self._opened: list[FollowedNode] = []
        self._failed: list[str] = []
        self._told: set[tuple[str, str]] = set()  # node, and the kind of error that was alerted
        self._stopping = threading.Event()
        self._queues: tuple[_Tasks, _Tasks] = (queue.SimpleQueue(), queue.SimpleQueue())
        for number, tasks in ((FRESH, self._queues[0]), (AGAIN, self._queues[1])):
            for _ in range(number):
                threading.Thread(target=_work, args=(tasks,), name="follow", daemon=True).start()

    def open(self, node: Node, gap_after: int, *, ship: bool, failures: int) -> None:
        """Have the stream of `node` opened, which has failed so often in a row."""
        task = partial(self._open, node, gap_after, ship=ship)
        self._queues[failures > 0].put(task)

    def take(self) -> tuple[list[FollowedNode], list[str]]:
        """Return the opened streams and the ids of failed nodes since the last call."""
        with self._lock:
            taken = self._opened, self._failed
            self._opened, self._failed = [], []
        return taken

    def forget(self, present: Container[str]) -> None:
        """Drop nodes that are not in `kept`."""
        with self._lock:
            self._told = {failure for failure in self._told if failure[0] in present}

    def stop(self) -> None:
        """Open nothing more; a thread that waits for a machine ends when that has run out."""
        self._stopping.set()
        for number, tasks in ((FRESH, self._queues[0]), (AGAIN, self._queues[1])):
            for _ in range(number):
                tasks.put(None)
        self._close_opened()

    def _close_opened(self) -> None:
        for followed in self.take()[0]:
            followed.close()

    # --- on the threads

    def _open(self, node: Node, gap_after: int, *, ship: bool) -> None:
        if self._stopping.is_set():
            return
        try:
            offsets = self._offsets(node)
            keys = self._keys(node.job_id)
            followed = open_stream(self._link, node, keys, offsets, gap_after, ship=ship)
        except (SshError, LinkError, StoreError, UserError, KeyError) as error:
            self._fail(node, error)
        except Exception as error:
            log.exception("cannot follow", node=node.id)
            self._fail(node, error)
        else:
            with self._lock:
                self._told = {failure for failure in self._told if failure[0] != node.id}
                self._opened.append(followed)
        self._done()
        if self._stopping.is_set():
            self._close_opened()

    def _offsets(self, node: Node) -> dict[str, int]:
        return {
            stream: offset
            for (generation, rank, stream), offset in self._store.logs.offsets(node.job_id).items()
            if (generation, rank) == (node.generation, node.rank)
        }

    def _fail(self, node: Node, error: Exception) -> None:
        failure = (node.id, type(error).__name__)
        with self._lock:
            self._failed.append(node.id)
            # Not the first failure of all: an address falls silent before another machine has it.
            first = failure not in self._told
            if isinstance(error, HostKeyMismatchError | SshAuthRefusedError):
                self._told.add(failure)
        if self._stopping.is_set():
            return
        log.info("cannot follow", node=node.id, error=str(error))
        if first and isinstance(error, HostKeyMismatchError | SshAuthRefusedError):
            words = f"{node.id} cannot be followed: {error}"
            event = Event("link_refused", words, node.id, Severity.WARNING, alert=True, key=node.id)
            try:
                self._store.events.add(node.job_id, event, self._clock.now_us())
            except StoreError as trouble:
                with self._lock:
                    self._told.discard(failure)
                log.warning("the store does not answer", error=str(trouble))


_Tasks = queue.SimpleQueue[Callable[[], None] | None]


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
