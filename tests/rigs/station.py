"""A store with a booted node in it, the machine behind the node, and a follower."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from providers.stores.local import LocalStore
from spotd.act.bundle import Bundle, build_bundle
from spotd.act.link import SshLink
from spotd.clock import SystemClock
from spotd.model import Node
from spotd.observe.nodes import Follower
from spotd.observe.output import log_key
from spotd.observe.waiting import Waiting
from spotd.states import NodeState
from spotd.store.sql import SqlStore, open_store
from spotd.vault import JobKeys
from spotd.wire import START, AgentConfig, Command, JournalEntry, StartDocument, parse_line
from tests.rigs import processes, sshd
from tests.rigs.tables import with_tables
from tests.spotd.store import build
from trainer.agent.places import find_places

T = TypeVar("T")
NODE = "j1-g1-0"
LIMIT_S = 30.0


class Station:
    """One node of job j1, generation 1, as the daemon and as its machine see it."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self.clock = SystemClock()
        self.store: SqlStore = open_store(
            with_tables(folder / "spotd.db"),
            now=self.clock.now_us,
            notify=lambda: None,
            deployment_factory=lambda: "d0",
        )
        self.objects = LocalStore(folder / "objects")
        self.link = SshLink(bundle)
        self.machine = sshd.start(folder / "home")
        self.followers: list[Follower] = []
        self.heartbeat_s = 0.2
        self.spec: dict[str, Any] = {}  # what the job asks for beside what all do

    @property
    def keys(self) -> JobKeys:
        return self.machine.keys

    @property
    def node(self) -> Node:
        return build.node(self.store, NODE)

    # --- the machine

    def enlist(self) -> Node:
        """A row in the store for a machine that the cloud says is up."""
        now_us = self.clock.now_us()
        node = build.new_node(token=sshd.TOKEN, requested_at_us=now_us)
        build.placed(self.store, "j1", node, **self.spec)
        self.store.record_launched(NODE, "i-1", now_us)
        port = self.machine.port
        seen = build.instance(node, "i-1", port=port)
        self.store.record_listing("aws", [seen], now_us + 1, now_us + 1)
        build.move(self.store, NODE, NodeState.BOOTING, now_us)
        return self.node

    def boot(self, **changes: Any) -> Node:
        """Enlist the machine, and have the real agent on it."""
        node = self.enlist()
        config = AgentConfig("d0", "j1", 1, 0, sshd.TOKEN, "none", heartbeat_s=self.heartbeat_s)
        values = {**config.to_data(), **changes}
        self.link.boot(node, self.keys, AgentConfig(**values), LIMIT_S)
        self.store.record_booted(NODE, self.clock.now_us())
        return self.node

    def train(self, script: str, **changes: Any) -> None:
        """Have the agent run a shell script."""
        values: dict[str, Any] = {
            "job_name": "test",
            "num_nodes": 1,
            "node_ips": ("127.0.0.1",),
            "accelerators_per_node": 0,
            "setup": "",
            "run": script,
            "envs": {},
            "secrets": {},
            "packages": (),
            "store_url": f"file://{self.machine.home}/checkpoints",
            "store_options": {},
            "engine": "none",
            "claim": "now",
            "claim_deadline_s": 0.0,
            "every_steps": 10,
            "every_s": 60.0,
            "keep": 3,
            "stop_grace_s": 5.0,
            "progress_every_s": 1.0,
        }
        document = StartDocument(**{**values, **changes})
        command = Command(START, 1, document.to_data())
        reply = self.link.send(self.node, self.keys, command, LIMIT_S)
        assert reply.ok, reply.error

    def journal(self) -> list[str]:
        """The kinds of entries in the node's own file."""
        path = self.machine.home / ".spotd" / "j1" / "g1" / "journal.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = [parse_line(line) for line in lines]
        return [entry.kind for entry in found if isinstance(entry, JournalEntry)]

    def cut(self) -> None:
        """The machine's SSH server dies and comes back; what runs on the machine runs on."""
        port = self.machine.port
        self.machine.close()
        self.machine = sshd.start(self.machine.home, port)

    # --- the daemon

    def follow(self, waiting: Waiting[Any] | None = None) -> Follower:
        """A running follower."""
        outside = (self.store, self.link, lambda _job: self.keys, self.objects, self.clock)
        follower = Follower(*outside, waiting=waiting)
        self.followers.append(follower)
        follower.start()
        return follower

    def kinds(self) -> list[str]:
        return build.kinds(self.store)

    def log(self, stream: str = "rank0") -> bytes:
        """What the deployment's store has of a stream, put together by offset."""
        found = b""
        prefix = log_key(self.node, stream, 0)[:-12]
        for info in self.objects.list(prefix):
            first = int(info.key[len(prefix) :])
            assert first <= len(found), f"bytes {len(found)} to {first} are missing"
            found += self.objects.get(info.key)[0][len(found) - first :]
        return found

    def close(self) -> None:
        for follower in self.followers:
            follower.stop()
        self.machine.close()
        home = str(self.machine.home)
        while found := processes.carrying("HOME", home):
            for pid in found:
                kill(pid)
        shutil.rmtree(
            find_places({"SPOTD_HOME": f"{home}/.spotd"}, "j1", 1).memory, ignore_errors=True
        )
        self.store.close()


def kill(pid: int) -> None:
    """Kill a process that may have gone by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def station(folder: Path, bundle: Bundle | None = None) -> Iterator[Station]:
    """A station whose machine answers; everything ends with the block."""
    found = Station(folder, bundle or build_bundle())
    try:
        yield found
    finally:
        found.close()
