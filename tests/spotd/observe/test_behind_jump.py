"""A node behind a jump host: its agent is started and followed through it, and what happens to the
jump host is not taken for something that happened to the node. Needs root."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

from spotd.act import jump_host as product
from spotd.act.bundle import Bundle
from spotd.act.jump_hosts import JumpHosts
from spotd.act.link import SshLink
from spotd.domain.market import Market, Timing, Uptime
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe import nodes, retries
from spotd.planner.core.next_effect import cut_off, lost_at_us, suspect
from spotd.security.secrets import JobKeys
from tests.fixtures import jump as rig
from tests.fixtures import netns, sshd
from tests.fixtures.jump import Server
from tests.fixtures.station import NODE, Station
from tests.fixtures.waiting import wait_until
from tests.spotd.store import build

pytestmark = pytest.mark.root

COUNT = "i=0; while [ $i -lt {} ]; do i=$((i+1)); echo line $i; sleep {}; done"


@dataclass
class _Machine:
    """What a station wants of its machine."""

    server: Server
    port: int = 22

    @property
    def home(self) -> Path:
        return self.server.folder / "home"

    @property
    def keys(self) -> JobKeys:
        return self.server.keys

    def close(self) -> None:
        self.server.stop()


class Behind(Station):
    """The node's machine is in a private network."""

    def __init__(self, folder: Path, bundle: Bundle, jump: rig.Jump, server: Server) -> None:
        super().__init__(folder, bundle)
        self.machine.close()
        self.machine = _Machine(server)  # type: ignore[assignment]
        self.jump = jump
        self.ways = JumpHosts({"aws": jump.host}, self.clock)
        self.link = SshLink(bundle, way=self.ways.dial)

    def enlist(self) -> Node:
        now_us = self.clock.now_us()
        node = build.new_node(token=sshd.TOKEN, requested_at_us=now_us)
        build.placed(self.store, "j1", node)
        self.store.nodes.record_launched(NODE, "i-1", now_us)
        host = str(self.jump.private.network[2])
        seen = build.instance(node, "i-1", host=host, port=22, ssh_user="root")
        self.store.instances.record_listing("aws", [seen], now_us + 1, now_us + 1)
        build.move(self.store, NODE, NodeState.BOOTING, now_us)
        return self.node

    def market(self) -> Market:
        timing = Timing(suspect_after_s=1.0, lost_after_s=2.0)
        return Market((), timing=timing, uptime=Uptime(reached_since_us=self.ways.reached_since()))

    def close(self) -> None:
        super().close()
        self.ways.close()


@pytest.fixture
def here(tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
    for module, name, value in (
        (product, "PING_EVERY_S", 0.6), (product, "PING_S", 1.0), (product, "FIRST_S", 0.1),
        (product, "CAP_S", 0.4), (product, "WAIT_S", 0.5), (nodes, "SILENT_S", 3.0),
        (retries, "CAP_S", 0.5),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    with (
        netns.network() as network,
        rig.jump_host(network, tmp_path / "jump") as jump,
        rig.private_server(jump, tmp_path / "node") as server,
    ):
        station = Behind(tmp_path, bundle, jump, server)
        yield station
        station.close()


def ssh_threads() -> int:
    return sum(isinstance(thread, paramiko.Transport) for thread in threading.enumerate())


def test_a_node_is_followed_through_a_jump_host_that_dies_and_comes_back(here: Behind) -> None:
    follower = here.follow()
    here.boot()
    follower.poke()
    wait_until("its hello", lambda: here.node.startup.hello_at_us)
    here.train(COUNT.format(80, 0.1))
    wait_until("its first lines", lambda: b"line 5\n" in here.log())
    assert here.jump.server.log_ins() == 1, "commands and the stream share one connection"
    assert not cut_off(here.node, here.market(), here.clock.now_us())
    here.jump.server.stop()
    wait_until("the link to be down", lambda: here.node.agent.link_down_at_us)
    for _ in range(3):
        now_us, market = here.clock.now_us(), here.market()
        view = build.view(here.store, "j1", now_us)
        assert suspect(here.node, market, now_us), "its cloud is asked"
        assert cut_off(here.node, market, now_us)
        assert lost_at_us(here.node, view, market) > now_us + S, "nobody is given up"
        threading.Event().wait(0.8)
    here.jump.server.start()
    wait_until("the link to be back", lambda: not here.node.agent.link_down_at_us)
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    lines = b"".join(b"line %d\n" % number for number in range(1, 81))
    wait_until("its output", lambda: here.log() == lines)
    assert here.node.training.exit_code == 0
    assert "link_refused" not in here.kinds()
    follower.stop()
    here.ways.close()
    wait_until("their threads to end", lambda: not ssh_threads())


@pytest.mark.parametrize("how", ["host_key", "forwarding"])
def test_a_jump_host_in_the_way_is_not_told_of_its_nodes(
    here: Behind, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifty nodes behind it, each would be told."""
    monkeypatch.setattr("spotd.act.jump_hosts.TELL_S", 0.2)
    server = here.jump.server
    if how == "host_key":
        server.set_host_key(sshd.keys(9).user)
    else:
        server.configure("AllowTcpForwarding no")
    server.restart()
    here.enlist()
    here.store.nodes.record_booted(NODE, here.clock.now_us())
    here.follow().poke()
    word = {"host_key": "jump_host_key", "forwarding": "AllowTcpForwarding"}[how]
    wait_until("what is in the way", lambda: word in here.ways.why()["aws"])
    wait_until("a try", lambda: here.node.agent.link_down_at_us)
    assert "link_refused" not in here.kinds()
