"""Opening a node's follow stream: connect, log in, ask; on threads of its own, because it can take
as long as a dead machine lets it."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import paramiko

from spotd.act.effects import LinkError
from spotd.act.link import SshLink, node_command, node_words
from spotd.act.ssh import Connection, SshError
from spotd.model import Node
from spotd.observe.stream import NodeStream
from spotd.vault import JobKeys
from spotd.wire import JournalEntry

OPEN_S = 15.0
# What a node may have said and we not read: bounds memory when the store is away, and is refilled
# within a round trip otherwise.
WINDOW_BYTES = 256 << 10


@dataclass
class Followed:
    """One node being followed. All of it belongs to the follower's thread."""

    node: Node
    connection: Connection
    channel: paramiko.Channel
    descriptor: int  # readable when the channel has something to say
    stream: NodeStream
    offsets: Mapping[str, int]
    heard_s: float = 0.0
    entries: list[JournalEntry] = field(default_factory=list)

    def close(self) -> None:
        """Hang up; the descriptor must not be watched any more."""
        self.connection.close()
        self.channel.close()


def open_stream(
    link: SshLink,
    node: Node,
    keys: JobKeys,
    offsets: Mapping[str, int],
    gap_after: int,
    *,
    ship: bool,
) -> Followed:
    """Follow `node` from its last recorded entry and these log offsets on.

    `ship` brings our version of the agent's code first. Raises SshError, LinkError.
    """
    connection = link.connect(node, keys)
    try:
        if ship:
            link.ship(connection)
        words = f"follow {node_words(node)} --after {node.journal_seq}"
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
        raise SshError(f"it broke while we asked: {error}") from None
    stream = NodeStream(node.journal_seq, gap_after)
    return Followed(node, connection, channel, descriptor, stream, offsets)


class Openers:
    """Threads that run what they are given. Machines that have failed before wait for threads of
    their own, so that many dead ones do not hold up one that has just booted."""

    def __init__(self, fresh: int, again: int) -> None:
        self._queues: tuple[_Tasks, _Tasks] = (queue.SimpleQueue(), queue.SimpleQueue())
        for number, tasks in ((fresh, self._queues[0]), (again, self._queues[1])):
            for _ in range(number):
                threading.Thread(target=_work, args=(tasks,), name="follow", daemon=True).start()
        self._numbers = (fresh, again)

    def submit(self, task: Callable[[], None], *, failed: bool) -> None:
        """Run `task`, which must not raise."""
        self._queues[failed].put(task)

    def stop(self) -> None:
        """Let the threads end; those that wait for a machine end with the process."""
        for tasks, number in zip(self._queues, self._numbers, strict=True):
            for _ in range(number):
                tasks.put(None)


_Tasks = queue.SimpleQueue[Callable[[], None] | None]


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
