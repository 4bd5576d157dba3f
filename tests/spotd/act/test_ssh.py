"""SSH against a real server: who is let in, and that every call ends."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from paramiko import Channel, SSHException, Transport
from paramiko.packet import Packetizer

from spotd.act.ssh import (
    Connection,
    HostKeyMismatchError,
    SshAuthRefusedError,
    SshDeadlineError,
    SshError,
    SshUnreachableError,
    connect,
    open_socket,
)
from spotd.observe.connect import FollowedNode
from spotd.observe.stream import NodeStream
from tests.fixtures import sshd
from tests.fixtures.sshd import Machine
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.store import build


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with sshd.machine(tmp_path_factory.mktemp("machine")) as found:
        yield found


@contextmanager
def connected(machine: Machine) -> Iterator[Connection]:
    connection = connect(machine.address, machine.keys.user.private, LIMIT_S)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def listening(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection that says what `talk` says."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(LIMIT_S)
                talk(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def ssh_threads() -> int:
    return sum(type(thread).__name__ == "Transport" for thread in threading.enumerate())


# --- who is let in


@pytest.mark.req("RPV-14")
def test_a_command_with_input_output_and_status(machine: Machine) -> None:
    with connected(machine) as connection:
        result = connection.run("cat; echo oops >&2; exit 7", [b"one ", b"", b"two"])
    assert (result.status, result.stdout, result.stderr) == (7, b"one two", b"oops\n")


@pytest.mark.req("RPV-14")
def test_another_host_key_is_refused_before_the_login(machine: Machine) -> None:
    pinned = replace(machine.address, host_public_key=sshd.keys(9).user.public)
    with pytest.raises(HostKeyMismatchError, match="not SHA256:"):
        connect(pinned, machine.keys.user.private)


def test_a_host_key_of_another_kind_is_a_mismatch_too(machine: Machine) -> None:
    import paramiko

    key = paramiko.ECDSAKey.generate()
    pinned = replace(machine.address, host_public_key=f"{key.get_name()} {key.get_base64()}")
    with pytest.raises(HostKeyMismatchError):
        connect(pinned, machine.keys.user.private)


def test_a_key_that_the_machine_does_not_know(machine: Machine) -> None:
    with pytest.raises(SshAuthRefusedError, match="refuses the job's key"):
        connect(machine.address, sshd.keys(9).user.private)


def test_a_user_that_the_machine_does_not_know(machine: Machine) -> None:
    with pytest.raises(SshAuthRefusedError):
        connect(replace(machine.address, user="root"), machine.keys.user.private)


def test_no_other_key_is_offered(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an agent's nor the ones in ~/.ssh, even when they would be taken."""
    folder = machine.home / "operator" / ".ssh"
    folder.mkdir(parents=True)
    (folder / "id_ed25519").write_text(machine.keys.user.private)
    monkeypatch.setenv("HOME", str(folder.parent))
    with pytest.raises(SshAuthRefusedError):
        connect(machine.address, sshd.keys(9).user.private)


@pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-magic AAAA", "a b c"])
def test_a_broken_pin_opens_nothing(machine: Machine, line: str) -> None:
    with pytest.raises(SshError, match="pinned host key"):
        connect(replace(machine.address, host_public_key=line), machine.keys.user.private)


def test_a_broken_private_key_is_not_quoted(machine: Machine) -> None:
    with pytest.raises(SshError) as caught:
        connect(machine.address, machine.keys.user.private.replace("b3Blbn", "canary"))
    assert "canary" not in str(caught.value)


def test_weak_algorithms_are_not_offered(machine: Machine) -> None:
    offered: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        peer.sendall(b"SSH-2.0-rig\r\n")
        while b"curve25519" not in b"".join(offered) and (data := peer.recv(65536)):
            offered.append(data)

    with listening(serve) as port, pytest.raises(SshError):
        connect(replace(machine.address, port=port), machine.keys.user.private, LIMIT_S)
    sent = b"".join(offered)
    assert b"aes128-ctr" in sent
    for weak in (b"-cbc", b"hmac-md5", b"hmac-sha1", b"group14-sha1", b"ssh-dss"):
        assert weak not in sent


# --- every call ends


def test_nobody_listens(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SshUnreachableError, match="refused"):
        connect(replace(machine.address, port=port), machine.keys.user.private)


@pytest.mark.parametrize("line", [b"", b"banner\r\n"])
def test_a_tarpit(machine: Machine, line: bytes) -> None:
    """Silence, or banner lines for ever: neither outlasts the deadline."""

    def serve(peer: socket.socket) -> None:
        try:
            while True:
                peer.sendall(line)
                time.sleep(0.05)
                peer.settimeout(0.01)
                try:
                    if not peer.recv(4096):
                        return
                except TimeoutError:
                    continue
        except OSError:
            return

    before = ssh_threads()
    address = machine.address
    with listening(serve) as port, pytest.raises(SshDeadlineError, match="no SSH server answered"):
        connect(replace(address, port=port), machine.keys.user.private, 0.5)
    until(lambda: ssh_threads() <= before)


def test_it_is_no_ssh_server(machine: Machine) -> None:
    def serve(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(serve) as port, pytest.raises(SshUnreachableError):
        connect(replace(machine.address, port=port), machine.keys.user.private, LIMIT_S)


def test_a_frozen_machine_is_noticed_at_connect(tmp_path: Path) -> None:
    with sshd.machine(tmp_path) as machine:
        machine.freeze()
        with pytest.raises(SshDeadlineError):
            connect(machine.address, machine.keys.user.private, 0.5)


def test_a_machine_that_freezes_is_noticed_by_the_next_call(tmp_path: Path) -> None:
    with sshd.machine(tmp_path) as machine, connected(machine) as connection:
        assert connection.run("true").status == 0
        machine.freeze()
        with pytest.raises(SshDeadlineError, match=r"within 0\.5 s"):
            connection.run("true", deadline_s=0.5)
        assert not connection.open


def test_a_pipe_is_closed_when_nobody_writes_to_it_any_more() -> None:
    """Its number may be that of another file at once."""
    done: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            done.append(f"{self.name} closed")

        def join(self, _timeout_s: float) -> None:
            done.append(f"{self.name} ended")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, cast("Transport", Part("thread")), time.monotonic() + 60)
        followed = FollowedNode(
            build.new_node(), connection, cast("Channel", Part("pipe")), 0, NodeStream(0, -1), {}
        )
        followed.close()
    assert done == ["thread closed", "thread ended", "pipe closed"]


def test_a_hanging_command_ends_at_its_deadline_and_closes(machine: Machine) -> None:
    before = ssh_threads()
    with connected(machine) as connection:
        with pytest.raises(SshDeadlineError):
            connection.run(f"sleep {2 * LIMIT_S}", deadline_s=0.4)
        assert not connection.open
        with pytest.raises(OSError, match="Bad file"):
            connection.transport.sock.getpeername()
    until(lambda: ssh_threads() <= before)


def test_the_deadline_of_a_connection_is_that_of_all_calls_on_it(machine: Machine) -> None:
    key = machine.keys.user.private
    began_s = time.monotonic()
    connection = connect(machine.address, key, deadline_s=LIMIT_S)
    try:
        assert began_s + LIMIT_S <= connection._end_s <= time.monotonic() + LIMIT_S
        assert connection.run("true", deadline_s=LIMIT_S).status == 0
        connection._end_s = time.monotonic() + 0.5
        with pytest.raises(SshDeadlineError):
            connection.run(f"sleep {2 * LIMIT_S}", deadline_s=3 * LIMIT_S)
    finally:
        connection.close()


def test_the_deadline_counts_for_the_input_too(machine: Machine) -> None:
    def slow() -> Iterator[bytes]:
        while True:
            time.sleep(0.05)
            yield b"x"

    with connected(machine) as connection, pytest.raises(SshDeadlineError):
        connection.run("cat > /dev/null", slow(), deadline_s=0.5)


def test_a_command_that_never_reads_does_not_hold_us(machine: Machine) -> None:
    with connected(machine) as connection, pytest.raises(SshDeadlineError):
        connection.run("sleep 60", (b"x" * (1 << 20) for _ in range(64)), deadline_s=1.0)


def test_a_command_that_stops_reading_early_is_judged_by_its_status(machine: Machine) -> None:
    with connected(machine) as connection:
        result = connection.run("head -c 4; exit 3", (b"x" * (1 << 20) for _ in range(32)))
    assert (result.status, result.stdout) == (3, b"xxxx")


@pytest.mark.parametrize("both", [False, True])
def test_ten_megabytes_of_output(machine: Machine, both: bool) -> None:
    """More than any window, on one stream or on two at once."""
    size = 10 << 20
    command = f"head -c {size} /dev/zero"
    if both:
        command = f"{command} & {command} >&2; wait"
    with connected(machine) as connection:
        result = connection.run(command, max_output=size)
    assert len(result.stdout) == size
    assert len(result.stderr) == (size if both else 0)


def test_output_without_end_is_cut(machine: Machine) -> None:
    with (
        connected(machine) as connection,
        pytest.raises(SshUnreachableError, match="more than 1048576 bytes"),
    ):
        connection.run("yes", deadline_s=LIMIT_S)


def test_a_large_input_arrives_whole(machine: Machine) -> None:
    pieces = [bytes([number]) * (1 << 20) for number in range(64)]
    with connected(machine) as connection:
        result = connection.run("sha256sum", pieces, deadline_s=LIMIT_S)
    assert result.stdout.split()[0].decode() == hashlib.sha256(b"".join(pieces)).hexdigest()


class SlowUplink:
    """A relay that holds the client's new key exchange back, for longer than the follower's one
    thread may wait."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.hold_s = 1.5
        self.passes = threading.Event()
        self.passes.set()

    def talk(self, peer: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.machine.port)) as real:
            back = threading.Thread(target=_copy, args=(real, peer))
            back.start()
            with suppress(OSError):
                while data := peer.recv(65536):
                    self.passes.wait(LIMIT_S)
                    real.sendall(data)
                real.shutdown(socket.SHUT_RDWR)
            back.join()

    @contextmanager
    def connected(self, port: int) -> Iterator[Connection]:
        connection = connect(
            replace(self.machine.address, port=port), self.machine.keys.user.private
        )
        begin = connection.transport._send_kex_init
        timer = threading.Timer(self.hold_s, self.passes.set)

        def begin_late() -> None:
            self.passes.clear()
            timer.start()
            begin()

        connection.transport._send_kex_init = begin_late
        try:
            yield connection
        finally:
            self.passes.set()
            connection.close()
            assert timer.ident, "no new keys were exchanged"
            timer.cancel()
            timer.join()


@pytest.fixture
def uplink(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> SlowUplink:
    """Keys are good for a half of SENT, which is more than two of the peer's windows."""
    monkeypatch.setattr(Packetizer, "REKEY_BYTES", 7 << 20)
    return SlowUplink(machine)


SENT = [b"x" * (1 << 20)] * 13


def test_new_keys_over_a_slow_uplink(uplink: SlowUplink) -> None:
    """Packages of more than 512 MiB arrive."""
    with listening(uplink.talk) as port, uplink.connected(port) as connection:
        result = connection.run("wc -c", SENT)
    assert result.stdout.split() == [str(13 << 20).encode()]


def test_whoever_follows_does_not_wait_for_new_keys(uplink: SlowUplink) -> None:
    """One thread follows all nodes."""
    uplink.hold_s = LIMIT_S  # longer than any stall of this machine
    with listening(uplink.talk) as port, uplink.connected(port) as connection:
        channel = connection.open_channel("wc -c", LIMIT_S)
        channel.settimeout(LIMIT_S)
        with pytest.raises(SSHException, match="Key-exchange timed out"):
            channel.sendall(b"".join(SENT))


def test_whoever_follows_does_not_wait_for_a_peer_that_reads_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has us answer (here: say) more than fits between us, and takes none of it. One thread
    follows all nodes; TCP alone would end it after PEER_TIMEOUT_MS, each time."""
    monkeypatch.setattr("spotd.act.ssh.PEER_TIMEOUT_MS", int(2000 * LIMIT_S))
    deaf, over = threading.Event(), threading.Event()

    def talk(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with socket.create_connection(("127.0.0.1", machine.port)) as real:
            back = threading.Thread(target=_copy, args=(real, peer))
            back.start()
            while not deaf.is_set() and (data := peer.recv(4096)):
                real.sendall(data)
            over.wait(2 * LIMIT_S)
            real.shutdown(socket.SHUT_RDWR)
            back.join()

    def say_much(channel: Channel) -> None:
        for _ in range(2000):
            with suppress(TimeoutError):
                channel.sendall(b"x" * 1000)

    with listening(talk) as port:
        connection = connect(replace(machine.address, port=port), machine.keys.user.private)
        connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        channel = connection.open_channel("cat > /dev/null", LIMIT_S)
        channel.setblocking(0)
        deaf.set()
        started_s = time.monotonic()
        with pytest.raises((EOFError, OSError)):
            say_much(channel)
        took_s = time.monotonic() - started_s
        connection.close()
        over.set()
    assert took_s < LIMIT_S


def test_the_last_output_is_not_lost(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status may come before the end of the output."""
    monkeypatch.setattr("spotd.act.remote_exec._LINGER_S", LIMIT_S)
    with connected(machine) as connection:
        for pause_s in (0.02, 0.8):
            result = connection.run(f"(sleep {pause_s}; echo late) & exit 0")
            assert (result.status, result.stdout) == (0, b"late\n")


def test_a_background_process_does_not_hold_us_for_ever(machine: Machine) -> None:
    with connected(machine) as connection:
        result = connection.run(f"echo started; sleep {2 * LIMIT_S} & exit 0", deadline_s=LIMIT_S)
    assert (result.status, result.stdout) == (0, b"started\n")


def test_a_reset_in_the_middle(machine: Machine) -> None:
    """Through a relay that is cut with a RST while output flows."""
    cut = threading.Event()

    def relay(peer: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", machine.port)) as real:
            back = threading.Thread(target=_copy, args=(real, peer))
            back.start()
            there = threading.Thread(target=_copy, args=(peer, real))
            there.start()
            cut.wait(LIMIT_S)
            real.shutdown(socket.SHUT_RDWR)
            peer.shutdown(socket.SHUT_RD)  # sends nothing, but ends the copying
            back.join()
            there.join()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()

    with listening(relay) as port:
        connection = connect(replace(machine.address, port=port), machine.keys.user.private)
        timer = threading.Timer(0.5, cut.set)
        timer.start()
        with pytest.raises(SshUnreachableError):
            connection.run(f"echo begun; sleep {2 * LIMIT_S}", deadline_s=LIMIT_S)
        connection.close()
        timer.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        return


def test_a_server_that_is_killed_ends_the_call(tmp_path: Path) -> None:
    with sshd.machine(tmp_path) as machine, connected(machine) as connection:
        timer = threading.Timer(0.3, machine.process.kill)
        timer.start()
        with pytest.raises(SshUnreachableError):
            connection.run(f"sleep {2 * LIMIT_S}", deadline_s=LIMIT_S)
        timer.join()


def test_a_signal_is_a_status_and_not_a_broken_link(machine: Machine) -> None:
    with connected(machine) as connection:
        assert connection.run("kill -9 $$").status != 0
        assert connection.run("true").status == 0


def test_many_calls_at_once_share_a_connection(machine: Machine) -> None:
    with connected(machine) as connection:
        results: list[bytes] = []
        threads = [
            threading.Thread(
                target=lambda n=n: results.append(connection.run("cat", [b"%d" % n]).stdout)
            )
            for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(int, results)) == list(range(16))


def test_small_messages_do_not_wait_for_each_other(machine: Machine) -> None:
    """Nagle's algorithm would add 40 ms to each call."""
    with connected(machine) as connection:
        sock = connection.transport.sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_socket_keeps_its_number_until_the_last_call_has_come_back(machine: Machine) -> None:
    """Else what the call is about to write goes to the next file, which gets the number."""
    with listening(lambda peer: peer.recv(1)) as port:
        sock = open_socket(replace(machine.address, port=port), LIMIT_S)
        sock.settimeout(LIMIT_S)
        reading = threading.Thread(target=sock.recv, args=(1,))
        reading.start()
        until(lambda: sock._calls == 1)
        sock.close()
        assert os.fstat(sock.fileno())
        with pytest.raises(OSError, match="was closed"):
            sock.send(b"x")
        sock.shutdown(socket.SHUT_RDWR)
        reading.join()
        assert sock.fileno() == -1
