"""Follows every node's journal over SSH: one thread of paramiko's a node, one of ours for all.

What the nodes say in one turn of the loop is recorded in one transaction, a notice within
milliseconds. Nothing is acknowledged to a node: after any interruption the stream is opened again
from the last entry on record, so that nothing is lost and nothing counts twice.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable

import paramiko
import structlog

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.effects import LinkError
from spotd.act.link import NO_BUNDLE, SshLink
from spotd.act.ssh import HostKeyMismatchError, SshAuthRefusedError, SshError
from spotd.clock import Clock
from spotd.errors import UserError
from spotd.model import Event, Node, Severity
from spotd.observe.opening import Followed, Openers, open_stream
from spotd.observe.output import Output
from spotd.observe.recording import Recorder
from spotd.states import NodeState
from spotd.store.base import Store, StoreError
from spotd.vault import JobKeys

log = structlog.get_logger(__name__)

LOOK_S = 2.0  # between looks for nodes to follow, without a hint
LOOK_FLOOR_S = 0.1  # with hints; and never more than a tenth of the time
TURN_S = 0.25  # the longest sleep
SILENT_S = 10.0  # five heartbeats missed: the link is as good as down
STALL_S = 3.0  # a turn that took longer says nothing about the nodes' silence
RETRY_FIRST_S, RETRY_CAP_S = 0.25, 10.0
FRESH, AGAIN = 8, 4  # links opened at once: of nodes not tried before, of the others
READ_BYTES = 32 << 10  # of one node in one turn: the others have something to say, too

FOLLOWED = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


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
        self._output = Output(store, objects, clock)
        self._recorder = Recorder(store, clock)
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._openers = Openers(FRESH, AGAIN)
        self._lock = threading.Lock()  # of the three that opening threads share with the loop
        self._opened: list[Followed] = []
        self._failed: list[tuple[Node, str]] = []
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower")
        # --- the loop's own
        self._followed: dict[str, Followed] = {}
        self._talked: list[Followed] = []  # those with entries to be recorded
        self._opening: set[str] = set()
        self._ending: set[str] = set()  # followed to their end, but not anew
        self._retry_at_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._gaps: dict[str, int] = {}
        self._unshipped: set[str] = set()
        self._looked_s = -1e9
        self._look_took_s = 0.0
        self._judged_s = clock.monotonic_s()

    def start(self) -> None:
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._thread.start()

    def poke(self) -> None:
        """There may be a node to follow, or one to leave: look soon."""
        self._poked.set()
        self._nudge()

    def stop(self) -> None:
        """Leave every node; they go on without us."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._nudge()
        if self._thread.is_alive():
            self._thread.join()
        self._openers.stop()
        self._close_opened()
        for followed in self._followed.values():
            followed.close()
        self._output.close()
        self._selector.close()
        with self._lock:
            for descriptor in (self._wake_r, self._wake_w):
                os.close(descriptor)
            self._wake_w = -1

    def _close_opened(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, []
        for followed in opened:
            followed.close()

    def _nudge(self) -> None:
        with self._lock:
            if self._wake_w < 0:
                return
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
            except Exception:
                log.exception("a turn failed")
                self._stopping.wait(0.5)

    def _turn(self) -> None:
        self._record()
        wait_s = self._look_when_due()
        for key, _ in self._selector.select(timeout=wait_s):
            if key.data is None:
                _drain(self._wake_r)
            else:
                self._read(key.data)
        self._adopt()
        self._record()
        self._judge_silence()
        self._output.flush()
        for node_id in self._output.incomplete():
            if node_id in self._followed:
                self._leave(self._followed[node_id])

    def _look_when_due(self) -> float:
        """How long the loop may sleep now."""
        now_s = self._clock.monotonic_s()
        floor_s = max(LOOK_FLOOR_S, 10 * self._look_took_s)
        due_s = self._looked_s + (floor_s if self._poked.is_set() else LOOK_S)
        for node_id, retry_s in self._retry_at_s.items():
            if node_id not in self._opening and node_id not in self._followed:
                due_s = min(due_s, max(retry_s, self._looked_s + floor_s))
        if now_s < due_s:
            return min(due_s - now_s, TURN_S)
        self._poked.clear()
        self._looked_s = now_s
        self._look(now_s)
        self._look_took_s = self._clock.monotonic_s() - now_s
        return 0.0

    def _look(self, now_s: float) -> None:
        """Open what should be followed, leave what should not."""
        active = {node.id: node for node in self._store.active_nodes()}
        self._ending = {n.id for n in active.values() if n.state is NodeState.TERMINATING}
        wanted = {
            node.id: node
            for node in active.values()
            if node.state in FOLLOWED and node.booted_at_us and node.host
        }
        for node_id in [n for n in self._followed if n not in wanted and n not in self._ending]:
            self._leave(self._followed[node_id])
        self._forget({*wanted, *self._ending})
        for node in wanted.values():
            if node.id in self._followed or node.id in self._opening:
                continue
            if now_s >= self._retry_at_s.get(node.id, 0.0):
                self._open(node)

    def _forget(self, kept: set[str]) -> None:
        """What was remembered of nodes that are no longer to be followed."""
        for node_id in [n for n in self._output.nodes if n not in kept]:
            self._output.end(node_id)
        for memory in (self._retry_at_s, self._failures, self._gaps):
            for node_id in [n for n in memory if n not in kept]:
                del memory[node_id]
        self._recorder.forget(kept)
        self._unshipped &= kept

    # --- links come and go

    def _open(self, node: Node) -> None:
        ship, gap_after = node.id in self._unshipped, self._gaps.get(node.id, -1)

        def task() -> None:
            try:
                followed = self._connect(node, gap_after, ship=ship)
            except (SshError, LinkError, StoreError, UserError, KeyError) as error:
                self._report(node, error)
            except Exception as error:
                log.exception("cannot follow", node=node.id)
                self._report(node, error)
            else:
                with self._lock:
                    self._opened.append(followed)
            self._nudge()
            if self._stopping.is_set():
                self._close_opened()

        self._opening.add(node.id)
        self._openers.submit(task, failed=self._failures.get(node.id, 0) > 0)

    def _connect(self, node: Node, gap_after: int, *, ship: bool) -> Followed:
        """On an opening thread."""
        offsets = {
            stream: offset
            for (generation, rank, stream), offset in self._store.log_offsets(node.job_id).items()
            if (generation, rank) == (node.generation, node.rank)
        }
        keys = self._keys(node.job_id)
        return open_stream(self._link, node, keys, offsets, gap_after, ship=ship)

    def _report(self, node: Node, error: Exception) -> None:
        """On an opening thread: put a failure where the loop finds it."""
        if self._stopping.is_set():
            return
        log.info("cannot follow", node=node.id, error=str(error))
        known = self._failures.get(node.id, 0) > 0
        if isinstance(error, HostKeyMismatchError | SshAuthRefusedError) and not known:
            words = f"{node.id} cannot be followed: {error}"
            event = Event("link_refused", words, node.id, Severity.WARNING, alert=True, key=node.id)
            try:
                self._store.add_event(node.job_id, event, self._clock.now_us())
            except StoreError as trouble:
                log.warning("the store does not answer", error=str(trouble))
        with self._lock:
            self._failed.append((node, str(error)))

    def _adopt(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, []
            failed, self._failed = self._failed, []
        for node, _ in failed:
            self._opening.discard(node.id)
            self._fail(node.id)
        for followed in opened:
            node_id = followed.node.id
            self._opening.discard(node_id)
            self._unshipped.discard(node_id)
            if followed.node.link_down_at_us:
                self._recorder.lose(node_id, recorded=True)
            followed.heard_s = self._clock.monotonic_s()
            self._followed[node_id] = followed
            self._output.begin(followed.node, followed.offsets)
            self._selector.register(followed.descriptor, selectors.EVENT_READ, followed)

    def _leave(self, followed: Followed) -> None:
        """Stop following; what was said is kept."""
        node_id = followed.node.id
        del self._followed[node_id]
        self._selector.unregister(followed.descriptor)
        if followed.channel.exit_status == NO_BUNDLE:
            self._unshipped.add(node_id)
        followed.close()
        self._say(followed)

    def _lose(self, followed: Followed) -> None:
        """The link ended, or is worth nothing: that is on record at once, and it is tried again."""
        self._leave(followed)
        if followed.node.id not in self._ending:
            self._fail(followed.node.id)

    def _fail(self, node_id: str, pause_s: float = 0.0) -> None:
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = failures + 1
        pause_s = pause_s or min(RETRY_FIRST_S * float(1 << min(failures, 10)), RETRY_CAP_S)
        self._retry_at_s[node_id] = self._clock.monotonic_s() + pause_s
        self._recorder.lose(node_id)

    # --- what nodes say

    def _read(self, followed: Followed) -> None:
        """What has arrived; the end of the stream is the end of the link."""
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
        if data:
            self._take(followed, data)
        elif over and not channel.recv_ready() and not channel.recv_stderr_ready():
            log.info("the link ended", node=node_id)
            self._lose(followed)

    def _take(self, followed: Followed, data: bytes) -> None:
        fed = followed.stream.feed(data)
        node_id = followed.node.id
        if fed.entries:
            followed.entries += fed.entries
            self._talked.append(followed)
        for chunk in fed.logs:
            self._output.take(followed.node, chunk)
        if any(entry.kind in (wire.NOTICE, wire.EXITED) for entry in fed.entries):
            self._output.flush(node_id)
        if fed.garbage:
            log.warning("not of our protocol", node=node_id, lines=fed.garbage)
        if fed.entries or fed.heartbeats:
            followed.heard_s = self._clock.monotonic_s()
            self._recorder.hear(node_id)
        if fed.heartbeats:
            self._failures.pop(node_id, None)
        if fed.gap:
            log.warning("journal entries are missing", node=node_id, after=followed.stream.seq)
            self._gaps[node_id] = followed.stream.seq
            self._lose(followed)

    def _record(self) -> None:
        for followed in self._talked:
            self._say(followed)
        self._talked = []
        for node_id in self._recorder.flush():
            if node_id in self._followed:
                self._leave(self._followed[node_id])
            self._fail(node_id, RETRY_CAP_S)

    def _say(self, followed: Followed) -> None:
        if followed.entries:
            self._recorder.say(followed.node.id, followed.entries)
            followed.entries = []

    def _judge_silence(self) -> None:
        """Once a second. When it is much later than that, it was us who did not listen."""
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


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        return
