"""Machines that only a jump host can reach, with OpenSSH at both and real networks between. Needs
root; without it, this is a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest

from spotd.act import jump_host as product
from spotd.act.direct_tcpip import Tunnel
from spotd.act.jump_host import JumpConnection, JumpError, JumpHost, load_login_key, try_out
from spotd.act.jump_hosts import JumpHosts
from spotd.act.ssh import (
    Address,
    Connection,
    HostKeyMismatchError,
    SshDeadlineError,
    SshUnreachableError,
    connect,
)
from spotd.base.clock import SystemClock
from tests.fixtures import jump as rig
from tests.fixtures import netns, sshd
from tests.fixtures.jump import Server
from tests.fixtures.netns import Machine
from tests.fixtures.waiting import LIMIT_S, wait_until

JOB = sshd.keys()
STRANGER = sshd.keys(9)


@dataclass
class Place:
    """A jump host, and one machine behind it."""

    jump: rig.Jump
    node: Server

    @property
    def address(self) -> Address:
        host = str(self.jump.private.network[2])
        return Address(host, 22, "root", self.node.host_key.public)

    @property
    def cable(self) -> Machine:
        """The machine's."""
        return Machine(self.jump.private, "node", self.address.host, 0)

    def forwarded(self) -> int:
        """How many connections to the machine the jump host's kernel has, or tries to make."""
        rows = Path(f"/proc/{self.jump.cable.pid}/net/tcp").read_text().splitlines()[1:]
        parts = self.address.host.split(".")
        wanted = "".join(f"{int(part):02X}" for part in reversed(parts)) + ":0016"
        return sum(row.split()[2] == wanted and row.split()[3] != "06" for row in rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("jump")
    with (
        netns.network() as network,
        rig.jump_host(network, folder / "jump") as jump,
        rig.private_server(jump, folder / "node", JOB) as node,
    ):
        yield Place(jump, node)


@pytest.fixture
def place(whole: Place) -> Iterator[Place]:
    """It is put right again after a test that hurt it."""
    yield whole
    for server in (whole.jump.server, whole.node):
        server.configure()
        server.set_host_key(server.host_key)
        server.restart()
    whole.cable.mend()


@pytest.fixture
def way(whole: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[JumpConnection]:
    """What hangs is found out sooner, and tried again."""
    monkeypatch.setattr(product, "PING_EVERY_S", 0.6)
    monkeypatch.setattr(product, "PING_S", 1.0)
    monkeypatch.setattr(product, "FIRST_S", 0.1)
    monkeypatch.setattr(product, "CAP_S", 0.4)
    made = JumpConnection(whole.jump.host, SystemClock())
    yield made
    made.close()


def reach(place: Place, way: JumpConnection, limit_s: float = 10.0) -> Connection:
    return connect(place.address, JOB.user.private, limit_s, dial=way.dial)


def ask(place: Place, way: JumpConnection) -> bytes:
    connection = reach(place, way)
    try:
        return connection.run("echo here").stdout
    finally:
        connection.close()


def ssh_threads() -> int:
    return sum(isinstance(thread, paramiko.Transport) for thread in threading.enumerate())


# --- the way there


@pytest.mark.root
def test_what_cannot_be_reached_is_reached_through_it(whole: Place, way: JumpConnection) -> None:
    with pytest.raises(SshUnreachableError):
        connect(whole.address, JOB.user.private, 3.0)
    before = whole.jump.server.log_ins()
    assert [ask(whole, way) for _ in range(3)] == [b"here\n"] * 3
    assert whole.jump.server.log_ins() == before + 1, "one connection for all"
    assert way.why() == ""


@pytest.mark.root
def test_the_machine_proves_itself_through_the_tunnel(whole: Place, way: JumpConnection) -> None:
    before = whole.node.log_ins()
    pinned = replace(whole.address, host_public_key=STRANGER.user.public)
    with pytest.raises(HostKeyMismatchError, match="launched with"):
        connect(pinned, JOB.user.private, 10.0, dial=way.dial)
    assert whole.node.log_ins() == before
    assert way.why() == "", "the jump host has no part in it"


@pytest.mark.root
def test_it_sees_ciphertext_alone(
    whole: Place, way: JumpConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = bytearray()
    send, recv = Tunnel.send, Tunnel.recv

    def sent(self: Tunnel, data: bytes) -> int:
        count = send(self, data)
        passed.extend(bytes(data)[:count])
        return count

    def received(self: Tunnel, size: int) -> bytes:
        data = recv(self, size)
        passed.extend(data)
        return data

    monkeypatch.setattr(Tunnel, "send", sent)
    monkeypatch.setattr(Tunnel, "recv", received)
    connection = reach(whole, way)
    assert connection.run("cat; echo canary", [b"canary"]).stdout == b"canarycanary\n"
    connection.close()
    assert b"SSH-2.0-OpenSSH" in passed
    assert b"canary" not in passed
    assert len(passed) > 2000


@pytest.mark.root
def test_much_goes_through_both_ways(whole: Place, way: JumpConnection) -> None:
    connection = reach(whole, way)
    data = bytes(range(256)) * 4096 * 8
    result = connection.run("cat", [data], 60.0, max_output=16 << 20)
    connection.close()
    assert result.stdout == data


@pytest.mark.root
def test_no_thread_outlives_its_connection(whole: Place, way: JumpConnection) -> None:
    ask(whole, way)
    before = threading.active_count()
    for connection in [reach(whole, way) for _ in range(8)]:
        connection.close()
    wait_until("its threads to end", lambda: threading.active_count() <= before)
    wait_until("its channels to be closed there", lambda: whole.forwarded() == 0)
    way.close()
    wait_until("the last to end", lambda: ssh_threads() == 0)


# --- who is in the way


@pytest.mark.root
def test_another_jump_host_is_told_nothing(place: Place, way: JumpConnection) -> None:
    server = place.jump.server
    before = server.log_ins()
    server.set_host_key(STRANGER.user)
    server.restart()
    with pytest.raises(JumpError, match=r"shows the host key SHA256:\S+, and jump_host_key is SHA"):
        ask(place, way)
    assert server.log_ins() == before
    assert "jump_host_key" in way.why()


@pytest.mark.root
def test_a_key_that_it_does_not_know(whole: Place) -> None:
    stranger = JumpHost(whole.jump.host.address, STRANGER.user.private)
    with pytest.raises(
        JumpError, match=r"refuses spotd's key SHA256:\S+: put the public part .*authorized_keys"
    ):
        try_out(stranger)


@pytest.mark.root
def test_it_may_forward_nothing_until_somebody_lets_it(place: Place, way: JumpConnection) -> None:
    server = place.jump.server
    server.configure("AllowTcpForwarding no")
    server.restart()
    for attempt in (lambda: ask(place, way), lambda: try_out(place.jump.host)):
        with pytest.raises(JumpError, match=r"does not forward to .*set AllowTcpForwarding"):
            attempt()
    assert "AllowTcpForwarding" in way.why()
    now_us = SystemClock().now_us()
    assert way.since_us() >= now_us
    server.configure()
    server.restart()
    wait_until("it to let us through", lambda: answers(place, way))
    assert way.why() == ""
    assert now_us < way.since_us() < SystemClock().now_us()


@pytest.mark.root
def test_what_was_refused_is_forgotten(
    place: Place, way: JumpConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would try any more where it counts: no machine is rented behind it."""
    place.jump.server.configure("AllowTcpForwarding no")
    place.jump.server.restart()
    with pytest.raises(JumpError):
        ask(place, way)
    assert way.why()
    monkeypatch.setattr(product, "REFUSED_S", 0.0)
    assert way.why() == ""


def answers(place: Place, way: JumpConnection) -> bool:
    with suppress(JumpError, SshUnreachableError, SshDeadlineError):
        return ask(place, way) == b"here\n"
    return False


def in_the_way(place: Place, way: JumpConnection) -> bool:
    try:
        reach(place, way, 5.0).close()
    except JumpError:
        return True
    return False


@pytest.mark.root
@pytest.mark.parametrize("how", ["stop", "freeze", "cut"])
def test_it_may_die_and_come_back(
    place: Place, way: JumpConnection, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "SHORT_S", 0.0)
    connection = reach(place, way)
    first_us = way.since_us()
    hurt = place.jump.cable.cut if how == "cut" else getattr(place.jump.server, how)
    hurt()
    wait_until("that to be noticed", lambda: in_the_way(place, way))
    wait_until("its machines' connections to end", lambda: not connection.open)
    connection.close()
    down_us = SystemClock().now_us()
    assert way.since_us() >= down_us, "nobody behind it can be heard"
    assert way.why()
    assert way.why(10 * LIMIT_S) == "", "not yet worth a word"
    started_s = time.monotonic()
    with suppress(JumpError):
        reach(place, way, 2 * LIMIT_S)
    assert time.monotonic() - started_s < LIMIT_S, "none of hundreds of machines holds a thread"
    {"stop": place.jump.server.start, "freeze": place.jump.server.thaw}.get(
        how, place.jump.cable.mend
    )()
    wait_until("it to be back", lambda: answers(place, way))
    assert way.since_us() > max(first_us, down_us)
    assert way.why() == ""


@pytest.mark.root
def test_one_whose_connections_break_hides_no_silent_machine(
    place: Place, way: JumpConnection
) -> None:
    """Were silence counted from each new connection, nobody behind it would ever be silent."""
    assert ask(place, way) == b"here\n"
    since_us = way.since_us()
    for _ in range(2):
        connection = reach(place, way)
        place.jump.server.restart()
        wait_until(
            "its machines' connections to end", lambda gone=connection: not gone.open, LIMIT_S
        )
        connection.close()
        wait_until("it to be back", lambda: answers(place, way))
        assert way.since_us() == since_us


# --- who is behind it


@pytest.mark.root
def test_a_machine_that_is_down_says_nothing_of_the_jump_host(
    place: Place, way: JumpConnection
) -> None:
    assert ask(place, way) == b"here\n"
    since_us = way.since_us()
    place.node.stop()
    with pytest.raises(SshUnreachableError, match=r"from the jump host: .*refused"):
        ask(place, way)
    assert (way.why(), way.since_us()) == ("", since_us)


@pytest.mark.root
def test_one_that_answers_too_late_leaves_nothing_open(place: Place, way: JumpConnection) -> None:
    assert ask(place, way) == b"here\n"
    wait_until("that to be over", lambda: place.forwarded() == 0)
    before = threading.active_count()
    place.cable.cut()
    with pytest.raises(SshDeadlineError, match=r"had no connection within 0\.5 s"):
        reach(place, way, 0.5)
    wait_until("its threads to end", lambda: threading.active_count() <= before)
    assert place.forwarded() == 1, "the jump host still tries"
    place.cable.mend()
    wait_until("it to be closed", lambda: place.forwarded() == 0)
    assert way.why() == ""
    assert ask(place, way) == b"here\n"


# --- several providers


@pytest.mark.root
def test_providers_behind_the_same_share_it(whole: Place) -> None:
    host = whole.jump.host
    other = JumpHost(replace(host.address, user="nobody"), host.private_key)
    ways = JumpHosts({"aws": host, "gcp": host, "azure": other}, SystemClock())
    try:
        aws, gcp, azure = (ways.dial(name) for name in ("aws", "gcp", "azure"))
        assert aws == gcp != azure
        assert ways.dial("here") is None
        ways.change({"aws": host})
        assert ways.dial("aws") == aws, "nobody behind it notices"
        assert ways.dial("gcp") is None
        assert set(ways.reached_since()) == {"aws"}
    finally:
        ways.close()


@pytest.mark.root
def test_it_is_told_of_which_provider(whole: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.act.jump_hosts.TELL_S", 0.0)
    wrong = replace(whole.jump.host.address, host_public_key=STRANGER.user.public)
    ways = JumpHosts({"aws": JumpHost(wrong, JOB.user.private)}, SystemClock())
    try:
        ways.start()
        wait_until("the first try", lambda: "jump_host_key" in ways.why()["aws"])
        text = f"jump host root@{wrong.host}:22 of provider aws cannot be reached: it shows"
        assert ways.why()["aws"].startswith(text)
        assert ways.unreached() == ways.why()
        good, found = ways.try_out()["aws"]
        assert not good
        assert "jump_host_key" in found
    finally:
        ways.close()


@pytest.mark.root
def test_one_that_is_good_says_so(whole: Place) -> None:
    ways = JumpHosts({"aws": whole.jump.host}, SystemClock())
    text = f"root@{whole.jump.cable.host}:22 has its pinned key, accepts the login and forwards"
    assert ways.try_out() == {"aws": (True, text)}


# --- keys


def test_keys_of_any_kind_that_is_still_good() -> None:
    for kind in (paramiko.ECDSAKey.generate(), paramiko.RSAKey.generate(2048)):
        import io

        text = io.StringIO()
        kind.write_private_key(text)
        assert load_login_key(text.getvalue().strip()) == kind
    assert load_login_key(JOB.user.private.strip()).get_name() == "ssh-ed25519"


@pytest.mark.parametrize("text", ["", "canary", JOB.user.private.replace("b3Blbn", "canary")])
def test_what_is_no_key_is_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a private key") as caught:
        load_login_key(text)
    assert "canary" not in str(caught.value)


def test_a_locked_key_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "key"
    netns.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path))
    with pytest.raises(ValueError, match="has a passphrase"):
        load_login_key(path.read_text())
