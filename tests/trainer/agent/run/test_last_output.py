"""The rest of the output goes to the job's store, if it is too much to be fetched."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from providers.stores.local import LocalStore
from spotd import wire
from spotd.wire import STORED_FROM_BYTES, STORED_S, last_output_key
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node
from tests.trainer.agent.test_last_words import Overtaken
from trainer.agent.base.stop_timing import FINAL_S, Stopping
from trainer.agent.base.streams import LogWriter
from trainer.agent.run import last_output
from trainer.agent.run.last_output import STOPPED_S, LastOutput, upload_deadline

LINES = b"".join(b"line %06d\n" % number for number in range(300_000))  # 3.6 MB


class Rest:
    """An agent's output, and the job's store."""

    def __init__(self, node: Node) -> None:
        self.agent = Overtaken(node, 0, stopped=False)
        self.context = replace(self.agent.site, monotonic=time.monotonic)
        self.paths = self.context.paths
        start = node.start_document(engine="none")
        self.start = start
        self.store = LocalStore(Path(start.storage.store_url.removeprefix("file://")))

    def write(self, data: bytes, stream: str = "rank0") -> None:
        writer = LogWriter(self.paths.logs / f"{stream}.log")
        writer.write(data)
        writer.close()

    def upload(self, *, stopping: Stopping | None = None, notice: float | None = None) -> bool:
        done = threading.Event()
        begun = LastOutput(self.context).start(self.start, stopping, notice, done=done.set)
        while begun and not done.is_set():
            self.context.callbacks.get(timeout=LIMIT_S)()
        return begun

    def stored(self, stream: str = "rank0") -> bytes:
        key = last_output_key("job-1", generation=1, rank=0, stream=stream)
        return self.store.get(key)[0]


@pytest.fixture
def rest(node: Node) -> Rest:
    return Rest(node)


def test_little_output_is_left_to_the_daemon(rest: Rest) -> None:
    rest.write(LINES)
    rest.paths.sent_logs.write_text(json.dumps({"rank0": len(LINES) - STORED_FROM_BYTES}))
    assert not rest.upload()
    assert not list(rest.store.list("jobs/"))


def test_what_was_not_sent_is_stored_and_noted(rest: Rest) -> None:
    """With what was sent last, which may not have arrived."""
    rest.write(LINES)
    rest.write(b"done\n", "setup")
    sent = len(LINES) - STORED_FROM_BYTES - 1
    rest.paths.sent_logs.write_text(json.dumps({"rank0": sent, "setup": 5}))
    assert rest.upload()
    begin, end = json.loads(rest.paths.stored_log("rank0").read_bytes())
    assert (begin, end) == (sent - STORED_FROM_BYTES, len(LINES))
    assert rest.stored() == LINES[begin:end]


def test_without_a_daemon_all_that_is_left_is_stored(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest.write(LINES)
    assert rest.upload()
    assert rest.stored() == LINES
    assert rest.upload(), "a restarted agent does it again"
    assert rest.stored() == LINES


def test_a_store_that_fails_or_hangs_ends_nothing(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest.write(LINES)
    working = rest.start
    storage = replace(working.storage, store_url="file:///proc/nowhere")
    rest.start = replace(working, storage=storage)
    assert rest.upload()
    assert not rest.paths.stored_log("rank0").exists()
    rest.start = working
    free = threading.Event()

    def hang(*_: object) -> LocalStore:
        assert free.wait(LIMIT_S)
        return rest.store

    monkeypatch.setattr(last_output, "open_store", hang)
    monkeypatch.setattr(last_output, "STORED_S", 0.05)
    assert rest.upload()
    assert not rest.paths.stored_log("rank0").exists()
    free.set()


@pytest.mark.parametrize(
    ("kill_at", "notice", "until"),
    [
        (None, None, 100.0 + STORED_S),
        (100.0, None, 100.0 + STOPPED_S),
        (1000.0, None, 100.0 + STORED_S),
        (None, 105.0, 105.0 - FINAL_S),
        (104.0, 103.0, 103.0 - FINAL_S),
    ],
)
def test_a_stop_and_a_notice_end_it(
    kill_at: float | None, notice: float | None, until: float
) -> None:
    assert upload_deadline(100.0, kill_at, notice) == until


@pytest.mark.parametrize("part", ["setup", "run"])
def test_the_end_of_a_script_is_told_after_its_output_is_stored(node: Node, part: str) -> None:
    command = "seq -f 'line %09.0f ..................' 1 200000; exit 3"
    node.run()
    scripts = (
        {"setup": command, "run": "true"} if part == "setup" else {"setup": "", "run": command}
    )
    following = node.follow()
    node.start(**scripts, engine="none")
    node.wait_for(wire.SETUP if part == "setup" else wire.EXITED)
    ends = lambda: following.of(wire.LogEnd)  # noqa: E731
    wait_until("the ends", ends)
    (end,) = [end for end in ends() if end.stream == ("setup" if part == "setup" else "rank0")]
    assert end.offset == 200_000 * 34
    assert end.end == end.offset
    assert 0 <= end.begin < end.end
