"""Follows every node's journal over SSH: one thread of paramiko's a node, one of ours for all.

What the nodes say in one turn of the loop is recorded in one transaction, a notice within
milliseconds. Nothing is acknowledged to a node: after any interruption the stream is opened again
from the last entry on record, so that nothing is lost and nothing counts twice.
"""

from __future__ import annotations

import json
import os
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import paramiko
import structlog

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.link import SshLink, node_command, node_words
from spotd.act.ssh import CHUNK, Connection, SshError
from spotd.clock import Clock
from spotd.model import Node
from spotd.observe.output import Output
from spotd.observe.stream import NodeStream
from spotd.states import NodeState
from spotd.store.base import JournalBatch, Store, StoreError
from spotd.vault import JobKeys

log = structlog.get_logger(__name__)

LOOK_S = 2.0  # between looks for nodes to follow, without a hint
HEARD_S = 4.0  # between records of nodes that only sent heartbeats
SILENT_S = 10.0  # five heartbeats missed: the link is as good as down
RETRY_FIRST_S, RETRY_CAP_S = 0.25, 10.0
CONNECTS = 8  # at once
OPEN_S = 15.0

FOLLOWED = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


@dataclass
class _Followed:
    """One node being followed; all but `failures` belong to the loop's thread."""

    node: Node
    connection: Connection
    channel: paramiko.Channel
    stream: NodeStream
    heard_s: float
    down_recorded: bool
    entries: list[wire.JournalEntry] = field(default_factory=list)


class Follower:
    """Start it once; `poke` says that there may be new nodes to follow."""

    def __init__(
        self,
        store: Store,
        link: SshLink,
        keys: Callable[[str], JobKeys],
        objects: ObjectStore,
        clock: Clock,
    ) -> None:
        self._store = store
        self._link = link
        self._keys = keys
        self._clock = clock
        self._output = Output(store, objects)
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._followed: dict[str, _Followed] = {}
        self._connecting: set[str] = set()
        self._opened: list[_Followed] = []
        self._retry_at_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._unrecorded: list[JournalBatch] = []
        self._heard: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._looked_s = self._flushed_s = -1e9
        self._connects = ThreadPoolExecutor(CONNECTS, thread_name_prefix="follow")
        self._thread = threading.Thread(target=self._run, name="follower")

    def start(self) -> None:
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._thread.start()

    def poke(self) -> None:
        """There may be a node to follow, or one to leave: look soon."""
        self._looked_s = -1e9
        self._nudge()

    def stop(self) -> None:
        """Leave every node; they go on without us."""
        self._stopping.set()
        self._nudge()
        self._thread.join()
        self._connects.shutdown(wait=True, cancel_futures=True)
        for followed in [*self._followed.values(), *self._opened]:
            followed.connection.close()
        self._output.close()
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _nudge(self) -> None:
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            return  # the pipe is full of nudges already

    # --- the loop

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except StoreError as error:
                # Nothing more is read from the nodes until what they said is on record.
                log.warning("the store does not answer", error=str(error))
                self._stopping.wait(0.5)

    def _turn(self) -> None:
        self._record()
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_S:
            self._look(now_s)
        for key, _ in self._selector.select(timeout=0.25):
            if key.data is None:
                _drain(self._wake_r)
            else:
                self._read(key.data)
        self._adopt_opened()
        self._record()
        self._judge_silence()
        self._output.flush()

    def _look(self, now_s: float) -> None:
        """Open what should be followed, leave what should not."""
        self._looked_s = now_s
        wanted = {
            node.id: node
            for node in self._store.active_nodes()
            if node.state in FOLLOWED and node.booted_at_us and node.host
        }
        for node_id in [n for n in self._followed if n not in wanted]:
            self._leave(self._followed[node_id], failed=False)
        for node in wanted.values():
            due = now_s >= self._retry_at_s.get(node.id, 0.0)
            if node.id not in self._followed and node.id not in self._connecting and due:
                self._connecting.add(node.id)
                self._connects.submit(self._open, node)

    def _open(self, node: Node) -> None:
        """On a thread of the pool: connect and start to follow."""
        try:
            followed = self._connect(node)
        except (SshError, StoreError, KeyError, OSError) as error:
            log.info("cannot follow", node=node.id, error=str(error))
            with self._lock:
                self._fail(node.id)
                self._connecting.discard(node.id)
            return
        with self._lock:
            self._opened.append(followed)
        self._nudge()

    def _connect(self, node: Node) -> _Followed:
        offsets = {
            stream: offset
            for (generation, rank, stream), offset in self._store.log_offsets(node.job_id).items()
            if (generation, rank) == (node.generation, node.rank)
        }
        connection = self._link.connect(node, self._keys(node.job_id))
        try:
            words = f"follow {node_words(node)} --after {node.journal_seq}"
            channel = connection.open_channel(node_command(self._link.bundle, words), OPEN_S)
            channel.sendall(json.dumps({"logs": offsets}).encode() + b"\n")
            channel.setblocking(0)
        except (SshError, paramiko.SSHException, EOFError, OSError) as error:
            connection.close()
            raise SshError(f"cannot follow: {error}") from None
        stream = NodeStream(node.journal_seq)
        down = bool(node.link_down_at_us)
        return _Followed(node, connection, channel, stream, self._clock.monotonic_s(), down)

    def _adopt_opened(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, []
            for followed in opened:
                self._connecting.discard(followed.node.id)
        for followed in opened:
            self._followed[followed.node.id] = followed
            self._selector.register(followed.channel.fileno(), selectors.EVENT_READ, followed)

    def _fail(self, node_id: str) -> None:
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = failures + 1
        pause_s = min(RETRY_FIRST_S * float(1 << min(failures, 10)), RETRY_CAP_S)
        self._retry_at_s[node_id] = self._clock.monotonic_s() + pause_s
        self._looked_s = min(self._looked_s, self._clock.monotonic_s() + pause_s - LOOK_S)

    # --- what nodes say

    def _read(self, followed: _Followed) -> None:
        """Everything that has arrived; the end of the stream is the end of the link."""
        channel = followed.channel
        while channel.recv_stderr_ready():
            text = channel.recv_stderr(CHUNK).decode(errors="replace")
            log.warning("the node complains", node=followed.node.id, text=text[-300:])
        while channel.recv_ready():
            data = channel.recv(CHUNK)
            if not data:
                break
            if not self._take(followed, data):
                return
        if channel.closed or channel.eof_received:
            self._leave(followed, failed=True)

    def _take(self, followed: _Followed, data: bytes) -> bool:
        fed = followed.stream.feed(data)
        node_id = followed.node.id
        followed.entries += fed.entries
        for chunk in fed.logs:
            self._output.take(followed.node, chunk)
        if any(entry.kind in (wire.NOTICE, wire.EXITED) for entry in fed.entries):
            self._output.flush(node_id)
        if fed.garbage:
            log.warning("not of our protocol", node=node_id, lines=fed.garbage)
        if fed.entries or fed.heartbeats:
            followed.heard_s = self._clock.monotonic_s()
            self._heard[node_id] = self._clock.now_us()
        if fed.heartbeats:
            self._failures.pop(node_id, None)
            if followed.down_recorded:
                self._store.record_link(node_id, 0)
                followed.down_recorded = False
        if fed.gap:
            self._leave(followed, failed=True)
        return not fed.gap

    def _record(self) -> None:
        """One transaction for what all nodes said, and a rarer one for mere signs of life."""
        now_us = self._clock.now_us()
        for followed in self._followed.values():
            if followed.entries:
                entries, followed.entries = tuple(followed.entries), []
                self._unrecorded.append(JournalBatch(followed.node.id, entries, now_us))
        if self._unrecorded:
            self._store.record_journal(self._unrecorded)
            for batch in self._unrecorded:
                self._heard.pop(batch.node_id, None)
            self._unrecorded = []
        now_s = self._clock.monotonic_s()
        if self._heard and now_s - self._flushed_s >= HEARD_S:
            self._flushed_s = now_s
            self._store.record_heard(self._heard)
            self._heard = {}

    def _judge_silence(self) -> None:
        now_s = self._clock.monotonic_s()
        for followed in list(self._followed.values()):
            if now_s - followed.heard_s > SILENT_S:
                log.info("silent", node=followed.node.id)
                self._leave(followed, failed=True)

    def _leave(self, followed: _Followed, *, failed: bool) -> None:
        """Stop following; a link that failed is on record, and tried again."""
        node_id = followed.node.id
        if self._followed.pop(node_id, None) is None:
            return
        self._selector.unregister(followed.channel.fileno())
        followed.connection.close()
        if followed.entries:
            batch = JournalBatch(node_id, tuple(followed.entries), self._clock.now_us())
            self._unrecorded.append(batch)
        if not failed:
            self._failures.pop(node_id, None)
            return
        self._record()
        self._fail(node_id)
        self._store.record_link(node_id, self._clock.now_us())


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        return
