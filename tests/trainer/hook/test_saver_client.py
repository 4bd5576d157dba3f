"""Requests to a saver and its replies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.waiting import LIMIT_S
from trainer.hook.spotd_hook.engine import Engine
from trainer.hook.spotd_hook.saver_client import (
    CorruptError,
    FencedError,
    SaverClient,
    SaverError,
    StoreAwayError,
)
from trainer.hook.spotd_hook.shared_memory import SaveProgress


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[list[bytes]]:
    """Replies of the saver at `tmp_path/s`, in order; it disconnects after the last."""
    queued: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as peer:
                while queued and peer.recv(1 << 16):
                    peer.sendall(queued.pop(0))

        thread = threading.Thread(target=serve)
        thread.start()
        yield queued
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(str(tmp_path / "s"))
        thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("StoreUnavailableError", StoreAwayError),
        ("FencedError", FencedError),
        ("NotFoundError", CorruptError),
        ("CorruptError", CorruptError),
        ("MismatchError", SaverError),
    ],
)
def test_errors_are_what_they_were(
    tmp_path: Path, replies: list[bytes], kind: str, error: type[SaverError]
) -> None:
    replies.append(b'{"error": {"kind": "%s", "text": "why"}}\n' % kind.encode())
    client = SaverClient(str(tmp_path / "s"))
    with pytest.raises(error, match="why") as caught:
        client.request("claim")
    assert type(caught.value) is error
    assert caught.value.kind == kind
    client.close()


def test_an_answer_may_come_in_pieces_and_a_saver_may_be_gone(
    tmp_path: Path, replies: list[bytes]
) -> None:
    long = b'{"a": "' + b"x" * (3 << 20) + b'"}\n'  # more than comes at once
    replies.append(long)
    client = SaverClient(str(tmp_path / "s"))
    assert len(client.request("x")["a"]) == 3 << 20
    with pytest.raises(OSError, match=r"closed the connection|Broken pipe|reset by peer"):
        client.request("y")
    client.close()


def test_memory_that_does_not_come_is_an_error(tmp_path: Path, replies: list[bytes]) -> None:
    replies.append(b"{}\n")
    client = SaverClient(str(tmp_path / "s"))
    with pytest.raises(SaverError, match="gave no memory"):
        client.join(0, [0], 1, 10, 2, [])
    client.close()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SaverClient(str(tmp_path / "nobody"))


def test_memory_comes_first(tmp_path: Path, replies: list[bytes]) -> None:
    replies.append(b'{"slot": 0}\n')
    engine = Engine(
        SaverClient(str(tmp_path / "s")),
        job="j",
        generation=1,
        name="a",
        rank=0,
        ranks=[0],
        world_size=1,
    )
    assert (engine.fenced, engine.progress) == (False, SaveProgress())
    with pytest.raises(SaverError, match="open\\(\\) comes first"):
        engine.begin(1, {})
    engine.close()
