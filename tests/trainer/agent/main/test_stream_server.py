"""The follow stream is complete, resumable, and alive only while the agent is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from spotd.wire import (
    FETCHED_BYTES,
    FETCHED_S,
    Heartbeat,
    JournalEntry,
    Line,
    LogChunk,
    LogEnd,
    parse_line,
)
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Following, Node
from trainer.agent.base.paths import find_paths
from trainer.agent.base.streams import LogReader, LogWriter
from trainer.agent.main.stream_server import CHUNK_BYTES, LOG_BYTES_PER_S, TAIL_BYTES, Follower

WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"


def kinds(following: Following) -> list[str]:
    return [entry.kind for entry in following.of(JournalEntry)]


def test_everything_comes_once_and_in_order(node: Node) -> None:
    node.run()
    following = node.follow()
    wait_until("the greeting", lambda: kinds(following) == [wire.HELLO])
    node.start(setup="echo setting up", run="echo one; sleep 0.3; echo two")
    wait_until("the end", lambda: wire.EXITED in kinds(following))
    wait_until("the logs", lambda: text_of(following, "rank0") == "one\ntwo\n")
    assert following.of(JournalEntry) == node.journal()
    assert text_of(following, "setup") == "setting up\n"
    assert following.close() == 0


def text_of(following: Following, stream: str) -> str:
    """Assemble the stream by offset; AssertionError if a byte is missing."""
    text = ""
    for chunk in following.of(LogChunk):
        if chunk.stream == stream:
            assert chunk.offset == len(text)
            text += chunk.text
    return text


def test_an_entry_is_on_its_way_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent signals it: neither the next poll nor a heartbeat finds it."""
    monkeypatch.setattr("trainer.agent.main.stream_server.IDLE_S", 600.0)
    with replace(node, heartbeat_s=600.0) as quiet:
        quiet.run()
        told: list[bytes] = []
        stdin, end = os.pipe()
        follower = Follower(quiet.paths, quiet.generation, after=0, offsets={}, out=told.append)
        thread = threading.Thread(target=follower.run, args=(stdin,))
        thread.start()
        try:
            wait_until("it listens", lambda: follower._agent)
            quiet.start(run="sleep 1")
            wait_until("it came", lambda: wire.EXITED in map(kind_of, told))
        finally:
            os.close(end)
            thread.join()
            os.close(stdin)


def kind_of(line: bytes) -> str:
    """Return the kind of the entry in a line, if there is one."""
    parsed = parse_line(line)
    return parsed.kind if isinstance(parsed, JournalEntry) else ""


def test_it_resumes_after_a_number_without_loss_or_repeat(node: Node) -> None:
    node.run()
    node.start(setup="echo x", run="echo abcdef")
    node.wait_for(wire.EXITED)
    following = node.follow(after=3, logs={"rank0": 4, "setup": 2})
    wait_until("the rest", lambda: wire.EXITED in kinds(following))
    wait_until("the log", lambda: following.of(LogChunk))
    assert [entry.seq for entry in following.of(JournalEntry)] == [4, 5, 6, 7, 8]
    assert [(c.stream, c.offset, c.text) for c in following.of(LogChunk)] == [("rank0", 4, "ef\n")]


@pytest.mark.req("PRE-10")
def test_heartbeats_are_the_agent_s(node: Node) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    following = node.follow()
    wait_until("a step in a heartbeat", lambda: [b for b in following.of(Heartbeat) if b.step > 3])
    node.kill_agent()
    assert following.process.wait(LIMIT_S) == 0, "the end of the agent is news at once"
    following.close()
    following = node.follow(after=following.of(JournalEntry)[-1].seq)
    assert following.process.wait(LIMIT_S) == 0, "and that there is none"
    following.close()
    assert following.of(Heartbeat) == [], "a dead agent's heart does not beat"
    node.run()
    following = node.follow(after=3)
    wait_until("it beats again", lambda: following.of(Heartbeat))


def test_a_stopped_agent_does_not_beat(node: Node) -> None:
    pid = node.run()["pid"]
    following = node.follow()
    wait_until("it beats", lambda: following.of(Heartbeat))
    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    state = Path(f"/proc/{pid}/stat")
    wait_until("it stands", lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
    stopped_us = time.time_ns() // 1000

    def beats_since() -> list[Heartbeat]:
        return [beat for beat in following.of(Heartbeat) if beat.at_us > stopped_us]

    try:
        time.sleep(1.0)
        assert beats_since() == []
    finally:
        subprocess.run(["kill", "-CONT", str(pid)], check=True)
    wait_until("it beats again", beats_since)


def test_it_works_from_disk_when_the_agent_is_dead(node: Node) -> None:
    node.run()
    node.start(run="echo over")
    node.wait_for(wire.EXITED)
    node.kill_agent()
    following = node.follow()
    wait_until("the end", lambda: wire.EXITED in kinds(following))
    wait_until("the log", lambda: text_of(following, "rank0") == "over\n")
    assert following.of(Heartbeat) == []


def test_it_ends_when_nobody_listens(node: Node) -> None:
    node.run()
    following = node.follow()
    wait_until("it runs", lambda: following.of(Heartbeat))
    following.stdin.close()
    assert following.process.wait(LIMIT_S) == 0
    args = ("follow", "--job", "job-1", "--generation", "1")
    with subprocess.Popen(
        [*node.program, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=node.env,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b'{"logs":{}}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(LIMIT_S) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    "line", [b"", b"nonsense\n", b'{"logs": 5}\n', b'{"logs": {"rank0": 1e999}}\n']
)
def test_a_bad_request_is_explained(node: Node, line: bytes) -> None:
    node.run()
    done = node.call("follow", "--job", "job-1", "--generation", "1", stdin=line)
    assert done.returncode == 1
    assert b"stdin" in done.stderr
    assert b"Traceback" not in done.stderr


def test_without_an_agent_there_is_nothing_to_follow(node: Node) -> None:
    done = node.call("follow", "--job", "job-1", "--generation", "1", stdin=b'{"logs":{}}\n')
    assert done.returncode == 1
    assert b"`spot-node run` first" in done.stderr


def test_logs_are_rotated_and_offsets_stay_true(node: Node) -> None:
    limit = 40_000
    node = replace(node, environ={"SPOTD_LOG_LIMIT_BYTES": str(limit)})
    with node:
        node.run()
        # 6 bytes a line, 300,000 in all: more than the two files hold.
        node.start(run="seq -f %05g 1 50000; sleep 1000")
        node.wait_for_log("50000")
        following = node.follow()
        wait_until("the end of the log", lambda: "50000\n" in last_text(following))
        sizes = [path.stat().st_size for path in node.paths.logs.glob("rank0.log*")]
    chunks = following.of(LogChunk)
    assert all(len(chunk.text) <= CHUNK_BYTES for chunk in chunks)
    for chunk in chunks:
        first = next(i for i in range(6) if (chunk.offset + i) % 6 == 0)
        number = (chunk.offset + first) // 6 + 1
        assert chunk.text[first:].startswith(f"{number:05d}"[: len(chunk.text) - first])
    assert chunks[-1].offset + len(chunks[-1].text) == 300_000
    assert max(sizes) <= limit


def test_logs_are_rate_limited(node: Node) -> None:
    node.run()
    # 225,000 bytes, of which 65,536 may come at once.
    node.start(run="seq -f %08g 1 25000; sleep 1000")
    node.wait_for_log("25000")
    began = time.monotonic()
    following = node.follow()
    wait_until("the end of the log", lambda: "25000\n" in last_text(following))
    took_s = time.monotonic() - began
    assert took_s > (225_000 - LOG_BYTES_PER_S) / LOG_BYTES_PER_S * 0.9


def last_text(following: Following) -> str:
    chunks = following.of(LogChunk)
    return chunks[-1].text if chunks else ""


def test_on_a_notice_the_newest_output_comes_first(node: Node) -> None:
    with serve_metadata("aws") as service:
        node = replace(node, watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            # Minutes at the rate that is allowed.
            node.start(run="seq -f %09g 1 1000000; echo the very end; sleep 1000")
            node.wait_for_log("the very end")
            following = node.follow()
            wait_until("some of the log", lambda: following.of(LogChunk))
            service.publish("preempt", int((time.time() + 60.0) * 1e6))
            wait_until("the notice", lambda: wire.NOTICE in kinds(following))
            wait_until(
                "the end of the log",
                lambda: any("the very end" in chunk.text for chunk in following.of(LogChunk)),
            )
            lines = following.lines()
    heard = next(
        i for i, x in enumerate(lines) if isinstance(x, JournalEntry) and x.kind == wire.NOTICE
    )
    tail = lines[heard + 1]
    assert isinstance(tail, LogChunk)
    assert len(tail.text) == TAIL_BYTES
    assert tail.text.endswith("the very end\n")


def test_the_last_words_come_before_the_end(node: Node) -> None:
    """The reader of an EXITED entry ends the machine at once."""
    node.run()
    node.start(run="seq -f %09g 1 200000; echo the reason why; exit 3")
    node.wait_for(wire.EXITED)
    following = node.follow()
    wait_until("the end", lambda: wire.EXITED in kinds(following))
    told = following.lines()
    end = next(i for i, x in enumerate(told) if isinstance(x, JournalEntry) and x.kind == "exited")
    assert any("the reason why" in x.text for x in told[:end] if isinstance(x, LogChunk))


def ends(following: Following) -> dict[str, LogEnd]:
    return {end.stream: end for end in following.of(LogEnd)}


def until_exit(following: Following) -> list[LogChunk | LogEnd]:
    """What was sent before the entry about the end of the script."""
    wait_until("the end", lambda: wire.EXITED in kinds(following))
    sent = following.lines()
    at = next(i for i, x in enumerate(sent) if isinstance(x, JournalEntry) and x.ends_script)
    return [line for line in sent[:at] if isinstance(line, LogChunk | LogEnd)]


def put_together(chunks: list[LogChunk | LogEnd], stream: str = "rank0") -> bytes:
    """The stream by offset; NUL bytes where something is missing."""
    data = bytearray()
    for chunk in chunks:
        if isinstance(chunk, LogChunk) and chunk.stream == stream:
            text = chunk.text.encode("latin-1")
            data += bytes(max(chunk.offset + len(text) - len(data), 0))
            data[chunk.offset : chunk.offset + len(text)] = text
    return bytes(data)


def test_all_output_comes_before_the_end(node: Node) -> None:
    """More than a minute of the usual rate."""
    node.run()
    following = node.follow()
    node.start(setup="seq 1 20000", run="seq -f '%08g: a line' 1 240000 >&2; exit 3")
    sent = until_exit(following)
    whole = b"".join(b"%08d: a line\n" % number for number in range(1, 240_001))
    assert put_together(sent) == whole
    ended = [(end.stream, end.offset) for end in sent[-2:] if isinstance(end, LogEnd)]
    assert ended == [("rank0", len(whole)), ("setup", len(put_together(sent, "setup")))]
    assert put_together(sent, "setup").endswith(b"\n20000\n")


def test_all_output_of_a_setup_that_fails_comes_before_its_end(node: Node) -> None:
    node.run()
    following = node.follow()
    node.start(setup="seq -f '%08g: a line' 1 30000; exit 3", run="true")
    failed = lambda: any(e.ends_script for e in following.of(JournalEntry))  # noqa: E731
    wait_until("the end", failed)
    sent = following.lines()
    at = next(i for i, x in enumerate(sent) if isinstance(x, JournalEntry) and x.ends_script)
    output = [line for line in sent[:at] if isinstance(line, LogChunk | LogEnd)]
    assert put_together(output, "setup").endswith(b"00030000: a line\n")
    assert 0 not in put_together(output, "setup")


def test_a_restart_of_the_agent_costs_no_output(node: Node) -> None:
    node.run()
    node.start(
        run="seq -f '%08g: a line' 1 50000; while [ ! -e go ]; do sleep 0.1; done; "
        "seq -f '%08g: more' 1 50000"
    )
    node.wait_for_log("00050000: a line")
    following = node.follow()
    wait_until("some of it", lambda: following.of(LogChunk))
    node.kill_agent()
    assert following.process.wait(LIMIT_S) == 0
    following.close()
    first = put_together([*following.of(LogChunk)])
    node.run()
    following = node.follow(after=following.of(JournalEntry)[-1].seq, logs={"rank0": len(first)})
    (node.paths.workdir / "go").touch()
    rest = put_together(until_exit(following))
    lines = [b"%08d: a line\n", b"%08d: more\n"]
    whole = b"".join(line % number for line in lines for number in range(1, 50_001))
    assert first + rest[len(first) :] == whole


def test_beyond_the_bound_the_newest_lines_come_and_the_rest_is_a_gap(node: Node) -> None:
    """The lines on both sides of the gap are whole."""
    node.run()
    following = node.follow()
    node.start(run="seq -f '%08g: a line' 1 700000")  # 11.9 MB, and 4 MiB may come
    sent = put_together(until_exit(following))
    whole = b"".join(b"%08d: a line\n" % number for number in range(1, 700_001))
    assert len(sent) == len(whole) == ends(following)["rank0"].offset
    begin, end = sent.index(b"\0"), sent.rindex(b"\0") + 1
    assert sent[:begin] == whole[:begin]
    assert sent[begin:end] == bytes(end - begin)
    assert sent[end:] == whole[end:]
    assert whole[begin - 1 : begin] == whole[end - 1 : end] == b"\n"
    assert len(sent) - (end - begin) <= FETCHED_BYTES + 10 * LOG_BYTES_PER_S
    assert end >= len(whole) - TAIL_BYTES


def test_a_line_without_an_end_and_binary_output_come_whole(node: Node) -> None:
    node.run()
    following = node.follow()
    node.start(
        run="head -c 1000000 /dev/zero | tr '\\0' 'x'; head -c 300000 /dev/urandom | tee copy"
    )
    sent = put_together(until_exit(following))
    assert sent[:1_000_000] == b"x" * 1_000_000
    assert len(sent) == 1_300_000
    assert sent[1_000_000:] == (node.paths.workdir / "copy").read_bytes()


class Quick:
    """A follower in this process, whose clock is set and which sends to a list."""

    def __init__(self, tmp_path: Path, *entries: JournalEntry) -> None:
        self.paths = find_paths({"SPOTD_HOME": str(tmp_path)}, "job-1", 1)
        self.paths.logs.mkdir(parents=True)
        self.paths.journal.write_bytes(b"".join(entry.to_line() for entry in entries))
        self.sent: list[Line] = []
        self.now = 100.0

    def follow(self, **offsets: int) -> Follower:
        return Follower(
            self.paths,
            1,
            after=0,
            offsets=offsets,
            out=lambda line: self.sent.append(parse_line(line)),
            monotonic=lambda: self.now,
        )

    def write(self, data: bytes, limit_bytes: int = 1 << 30) -> None:
        writer = LogWriter(self.paths.logs / "rank0.log", limit_bytes)
        writer.write(data)
        writer.close()

    @property
    def chunks(self) -> list[LogChunk]:
        return [line for line in self.sent if isinstance(line, LogChunk)]


EXITED = JournalEntry(1, 1, 1, wire.EXITED, {"code": 0})


def test_a_slow_connection_holds_the_machine_for_a_bounded_time(tmp_path: Path) -> None:
    quick = Quick(tmp_path, EXITED)
    quick.write(b"a line\n" * 100_000)
    follower = quick.follow()
    for elapsed_s in (0.0, 0.1, FETCHED_S - 0.1):
        quick.now = 100.0 + elapsed_s
        follower._send_journal()
        follower._send_logs()
    assert EXITED not in quick.sent
    quick.now = 100.0 + FETCHED_S
    follower._send_journal()
    assert quick.sent[-2:] == [LogEnd(1, "rank0", 700_000), EXITED]
    assert not follower._send_logs(), "nothing more comes"


def test_the_end_is_told_before_a_notice_s_deadline(tmp_path: Path) -> None:
    at_us = int(time.time() * 1e6)
    data = {"notice_id": "n", "kind": "preempt", "remaining_s": 5.0}
    notice = JournalEntry(1, at_us, 1, wire.NOTICE, data)
    exited = replace(EXITED, seq=2)
    quick = Quick(tmp_path, notice, exited)
    quick.write(b"a line\n" * 100_000)
    follower = quick.follow()
    for elapsed_s in (0.0, 2.0):
        quick.now = 100.0 + elapsed_s
        follower._send_journal()
        follower._send_logs()
    assert exited not in quick.sent
    quick.now = 103.1
    follower._send_journal()
    assert quick.sent[-1] == exited


def test_a_dead_agent_s_last_output_is_sent_before_the_end(tmp_path: Path) -> None:
    quick = Quick(tmp_path, EXITED)
    quick.write(b"a line\n" * 100_000)
    quick.follow()._send_rest()
    assert quick.sent[-1] == EXITED
    assert put_together([*quick.chunks]) == b"a line\n" * 100_000


def test_characters_are_not_cut(tmp_path: Path) -> None:
    """Neither at the end of a chunk, nor where the log was rotated, nor before all is written."""
    quick = Quick(tmp_path)
    text = "\u00e9\u4e16\U0001f600" * 20_000
    data = text.encode()
    quick.write(data[:-2], limit_bytes=40_001)  # a limit within a character
    begin = LogReader(quick.paths.logs / "rank0.log").bounds()[0]
    follower = quick.follow(rank0=begin)
    for quick.now in range(100, 110):
        follower._send_logs()
    sent = [chunk.text.encode("latin-1") for chunk in quick.chunks]
    assert b"".join(sent) == data[begin:-4], "what is there of the last character waits"
    assert all(part.decode() for part in sent[1:])
    quick.write(data[-2:], limit_bytes=40_001)
    quick.now += 1
    follower._send_logs()
    assert quick.chunks[-1].text.encode("latin-1").decode() == text[-1]


def test_after_an_overrun_the_output_goes_on_with_a_whole_line(tmp_path: Path) -> None:
    quick = Quick(tmp_path)
    quick.write(b"".join(b"line %06d\n" % number for number in range(20_000)), 20_001)
    quick.follow(rank0=5)._send_logs()
    first = quick.chunks[0]
    assert first.offset > 5
    assert first.offset % 12 == 0
    assert first.text.startswith("line ")


def test_it_is_noted_how_much_was_sent_and_told_what_is_stored(tmp_path: Path) -> None:
    quick = Quick(tmp_path, EXITED)
    quick.paths.memory.mkdir(parents=True, exist_ok=True)
    quick.write(b"a line\n" * 10)
    quick.paths.stored_log("rank0").write_text("[7, 70]")
    quick.follow()._send_rest()
    assert json.loads(quick.paths.sent_logs.read_bytes()) == {"rank0": 70}
    assert LogEnd(1, "rank0", 70, begin=7, end=70) in quick.sent
    shutil.rmtree(quick.paths.memory)


def test_output_of_any_bytes_survives(node: Node) -> None:
    node.run()
    node.start(run=r"printf 'a\000\377\n\302\251'")
    node.wait_for(wire.EXITED)
    following = node.follow()
    wait_until("the log", lambda: following.of(LogChunk))
    assert text_of(following, "rank0").encode("latin-1") == b"a\0\xff\n\xc2\xa9"


def test_a_reader_that_stops_reading_does_not_hold_the_agent_up(node: Node) -> None:
    node.run()
    following = node.follow()
    wait_until("it runs", lambda: following.of(Heartbeat))
    following.process.send_signal(signal.SIGSTOP)
    try:
        node.start(run=f"{WORKER} --steps 50", engine="spotd")
        assert node.wait_for(wire.EXITED).data["code"] == 0
    finally:
        following.process.send_signal(signal.SIGCONT)
    wait_until("it catches up", lambda: wire.EXITED in kinds(following))
    assert following.of(JournalEntry) == node.journal()
