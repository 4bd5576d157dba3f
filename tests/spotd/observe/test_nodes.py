"""The follower, over real SSH, with the real agent at the other end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from providers.base import Instance
from providers.stores.base import StoreUnavailableError as StoreAwayError
from providers.stores.local import LocalStore
from spotd import wire
from spotd.act.bundle import Bundle
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.observe import journal_writer, log_shipper, nodes, retries
from spotd.observe.nodes import Follower
from spotd.observe.selector import SystemSelector
from spotd.store.errors import StoreUnavailableError
from spotd.store.journal import JournalBatch
from tests.fixtures import sshd
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.station import NODE, Station, kill, station
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.spotd.store import build

COUNT = "i=0; while [ $i -lt {} ]; do i=$((i+1)); echo line $i; sleep {}; done"


@pytest.fixture
def here(tmp_path: Path, bundle: Bundle) -> Iterator[Station]:
    with station(tmp_path, bundle) as found:
        yield found


class Tap:
    """Every journal batch that reached the store."""

    def __init__(self, here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seqs: list[int] = []
        self.away = False
        self.refused = 0
        real = here.store.journal.record

        def record(batches: list[JournalBatch]) -> None:
            if self.away:
                self.refused += 1
                raise StoreUnavailableError("away")
            # Before anybody can see in the store that it got there.
            self.seqs += [entry.seq for batch in batches for entry in batch.entries]
            real(batches)

        monkeypatch.setattr(here.store.journal, "record", record)


def follow_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if type(t).__name__ == "Transport"]


@pytest.mark.req("RPV-14")
def test_a_node_is_followed_from_its_hello_to_its_end(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = Tap(here, monkeypatch)
    follower = here.follow()
    assert follow_threads() == []
    here.boot()
    follower.poke()
    wait_until("its hello", lambda: here.node.startup.hello_at_us)
    here.train("echo one; echo two")
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    wait_until("its output", lambda: here.log() == b"one\ntwo\n")
    assert here.node.training.exit_code == 0
    assert tap.seqs == list(range(1, here.node.agent.journal_seq + 1))
    assert len(follow_threads()) == 1
    build.move(here.store, NODE, NodeState.TERMINATING)
    build.move(here.store, NODE, NodeState.GONE)
    follower.poke()
    wait_until("it was left", lambda: follow_threads() == [])
    assert here.node.agent.link_down_at_us == 0


class Noting(SystemSelector[Any]):
    """Notes how long the follower means to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.naps_s: list[float] = []

    def wait(self, timeout_s: float) -> list[Any]:
        self.naps_s.append(timeout_s)
        return super().wait(timeout_s)


class Slow(LocalStore):
    """The deployment's store, which can be away."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.there = threading.Event()
        self.refused = threading.Event()

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        if not self.there.is_set():
            self.refused.set()
            raise StoreAwayError("away")
        return super().put_if(key, data, tag)


def test_an_exit_is_recorded_when_the_output_before_it_is_written(
    here: Station, tmp_path: Path
) -> None:
    """Whoever reads the exit ends the machine."""
    here.objects = slow = Slow(tmp_path / "slow")
    here.boot()
    here.follow().poke()
    here.train("seq -f 'line %06g' 1 50000")
    wait_until("it has ended", lambda: "exited" in here.journal())
    assert slow.refused.wait(LIMIT_S)
    assert here.node.training.exit_code is None
    slow.there.set()
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    assert here.log() == b"".join(b"line %06d\n" % number for number in range(1, 50_001))
    assert here.store.logs.offsets("j1") == {(1, 0, "rank0"): 600_000}


def test_a_store_that_stays_away_holds_no_machine(
    here: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "WRITE_S", 1.0)
    here.objects = slow = Slow(tmp_path / "slow")
    here.boot()
    here.follow().poke()
    here.train("echo one")
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    slow.there.set()
    wait_until("its output", lambda: here.log() == b"one\n")


def test_last_output_that_was_dropped_is_fetched_again_before_the_exit(
    here: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipper, "HELD_BYTES", 200_000)
    monkeypatch.setattr(nodes, "WRITE_S", 3600.0)
    here.objects = slow = Slow(tmp_path / "slow")
    here.boot()
    follower = here.follow()
    follower.poke()
    here.train("seq -f 'line %06g' 1 50000")
    wait_until("some is dropped", lambda: follower._output.drops(NODE))
    slow.there.set()
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    assert here.log() == b"".join(b"line %06d\n" % number for number in range(1, 50_001))


def test_without_a_machine_nobody_looks_again_and_again(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "LOOK_S", 600.0)
    waiting = Noting()
    follower = here.follow(waiting)
    wait_until("it sleeps till the next look", lambda: waiting.naps_s and waiting.naps_s[-1] > 500)
    here.boot()
    follower.poke()
    wait_until("its hello", lambda: here.node.startup.hello_at_us)
    awake = len(waiting.naps_s)
    wait_until("more turns", lambda: len(waiting.naps_s) > awake + 5)
    assert max(waiting.naps_s[awake:]) <= nodes.TURN_S


@pytest.mark.req("PRE-01")
def test_a_notice_is_in_the_store_at_once(here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is read: not at the next look, nor with the next heartbeat."""
    monkeypatch.setattr(nodes, "LOOK_S", 600.0)
    monkeypatch.setattr(nodes, "TURN_S", 600.0)
    here.heartbeat_s = 600.0
    with serve_metadata("aws") as service:
        here.boot(watcher="aws", metadata_base=service.url)
        follower = here.follow()
        follower.poke()
        wait_until("its hello", lambda: here.node.startup.hello_at_us)
        here.train("echo the newest output; sleep 1000")
        # What comes after the notice waits for a turn, and there is none now.
        wait_until("its output", lambda: b"newest" in gathered(follower, here.node) + here.log())
        service.publish("preempt", here.clock.now_us() + 120_000_000)
        wait_until("in the store", lambda: here.node.notices)
        wait_until("the tail", lambda: b"the newest output" in here.log())


def gathered(follower: Follower, node: Node) -> bytes:
    """What has come of the training output and is not written yet."""
    streams = follower._output._streams.get(node.id, {})
    return bytes(streams["rank0"].data) if "rank0" in streams else b""


def test_nothing_is_lost_or_told_twice_over_cuts(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is cut again and again while the node talks; entries and output come out whole."""
    tap = Tap(here, monkeypatch)
    monkeypatch.setattr(retries, "CAP_S", 0.5)
    here.boot()
    here.follow().poke()
    here.train(COUNT.format(200, 0.02))
    downs = 0
    for _ in range(3):
        before = here.node.agent.journal_seq
        wait_until(
            "it was heard",
            lambda: here.node.agent.heard_at_us and not here.node.agent.link_down_at_us,
        )
        time.sleep(0.4)
        here.machine.stop()
        wait_until("the end of the link is on record", lambda: here.node.agent.link_down_at_us)
        downs += 1
        here.cut()
        assert here.node.agent.journal_seq >= before
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    expected = b"".join(b"line %d\n" % number for number in range(1, 201))
    wait_until("its output", lambda: here.log() == expected)
    assert tap.seqs == list(range(1, here.node.agent.journal_seq + 1))
    wait_until("its link is up", lambda: not here.node.agent.link_down_at_us)
    assert downs == 3


def test_another_follower_goes_on_where_the_last_one_was(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = Tap(here, monkeypatch)
    here.boot()
    here.train(COUNT.format(100, 0.03))
    for _ in range(3):
        follower = here.follow()
        wait_until("it listens", follow_threads)
        time.sleep(0.5)
        follower.stop()
        here.followers.remove(follower)
        # A login that was under way goes on, and is hung up when it is through.
        wait_until("nobody listens", lambda: not follow_threads())
    here.follow()
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    expected = b"".join(b"line %d\n" % number for number in range(1, 101))
    wait_until("its output", lambda: here.log() == expected)
    assert tap.seqs == list(range(1, here.node.agent.journal_seq + 1))


@pytest.mark.req("PRE-10")
def test_a_machine_that_freezes_is_noticed(here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel answers for it: only missing heartbeats tell."""
    monkeypatch.setattr(nodes, "SILENT_S", 4.0)
    monkeypatch.setattr(journal_writer, "HEARD_S", 0.1)
    here.boot()
    here.follow().poke()
    hello_us = wait_until("it was heard", lambda: here.node.startup.hello_at_us)
    wait_until("it beats", lambda: here.node.agent.heard_at_us > hello_us + 5_000_000)
    assert here.node.agent.link_down_at_us == 0
    here.machine.freeze()
    wait_until("its silence is on record", lambda: here.node.agent.link_down_at_us)
    here.machine.thaw()
    wait_until("its link is up", lambda: here.node.agent.link_down_at_us == 0)


def test_a_dead_agent_does_not_sound_alive(here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine answers and its journal can be read; heartbeats are what counts."""
    monkeypatch.setattr(nodes, "SILENT_S", 1.5)
    monkeypatch.setattr(journal_writer, "HEARD_S", 0.1)
    here.boot()
    here.follow().poke()
    wait_until("it was heard", lambda: here.node.startup.hello_at_us)
    pid = int((here.machine.home / ".spotd" / "j1" / "g1" / "agent.pid").read_text())
    kill(pid)
    down_us = wait_until("its link is down", lambda: here.node.agent.link_down_at_us)
    time.sleep(4)
    assert here.node.agent.link_down_at_us == down_us, "it flaps"


def test_while_the_store_is_away_nothing_is_lost(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = Tap(here, monkeypatch)
    here.boot()
    here.follow().poke()
    wait_until("it was heard", lambda: here.node.startup.hello_at_us)
    tap.away = True
    here.train(COUNT.format(20, 0.02))
    wait_until("it has ended", lambda: "exited" in here.journal())
    assert here.node.training.exit_code is None
    tap.away = False
    wait_until("its exit", lambda: here.node.training.exit_code is not None)
    assert tap.seqs == list(range(1, here.node.agent.journal_seq + 1))


def test_it_does_not_count_as_listening_while_nothing_is_taken_down(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap, turns = Tap(here, monkeypatch), threading.Event()
    here.boot()
    follower = here.follow()
    monkeypatch.setattr(follower, "_listened", turns.set)
    wait_until("a turn", turns.is_set)
    wait_until("it was heard", lambda: here.node.startup.hello_at_us)
    tap.away = True
    here.train(COUNT.format(3, 0.02))
    wait_until("something to record", lambda: tap.refused)
    turns.clear()
    wait_until("the store asked again", lambda: tap.refused >= 4)
    assert not turns.is_set()
    tap.away = False
    wait_until("a turn", turns.is_set)


def test_a_node_of_an_older_version_is_given_the_new_code(here: Station) -> None:
    here.boot()
    old = here.link.bundle
    here.link.bundle = replace(
        old, data=old.data + b"\0", digest=sha256(old.data + b"\0").hexdigest()
    )
    (here.machine.home / ".spotd" / "bundles" / f"{old.digest}.pyz").unlink()
    here.follow().poke()
    wait_until("it was heard", lambda: here.node.startup.hello_at_us)
    bundles = [path.stem for path in (here.machine.home / ".spotd" / "bundles").iterdir()]
    assert bundles == [here.link.bundle.digest]


@pytest.mark.parametrize("before", ["nothing", "silence"])
@pytest.mark.parametrize("mistake", ["host", "user"])
def test_somebody_else_at_the_address_is_told(
    here: Station, mistake: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alert, once, however often it is tried, and also at an address where nobody had answered;
    and nothing that was said there counts."""
    monkeypatch.setattr(retries, "CAP_S", 0.2)
    here.boot()
    wrong, right = sshd.keys(9), here.keys
    keys = replace(wrong, user=right.user) if mistake == "host" else replace(right, user=wrong.user)
    follower = Follower(here.store, here.link, lambda _: keys, here.objects, here.clock)
    here.followers.append(follower)
    port = here.machine.port
    if before == "silence":
        here.machine.close()
    follower.start()
    wait_until("down", lambda: here.node.agent.link_down_at_us)
    if before == "silence":
        here.machine = sshd.start(here.machine.home, port)
        wait_until("told", lambda: "link_refused" in here.kinds())
    tried = follower._retries.failures(NODE)
    wait_until("tried again", lambda: follower._retries.failures(NODE) > tried + 4)
    said = [row.event for row in here.store.events.rows("j1") if row.event.kind == "link_refused"]
    assert len(said) == 1
    assert said[0].alert
    assert here.node.startup.hello_at_us == 0


def test_rubbish_from_a_node_stops_nothing(here: Station) -> None:
    """A login script that talks, lines of no protocol, a gap that stays: the rest still counts."""
    tools = here.machine.home / "bin"
    tools.mkdir()
    hello = wire.JournalEntry(1, 1, 1, wire.HELLO, {"agent": "x", "wire": 1})
    warning = wire.JournalEntry(4, 2, 1, wire.WARNING, {"text": "after the gap"})
    beat = wire.Heartbeat(4, 3, 1, 0)
    said = b"Welcome!\n\xff\xfe\n" + hello.to_line() + warning.to_line() + beat.to_line()
    (here.machine.home / "said").write_bytes(said)
    fake = tools / "python3"
    fake.write_text('#!/bin/sh\ncat "$HOME/said"\nexec sleep 1000\n')
    fake.chmod(0o755)
    port = here.machine.port
    here.machine.close()
    here.machine = sshd.start(here.machine.home, port, path=f"{tools}:/usr/bin:/bin")
    here.enlist()
    folder = here.machine.home / ".spotd" / "bundles"
    folder.mkdir(parents=True)
    (folder / f"{here.link.bundle.digest}.pyz").write_text("")
    here.store.nodes.record_booted(NODE, here.clock.now_us())
    here.follow().poke()
    wait_until("what came after the gap", lambda: here.node.agent.journal_seq == 4)
    texts = [row.event.text for row in here.store.events.rows("j1")]
    assert any("after the gap" in text for text in texts)


@contextmanager
def tarpits(count: int) -> Iterator[list[int]]:
    """Ports that take a connection and never say a word."""
    servers = [socket.create_server(("127.0.0.1", 0), backlog=16) for _ in range(count)]
    try:
        yield [server.getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.close()


def test_dead_machines_do_not_hold_up_a_new_one(here: Station) -> None:
    """Twenty machines that swallow connections, tried again and again; then one boots."""
    here.link.connect_s = 1.0
    with tarpits(20) as ports:
        view = build.placed(here.store, "j2", *dead_nodes(ports))
        now_us = here.clock.now_us()
        seen: list[Instance] = []
        for node, port in zip(view.nodes, ports, strict=True):
            here.store.nodes.record_launched(node.id, f"i-{node.id}", now_us)
            seen.append(build.instance(node, f"i-{node.id}", port=port))
        here.store.instances.record_listing("aws", seen, now_us + 1, now_us + 1)
        for node in view.nodes:
            build.move(here.store, node.id, NodeState.BOOTING, now_us)
            here.store.nodes.record_booted(node.id, now_us)
        follower = here.follow()
        wait_until("all were tried", lambda: len(follower._retries._failures) == 20)
        # From now on a dead one takes for ever; all threads that try again are soon with one.
        here.link.connect_s = 600.0
        again = follower._opener._queues[1]
        wait_until("the dead to wait in line", again.qsize)
        here.boot()
        follower.poke()
        wait_until("its hello", lambda: here.node.startup.hello_at_us)
        assert again.qsize() > 0
        assert all(node.agent.link_down_at_us for node in here.store.nodes.of_job("j2"))


def dead_nodes(ports: list[int]) -> list[Node]:
    return [
        build.new_node("j2", number=number, token=f"t-dead-{number}")
        for number in range(len(ports))
    ]


def test_stop_does_not_wait_for_a_dead_machine(here: Station) -> None:
    here.link.connect_s = 2 * LIMIT_S
    with tarpits(1) as ports:
        here.enlist()
        seen = build.instance(here.node, "i-1", port=ports[0])
        here.store.instances.record_listing("aws", [seen], here.clock.now_us(), here.clock.now_us())
        here.store.nodes.record_booted(NODE, here.clock.now_us())
        follower = here.follow()
        wait_until("it is being opened", lambda: follower._opening)
        began_s = time.monotonic()
        follower.stop()
        assert time.monotonic() - began_s < LIMIT_S


def test_a_node_that_ends_with_its_link_down_wakes_nobody(here: Station) -> None:
    """It is not tried again, so it is due for nothing."""
    here.boot()
    here.machine.stop()
    follower = here.follow()
    wait_until("its link to be down", lambda: here.node.agent.link_down_at_us)
    build.move(here.store, NODE, NodeState.TERMINATING)
    follower.poke()
    wait_until("nothing to wake up for", lambda: follower._retries.next_s(()) == float("inf"))


def test_hints_do_not_become_queries(here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction of a busy fleet pokes; the store is asked a few times a second."""
    looks = []
    real = here.store.nodes.booted
    monkeypatch.setattr(here.store.nodes, "booted", lambda: (looks.append(1), real())[1])
    follower = here.follow()
    began_s = time.monotonic()
    # A machine full of other work may run the follower late: it is given the time to look again.
    while (passed_s := time.monotonic() - began_s) < 2 or (len(looks) < 2 and passed_s < LIMIT_S):
        follower.poke()
        time.sleep(0.001)
    assert 2 <= len(looks) <= 15 * passed_s
