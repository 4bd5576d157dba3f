"""Connections of training processes and the saver: their messages, and which one was closed."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fixtures.waiting import wait_until
from trainer.agent.main.worker_link import WorkerLink


class Ear:
    """Records all messages."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        self.heard.append(("fact", kind, data))

    def on_worker_exit(self, rank: int, code: int) -> None:
        self.heard.append(("exit", rank, code))

    def on_busy(self, for_s: float) -> None:
        self.heard.append(("busy", for_s))

    def on_step(self, rank: int, step: int) -> None:
        self.heard.append(("step", rank, step))

    def on_saver_request(self, argv: Sequence[str]) -> None:
        self.heard.append(("saver", argv))

    def on_invalid_message(self, text: str) -> None:
        self.heard.append(("nonsense", text))

    def on_disconnect(self, rank: int) -> None:
        self.heard.append(("hang up", rank))


def said(tmp_path: Path, *messages: object) -> list[tuple[Any, ...]]:
    """Return the messages received from a process that sends these and then dies."""
    ear, path = Ear(), tmp_path / "s"
    link = WorkerLink(path, dict, ear)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(str(path))
            line.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        wait_until("the end of it", lambda: ear.heard and ear.heard[-1][0] == "hang up")
    finally:
        link.close()
    return ear.heard


def test_a_rank_that_dies_without_a_word_is_named(tmp_path: Path) -> None:
    """The agent does not wait for it: a restarted program may have other ranks."""
    hello = {"hello": {"rank": 2, "pid": 7}}
    assert said(tmp_path, hello, {"at": {"rank": 2, "step": 9}}) == [
        ("step", 2, 9),
        ("hang up", 2),
    ]


def test_one_that_says_no_rank_is_nobody(tmp_path: Path) -> None:
    assert said(tmp_path, {"hello": {"rank": "x"}}) == [("hang up", -1)]


def test_steps_that_are_none_are_passed_over(tmp_path: Path) -> None:
    wrong = [{"rank": -1, "step": 5}, {"rank": 1}, {"rank": 1, "step": 1.5}, {}]
    messages = [{"at": at} for at in wrong]
    assert said(tmp_path, {"hello": {"rank": 1}}, *messages) == [("hang up", 1)]


def test_the_saver_speaks_and_is_not_counted_as_one_that_trains(tmp_path: Path) -> None:
    ear = Ear()
    link = WorkerLink(tmp_path / "s", dict, ear)
    lines = []
    for rank in (0, -1):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(str(tmp_path / "s"))
        line.sendall(json.dumps({"hello": {"rank": rank, "pid": 1}}).encode() + b"\n")
        lines.append(line)
    wait_until("both are there", lambda: link.open_count == 2)
    assert link.connected == 1
    lines[1].sendall(b'{"kind": "checkpoint", "data": {"step": 3}}\n')
    wait_until("its fact", lambda: ear.heard)
    assert ear.heard == [("fact", "checkpoint", {"step": 3})]
    lines[0].close()
    wait_until("one is gone", lambda: link.open_count == 1)
    assert link.connected == 0
    lines[1].close()
    wait_until("so is the saver", lambda: len(ear.heard) == 3)
    assert ear.heard[1:] == [("hang up", 0), ("hang up", -1)], "which is not a rank"
    link.close()


def test_a_saver_is_wanted_by_an_argv_and_nothing_else(tmp_path: Path) -> None:
    wrong: list[object] = [[], [1], "python", None, [[]]]
    messages = [{"saver": {"argv": argv}} for argv in [["python", "-m", "x"], *wrong]]
    heard = said(tmp_path, {"hello": {"rank": 0}}, *messages)
    assert heard[0] == ("saver", ["python", "-m", "x"])
    assert [(kind, "not a message" in text) for kind, text in heard[1:6]] == [
        ("nonsense", True)
    ] * 5
    assert heard[6:] == [("hang up", 0)]
