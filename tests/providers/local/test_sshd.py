"""The machines' SSH server, tested with paramiko and the system's ssh client."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import cast

import paramiko
import pytest

from providers.base import Instance
from providers.local.blocking_http import bind
from providers.local.cloud import LocalCloud
from providers.local.control import RunningCloud
from providers.local.reaper import Reaper
from providers.local.sessions import Session
from providers.local.sshd import Login, SshServer
from tests.fixtures.local_cloud import (
    KeyPair,
    connected,
    find,
    host_key,
    launch_running,
    run,
    run_on,
    user_key,
)
from tests.fixtures.processes import state_of
from tests.fixtures.waiting import LIMIT_S, until


@pytest.fixture(scope="module")
def machine(local: RunningCloud) -> Instance:
    return launch_running(
        LocalCloud("x", local.url, "aws", "sshd", token_file=local.token_file), "sshd"
    )


def test_streams_and_exit_status(machine: Instance) -> None:
    ran = run(machine, "cat; echo oops >&2; exit 7", stdin="hello\n")
    assert (ran.out, ran.err, ran.code) == ("hello\n", "oops\n", 7)


def test_a_command_killed_by_a_signal_reports_as_shells_do(machine: Instance) -> None:
    assert run(machine, "kill -9 $$").code == 128 + 9


NO_REAPER = cast("Reaper", None)  # one in this process would reap what other tests started


class _Hasty(SshServer):
    """The command has ended before the client can look."""

    def run(self, session: Session) -> None:
        session.channel.send_exit_status(5)
        session.channel.close()


def test_a_request_is_answered_before_its_command_ends() -> None:
    bound = bind("127.0.0.1")
    login = Login("spotd", user_key().public, host_key().private)
    _Hasty(bound, login, {}, NO_REAPER, lambda: None).start()
    sock = socket.create_connection(bound.getsockname(), timeout=LIMIT_S)
    transport = paramiko.Transport(sock)
    try:
        transport.connect(username="spotd", pkey=user_key().load(), hostkey=host_key().load())
        channel = transport.open_session(timeout=LIMIT_S)
        channel.exec_command("true")  # raises when the channel is closed first
        assert channel.recv_exit_status() == 5
    finally:
        transport.close()
        sock.close()


def test_session_environment(machine: Instance, local: RunningCloud) -> None:
    ran = run(machine, 'echo "$HOME|$PWD|$USER|$SPOTD_LOCAL_INSTANCE|$SPOTD_METADATA_BASE"')
    home, cwd, user, ident, base = ran.out.strip().split("|")
    assert home == cwd
    assert Path(home).name == ident == machine.instance_id
    assert user == "spotd"
    assert base.startswith(f"http://{machine.host}:")
    assert machine.host.startswith("127.")


def test_python_is_the_servers_own(machine: Instance) -> None:
    assert run(machine, "python3 -c 'import paramiko'").code == 0


def test_big_streams_arrive_whole(machine: Instance) -> None:
    text = "0123456789abcdef\n" * 200_000
    with connected(machine) as transport:
        channel = transport.open_session(timeout=LIMIT_S)
        channel.settimeout(LIMIT_S)
        channel.exec_command("cat")
        feed = threading.Thread(
            target=lambda: (channel.sendall(text.encode()), channel.shutdown_write())
        )
        feed.start()
        with channel.makefile("rb") as out:
            data = out.read()
        feed.join(LIMIT_S)
        assert data.decode() == text
        assert channel.recv_exit_status() == 0


def test_many_commands_on_one_connection(machine: Instance) -> None:
    with connected(machine) as transport:
        for number in range(20):
            assert run_on(transport, f"echo {number}").out == f"{number}\n"


@pytest.mark.req("RPV-14")
def test_the_host_key_is_the_one_of_the_launch_request(machine: Instance) -> None:
    with pytest.raises(paramiko.SSHException), connected(machine, pinned=KeyPair.from_seed(99)):
        pass


def test_only_the_users_key_and_name_get_in(machine: Instance) -> None:
    with (
        pytest.raises(paramiko.AuthenticationException),
        connected(machine, key=KeyPair.from_seed(77)),
    ):
        pass
    with pytest.raises(paramiko.AuthenticationException), connected(machine, user="root"):
        pass
    sock = socket.create_connection((machine.host, machine.port), timeout=LIMIT_S)
    transport = paramiko.Transport(sock)
    try:
        transport.start_client(timeout=LIMIT_S)
        with pytest.raises(paramiko.BadAuthenticationType):
            transport.auth_password("spotd", "spotd")
    finally:
        transport.close()
        sock.close()


def test_no_forwarding(machine: Instance) -> None:
    with connected(machine) as transport, pytest.raises(paramiko.ChannelException):
        transport.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1), timeout=LIMIT_S)


def test_a_command_outlives_its_connection(machine: Instance) -> None:
    with connected(machine) as transport:
        channel = transport.open_session(timeout=LIMIT_S)
        channel.exec_command("echo started; sleep 0.3; touch outlived; sleep 60")
        assert channel.recv(100) == b"started\n"
    until(lambda: run(machine, "test -e outlived").code == 0)


def test_terminal_and_its_size(machine: Instance) -> None:
    with connected(machine) as transport:
        channel = transport.open_session(timeout=LIMIT_S)
        channel.settimeout(LIMIT_S)
        channel.get_pty("xterm", width=91, height=17)
        channel.exec_command("tty; stty size; echo $TERM")
        with channel.makefile("rb") as out:
            output = out.read().decode().split()
        assert output[0].startswith("/dev/pts/")
        assert output[1:] == ["17", "91", "xterm"]
        assert channel.recv_exit_status() == 0


def test_interactive_shell_hangs_up_with_its_client(machine: Instance) -> None:
    with connected(machine) as transport:
        channel = transport.open_session(timeout=LIMIT_S)
        channel.settimeout(LIMIT_S)
        channel.get_pty()
        channel.invoke_shell()
        channel.sendall(b"echo pid=$((1))$$=\n")
        output = b""
        # What was typed is echoed by the terminal, by the shell, or by both: no number is in it.
        while (answer := re.search(rb"pid=1(\d+)=", output)) is None:
            data = channel.recv(1000)
            assert data, output
            output += data
        shell = int(answer[1])
        assert Path(f"/proc/{shell}").exists()
    until(lambda: not Path(f"/proc/{shell}").exists())


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH client on this machine")
def test_the_systems_own_ssh(machine: Instance, tmp_path: Path) -> None:
    known_hosts, identity = tmp_path / "known_hosts", tmp_path / "key"
    known_hosts.write_text(f"[{machine.host}]:{machine.port} {machine.host_public_key}\n")
    identity.write_text(user_key().private)
    identity.chmod(0o600)
    options = [
        "-F",
        "none",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        f"UserKnownHostsFile={known_hosts}",
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        "BatchMode=yes",
        "-i",
        str(identity),
    ]
    target = ["-p", str(machine.port), f"spotd@{machine.host}"]
    plain = subprocess.run(
        ["ssh", *options, *target, "cat; exit 5"],
        input=b"abc",
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (plain.stdout, plain.returncode) == (b"abc", 5), plain.stderr
    shell = subprocess.run(
        ["ssh", "-tt", *options, *target],
        input=b"stty -echo; echo on $(tty)\nexit 6\n",
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert b"on /dev/pts/" in shell.stdout
    assert shell.returncode == 6, shell.stderr


def test_orphans_are_reaped(machine: Instance, local: RunningCloud) -> None:
    """A detached process is adopted and reaped by the machine, so it leaves no zombie."""
    run(machine, "(setsid sh -c 'sleep 0.2; exec true' &) ; true")
    pid = next(m["pid"] for m in local.control.state()["instances"] if m["token"] == machine.token)

    def no_zombies() -> bool:
        children = [
            state_of(int(child))
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        return "Z" not in children

    time.sleep(0.4)  # let it end; what is waited for below is that it is gone
    until(no_zombies)


def test_without_a_boot_delay_a_machine_greets_as_soon_as_it_is_listed(local: RunningCloud) -> None:
    """The first connection is not refused."""
    cloud = LocalCloud("x", local.url, "aws", "quick", token_file=local.token_file)
    for number in range(5):
        instance = launch_running(cloud, f"quick-{number}")
        with socket.create_connection((instance.host, instance.port), timeout=LIMIT_S) as sock:
            assert sock.recv(4) == b"SSH-"
        cloud.terminate(instance.instance_id)
    assert find(cloud, "quick-0") is not None
