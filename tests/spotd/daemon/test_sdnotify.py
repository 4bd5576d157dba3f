"""What systemd is told, on real datagram sockets."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.daemon.sdnotify import notify
from tests.fixtures.waiting import LIMIT_S


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """Systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(LIMIT_S)
        yield listening


def test_a_socket_in_the_file_system(
    manager: socket.socket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.bind(str(folder / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    assert notify("READY=1")
    assert manager.recv(100) == b"READY=1"


def test_an_abstract_socket(
    manager: socket.socket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.bind(f"\0{folder}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{folder}")
    assert notify("WATCHDOG=1")
    assert manager.recv(100) == b"WATCHDOG=1"


def test_a_manager_that_does_not_read_keeps_nobody_waiting(
    manager: socket.socket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel queues some ten datagrams; a sender that waits would hang the whole loop."""
    manager.bind(str(folder / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    told = [notify("WATCHDOG=1") for _ in range(2000)]
    assert told[0]
    assert not told[-1]
    assert manager.recv(100) == b"WATCHDOG=1"


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")


def test_a_socket_that_is_gone_does_not_end_the_caller(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the reconcile loop that calls: its thread must not die of it."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "nobody"))
    assert not notify("WATCHDOG=1")
