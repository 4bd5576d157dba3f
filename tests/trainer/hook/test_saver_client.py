"""What a process asks a saver, and what it hears."""

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
def answers(tmp_path: Path) -> Iterator[list[bytes]]:
    """What the saver at `tmp_path/s` answers, in turn; it hangs up after the last."""
    given: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as peer:
                while given and peer.recv(1 << 16):
                    peer.sendall(given.pop(0))

        thread = threading.Thread(target=serve)
        thread.start()
        yield given
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
    tmp_path: Path, answers: list[bytes], kind: str, error: type[SaverError]
) -> None:
    answers.append(b'{"error": {"kind": "%s", "text": "why"}}\n' % kind.encode())
    line = SaverClient(str(tmp_path / "s"))
    with pytest.raises(error, match="why") as caught:
        line.ask("claim")
    assert type(caught.value) is error
    assert caught.value.kind == kind
    line.close()


def test_an_answer_may_come_in_pieces_and_a_saver_may_be_gone(
    tmp_path: Path, answers: list[bytes]
) -> None:
    long = b'{"a": "' + b"x" * (3 << 20) + b'"}\n'  # more than comes at once
    answers.append(long)
    line = SaverClient(str(tmp_path / "s"))
    assert len(line.ask("x")["a"]) == 3 << 20
    with pytest.raises(OSError, match=r"hung up|Broken pipe|reset by peer"):
        line.ask("y")
    line.close()


def test_memory_that_does_not_come_is_an_error(tmp_path: Path, answers: list[bytes]) -> None:
    answers.append(b"{}\n")
    line = SaverClient(str(tmp_path / "s"))
    with pytest.raises(SaverError, match="gave no memory"):
        line.join(0, [0], 1, 10, 2, [])
    line.close()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SaverClient(str(tmp_path / "nobody"))


def test_memory_comes_first(tmp_path: Path, answers: list[bytes]) -> None:
    answers.append(b'{"slot": 0}\n')
    engine = Engine(
        SaverClient(str(tmp_path / "s")),
        job="j",
        generation=1,
        name="a",
        rank=0,
        ranks=[0],
        world_size=1,
    )
    assert (engine.fenced, engine.told) == (False, SaveProgress())
    with pytest.raises(SaverError, match="open\\(\\) comes first"):
        engine.begin(1, {})
    engine.close()
