"""--host with the OpenSSH client, against a small server that forwards to a socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from spotd.security.secrets import JobKeys
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl

HOST_KEY = paramiko.ECDSAKey.generate()
KEYS = JobKeys.create(lambda count: b"s" * count)


class ForwardingServer(paramiko.ServerInterface):
    """An SSH server that accepts one key and opens every channel."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = f"{key.get_name()} {key.get_base64()}" == KEYS.user.public
        return paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        assert kind == "direct-streamlocal@openssh.com"
        return paramiko.OPEN_SUCCEEDED


def pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    gone = contextlib.suppress(OSError, EOFError)  # the second: paramiko, of a transport that ended
    with gone:
        while data := source.recv(65536):
            sink.sendall(data)
    with gone:
        sink.shutdown(socket.SHUT_WR)


def serve_connection(connection: socket.socket, remote: str) -> None:
    """Serve one SSH connection: every channel is the daemon's socket."""
    transport = paramiko.Transport(connection)
    transport.add_server_key(HOST_KEY)
    threads, sockets = [], []
    try:
        with contextlib.suppress(EOFError, paramiko.SSHException):  # it may leave at once
            transport.start_server(server=ForwardingServer())
        while transport.is_active():
            channel = transport.accept(0.1)
            if channel is None:
                continue
            far = socket.socket(socket.AF_UNIX)
            far.connect(remote)
            sockets.append(far)
            threads += [
                threading.Thread(target=pump, args=pair)
                for pair in ((channel, far), (far, channel))
            ]
            for thread in threads[-2:]:
                thread.start()
    finally:
        transport.close()
        for far in sockets:
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for far in sockets:
            far.close()


@pytest.fixture
def box(rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host called "box" that leads to the rig, by an ssh configuration of this test."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                thread = threading.Thread(
                    target=serve_connection, args=(connection, str(rig.socket))
                )
                thread.start()
                threads.append(thread)

    accepting = threading.Thread(target=listen)
    accepting.start()
    key = folder / "key"
    key.touch(0o600)
    key.write_text(KEYS.user.private)
    config = folder / "config"
    config.write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {listener.getsockname()[1]}\n  User me\n"
        f"  IdentityFile {key}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {folder}/known\n  LogLevel ERROR\n"
    )
    real = shutil.which("ssh")
    assert real, "the OpenSSH client is needed here"
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {real} -F {config} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    yield
    listener.shutdown(socket.SHUT_RDWR)
    accepting.join()
    listener.close()
    for thread in threads:
        thread.join()


@pytest.mark.req("UX-01")
def test_host_option_uses_openssh(
    rig: Rig, box: None, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    story(rig)
    assert spotctl(None, "--host", "box", "--socket", str(rig.socket), "ps", "-o", "name") == 0
    assert capsys.readouterr().out == "gpt\n"
    assert spotctl(None, "--host", "box", "--socket", str(rig.socket), "logs", "gpt") == 0
    assert "step 1191" in capsys.readouterr().out


def test_rejected_login_is_an_error(
    box: None, folder: Path, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    other_keys = JobKeys.create(lambda count: b"o" * count)
    (folder / "key").write_text(other_keys.user.private)
    assert spotctl(None, "--host", "box", "ps") == 6
    error = capsys.readouterr().err
    assert "Permission denied (publickey)" in error
    assert error.splitlines()[-1] == "try: ssh box true, until that works"
