"""Follow every node's journal over SSH: one paramiko thread per node, one thread of ours for all.

Everything that nodes send in one turn of the loop is recorded in one transaction, a notice within
milliseconds. Nothing is acknowledged to a node: after an interruption the stream is opened again
from the last recorded entry, so nothing is lost and nothing counts twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import paramiko
import structlog

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.link import NO_BUNDLE, SshLink
from spotd.base.clock import Clock
from spotd.domain.states import NodeState
from spotd.observe.connect import FollowedNode, StreamConnector
from spotd.observe.journal_writer import JournalWriter
from spotd.observe.keepalive import Keepalive
from spotd.observe.log_shipper import Output
from spotd.observe.retries import Retries
from spotd.observe.selector import StreamSelector, SystemSelector
from spotd.security.secrets import JobKeys
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.wire import LogEnd

log = structlog.get_logger(__name__)

LOOK_S = 2.0  # between looks for nodes to follow, without a hint
LOOK_FLOOR_S = 0.1  # with hints; and never more than a tenth of the time
TURN_S = 0.25  # the longest sleep, while there is a node
# Pause between batches while one batch holds all the nodes' lines: hundreds of nodes share a batch
# then, which costs the same for one, and a notice is late by half of this.
GATHER_S = 0.05
SILENT_S = 10.0  # five heartbeats missed: the link is as good as down
STALL_S = 3.0  # a turn that took longer says nothing about the nodes' silence
POISON_S = 10.0  # before entries that could not be recorded are read again
READ_BYTES = 32 << 10  # of one node in one turn: the others have something to say, too
# The machine may be terminated once the end of its script is recorded. Its last output is written
# before, but a store that is away does not hold a machine for longer than this.
WRITE_S = 10.0

FOLLOWED = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


class Follower:
    """Follows all nodes. Start it once; `poke` hints that there are new nodes.

    `listened` is called after every completed turn.
    """

    def __init__(
        self,
        store: Store,
        link: SshLink,
        keys: Callable[[str], JobKeys],
        objects: ObjectStore,
        clock: Clock,
        listened: Callable[[], None] = lambda: None,
        waiting: StreamSelector[FollowedNode] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._listened = listened
        self._waiting = waiting or SystemSelector()
        self._output = Output(store, objects, clock, self._waiting.nudge)
        self._recorder = JournalWriter(store, clock)
        self._presence = Keepalive(store, clock)
        self._opener = StreamConnector(store, link, keys, clock, self._waiting.nudge)
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower")
        # --- the loop's own
        self._followed: dict[str, FollowedNode] = {}
        self._talked: list[FollowedNode] = []  # those with entries to be recorded
        self._held_until_s: dict[str, float] = {}  # nodes whose last output is not written yet
        self._opening: set[str] = set()
        self._ending: set[str] = set()  # followed to their end, but not anew
        self._retries = Retries(clock)
        self._gaps: dict[str, int] = {}
        self._unshipped: set[str] = set()
        self._idle = False  # there is no node to follow or to open
        self._looked_s = -1e9
        self._look_took_s = 0.0
        self._judged_s = clock.monotonic_s()
        self._turned_s = -1e9
        self._more = False  # some node had more to say than was read

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """Check soon for nodes to follow or to leave."""
        self._poked.set()
        self._waiting.nudge()

    def stop(self) -> None:
        """Leave every node; they continue without us."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._waiting.nudge()
        if self._thread.is_alive():
            self._thread.join()
        self._opener.stop()
        for followed in self._followed.values():
            followed.close()
        self._output.close()
        self._waiting.close()

    # --- the loop

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
                self._listened()
            except StoreError as error:
                # Nothing more is read from the nodes until their earlier lines are on record.
                log.warning("the store does not answer", error=str(error))
                self._stopping.wait(0.5)
            except Exception:
                log.exception("a turn failed")
                self._stopping.wait(0.5)

    def _turn(self) -> None:
        self._record()
        wait_s = self._look_when_due()
        self._gather()
        for followed in self._waiting.wait(wait_s):
            self._read(followed)
        self._adopt()
        self._record()
        self._judge_silence()
        self._presence.tell(self._followed.values())
        self._output.flush()
        for node_id in self._output.incomplete():
            if node_id in self._followed:
                self._leave(self._followed[node_id])

    def _gather(self) -> None:
        """Wait a moment so that messages of several nodes share a transaction.

        Not if the last turn is long ago.
        """
        pause_s = self._turned_s + GATHER_S - self._clock.monotonic_s()
        if pause_s > 0 and not self._more:
            self._stopping.wait(pause_s)
        self._turned_s = self._clock.monotonic_s()
        self._more = False

    def _look_when_due(self) -> float:
        """Return how long the loop may sleep."""
        now_s = self._clock.monotonic_s()
        floor_s = max(LOOK_FLOOR_S, 10 * self._look_took_s)
        due_s = self._looked_s + (floor_s if self._poked.is_set() else LOOK_S)
        retry_s = self._retries.next_s({*self._opening, *self._followed})
        due_s = min(due_s, max(retry_s, self._looked_s + floor_s))
        if now_s < due_s:
            return due_s - now_s if self._idle else min(due_s - now_s, TURN_S)
        self._poked.clear()
        self._looked_s = now_s
        self._look(now_s)
        self._look_took_s = self._clock.monotonic_s() - now_s
        return 0.0

    def _look(self, now_s: float) -> None:
        """Open the streams of nodes that should be followed, and leave the others."""
        booted = self._store.nodes.booted()
        self._idle = not booted and not self._followed and not self._opening
        self._ending = {n for n, state in booted.items() if state is NodeState.TERMINATING}
        wanted = {n for n, state in booted.items() if state in FOLLOWED}
        for node_id in [n for n in self._followed if n not in wanted and n not in self._ending]:
            self._leave(self._followed[node_id])
        self._forget({*wanted, *self._ending})
        self._retries.forget(wanted)  # one that ends is not tried again, and wakes nobody
        self._opener.forget(wanted)
        missing = wanted - self._followed.keys() - self._opening
        due = [node_id for node_id in missing if self._retries.due(node_id, now_s)]
        for node in self._store.nodes.find(due) if due else ():
            self._opening.add(node.id)
            self._opener.open(
                node,
                self._gaps.get(node.id, -1),
                ship=node.id in self._unshipped,
                failures=self._retries.failures(node.id),
            )

    def _forget(self, present: set[str]) -> None:
        """Drop the state of nodes that are no longer followed."""
        for node_id in [n for n in self._output.nodes if n not in present]:
            self._output.end(node_id)
        self._gaps = {node_id: seq for node_id, seq in self._gaps.items() if node_id in present}
        self._recorder.forget(present)
        self._unshipped &= present
        for node_id in self._held_until_s.keys() - present:
            del self._held_until_s[node_id]

    # --- links come and go

    def _adopt(self) -> None:
        opened, failed = self._opener.take()
        for node_id in failed:
            self._opening.discard(node_id)
            self._fail(node_id)
        for followed in opened:
            node_id = followed.node.id
            self._opening.discard(node_id)
            self._unshipped.discard(node_id)
            if followed.node.agent.link_down_at_us:
                self._recorder.lose(node_id, recorded=True)
            followed.heard_s = self._clock.monotonic_s()
            self._followed[node_id] = followed
            self._output.begin(followed.node, followed.offsets)
            self._waiting.watch(followed.descriptor, followed)

    def _leave(self, followed: FollowedNode) -> None:
        """Stop following; what was received is still in `_talked`."""
        node_id = followed.node.id
        del self._followed[node_id]
        self._waiting.forget(followed.descriptor)
        if followed.channel.exit_status == NO_BUNDLE:
            self._unshipped.add(node_id)
        followed.close()

    def _lose(self, followed: FollowedNode) -> None:
        """Record at once that the link ended or is unusable, and retry it."""
        self._leave(followed)
        if followed.node.id not in self._ending:
            self._fail(followed.node.id)

    def _fail(self, node_id: str, pause_s: float = 0.0) -> None:
        self._retries.fail(node_id, pause_s)
        self._recorder.lose(node_id)

    # --- what nodes say

    def _read(self, followed: FollowedNode) -> None:
        """Read available data; the end of the stream is the end of the link."""
        if followed.node.id not in self._followed:
            return  # left earlier in this turn
        channel, node_id = followed.channel, followed.node.id
        try:
            if channel.recv_stderr_ready():
                text = channel.recv_stderr(READ_BYTES).decode(errors="replace")
                log.warning("the node complains", node=node_id, text=text[-300:])
            data = channel.recv(READ_BYTES) if channel.recv_ready() else b""
            over = channel.closed or channel.eof_received
        except (paramiko.SSHException, EOFError, OSError) as error:
            log.info("the link broke", node=node_id, error=str(error))
            self._lose(followed)
            return
        self._more |= len(data) == READ_BYTES
        if data:
            self._take(followed, data)
        elif over and not channel.recv_ready() and not channel.recv_stderr_ready():
            log.info("the link ended", node=node_id)
            self._lose(followed)

    def _take(self, followed: FollowedNode, data: bytes) -> None:
        fed = followed.stream.feed(data)
        node_id = followed.node.id
        for part in fed.logs:
            if isinstance(part, LogEnd):
                self._output.finish(followed.node, part)
            else:
                self._output.take(followed.node, part)
        ends = any(entry.ends_script for entry in fed.entries)
        if ends and self._awaits_output(node_id) and self._output.drops(node_id):
            log.info("the last output is fetched again", node=node_id)
            self._leave(followed)  # the entries are read again with it
            return
        if fed.entries:
            followed.entries += fed.entries
            self._talked.append(followed)
        if ends or any(entry.kind == wire.NOTICE for entry in fed.entries):
            self._output.flush(node_id)
        if fed.garbage:
            log.warning("not of our protocol", node=node_id, lines=fed.garbage)
        if fed.entries or fed.heartbeats:
            followed.heard_s = self._clock.monotonic_s()
            self._recorder.hear(node_id)
        if fed.heartbeats:
            self._retries.succeed(node_id)
        if fed.gap:
            log.warning("journal entries are missing", node=node_id, after=followed.stream.seq)
            self._gaps[node_id] = followed.stream.seq
            self._lose(followed)

    def _record(self) -> None:
        held = []
        for followed in self._talked:
            node_id, ends = followed.node.id, any(e.ends_script for e in followed.entries)
            if ends and self._output.unwritten(node_id) and self._awaits_output(node_id):
                held.append(followed)
            elif followed.entries:
                self._held_until_s.pop(node_id, None)
                self._recorder.say(node_id, followed.entries)
                followed.entries = []
        self._talked = held
        for node_id in self._recorder.flush():
            if node_id in self._followed:
                self._leave(self._followed[node_id])
            self._fail(node_id, POISON_S)

    def _awaits_output(self, node_id: str) -> bool:
        """Return whether there is still time to write the last output of a node."""
        now_s = self._clock.monotonic_s()
        return now_s < self._held_until_s.setdefault(node_id, now_s + WRITE_S)

    def _judge_silence(self) -> None:
        """Check for silent nodes once a second; a late check means that we did not listen."""
        now_s = self._clock.monotonic_s()
        waited_s = now_s - self._judged_s
        if waited_s < 1.0:
            return
        self._judged_s = now_s
        for followed in list(self._followed.values()):
            if waited_s > STALL_S:
                followed.heard_s = now_s
            elif now_s - followed.heard_s > SILENT_S:
                log.info("silent", node=followed.node.id)
                self._lose(followed)
