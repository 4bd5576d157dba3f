"""A rented machine for tests: a home folder, the real `spot-node`, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from spotd import wire
from spotd.wire import (
    AgentConfig,
    Command,
    Head,
    Heartbeat,
    JournalEntry,
    Line,
    Package,
    Reply,
    StartDocument,
    head_key,
    parse_head,
    parse_line,
    parse_reply,
)
from spotd.wire.parts import build
from tests.fixtures.waiting import LIMIT_S, wait_until
from trainer.agent.base.paths import AgentPaths, find_paths
from trainer.agent.process.processes import is_alive, kill_tree, send_signal
from trainer.agent.process.script_supervisor import ScriptPids, read_pids

ROOT = Path(__file__).parents[3]
SOURCE = (sys.executable, "-m", "trainer.node")
DEADLINE_S = LIMIT_S


@dataclass
class Node:
    """One machine with one job's generation. As a context manager it ends everything it started."""

    home: Path
    generation: int = 1
    rank: int = 0
    watcher: str = "none"
    metadata_base: str = ""
    program: Sequence[str] = SOURCE
    heartbeat_s: float = 0.2
    unattended_s: float = 0.0
    power_off: tuple[str, ...] = ()
    wipe: bool = False
    keep_s: float = 0.0
    prepared_file: str = ""
    regroups: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    token: str = "token-1"
    followers: list[Following] = field(default_factory=list)

    def __enter__(self) -> Node:
        self.home.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self.followers:
            follower.close()
        self.kill_agent()
        for name in ("setup", "run", "saver"):
            pids = self.pids(name)
            if pids is not None:
                kill_tree(pids.supervisor.pid, pids.program.pid)
                send_signal(pids.supervisor, signal.SIGKILL)
        shutil.rmtree(self.paths.memory, ignore_errors=True)

    # --- the machine

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            **self.environ,
        }

    @property
    def paths(self) -> AgentPaths:
        return find_paths({"SPOTD_HOME": str(self.home / ".spotd")}, "job-1", self.generation)

    @property
    def store_root(self) -> Path:
        return self.home.parent / "store"

    def head(self) -> Head | None:
        path = self.store_root / head_key("job-1")
        return parse_head(path.read_bytes()) if path.exists() else None

    def call(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.program, *args],
            input=stdin,
            env=self.env,
            cwd=self.home,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )

    # --- the agent

    def run(self) -> dict[str, Any]:
        config = AgentConfig(
            deployment="test",
            job_id="job-1",
            generation=self.generation,
            rank=self.rank,
            token=self.token,
            watcher=self.watcher,
            metadata_base=self.metadata_base,
            heartbeat_s=self.heartbeat_s,
            unattended_s=self.unattended_s,
            left_s=self.unattended_s,
            power_off=self.power_off,
            wipe=self.wipe,
            keep_s=self.keep_s,
            prepared_file=self.prepared_file,
            regroups=self.regroups,
        )
        done = self.call("run", stdin=wire.encode(config.to_data()))
        assert done.returncode == 0, done.stderr.decode()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    @property
    def agent_pid(self) -> int:
        return int(self.paths.pid.read_text())

    def kill_agent(self, number: int = signal.SIGKILL) -> None:
        """Returns when the agent is gone."""
        try:
            pid = self.agent_pid
            os.kill(pid, number)
        except (FileNotFoundError, ProcessLookupError):
            return
        wait_until("the agent is gone", lambda: not is_running(pid))

    def send(self, name: str, data: Mapping[str, Any] | None = None, **kwargs: Any) -> Reply:
        command = Command(name, kwargs.get("generation", self.generation), data or {})
        done = self.call(
            "send",
            "--job",
            "job-1",
            "--generation",
            str(self.generation),
            stdin=command.to_line(),
        )
        assert done.returncode == 0, done.stderr.decode()
        return parse_reply(done.stdout)

    def start(self, **changes: Any) -> None:
        reply = self.send(wire.START, self.start_document(**changes).to_data())
        assert reply.ok, reply.error

    def train_and_save(self, run: str) -> None:
        """Start an agent whose program has reported a step and a save, so that both are
        measured."""
        self.run()
        self.start(run=run, engine="spotd")
        self.wait_for(wire.PROGRESS)
        assert self.send(wire.SAVE).ok
        self.wait_for(wire.CHECKPOINT)

    def start_document(self, **changes: Any) -> StartDocument:
        values: dict[str, Any] = {
            "job_name": "test",
            "num_nodes": 1,
            "node_ips": ("127.0.0.1",),
            "accelerators_per_node": 0,
            "setup": "",
            "run": "true",
            "envs": {},
            "secrets": {},
            "packages": (),
            "store_url": f"file://{self.store_root}",
            "store_options": {},
            "engine": "none",
            "claim": "now",
            "claim_deadline_s": 0.0,
            "head_generation": 0,
            "every_steps": 10,
            "every_s": 60.0,
            "keep": 3,
            "stop_grace_s": 5.0,
            "progress_every_s": 1.0,
        }
        return build(StartDocument, {**values, **changes})

    def follow(self, after: int = 0, logs: Mapping[str, int] | None = None) -> Following:
        found = Following(self, after, logs or {})
        self.followers.append(found)
        return found

    def live_on(self, seconds: float) -> None:
        """Wait until the agent's loop has run for so long, by its own heartbeats."""
        until_us = time.time_ns() // 1000 + int(seconds * 1e6)
        follower = self.follow(after=self.journal()[-1].seq)
        wait_until(
            f"a heartbeat after {seconds:g} s",
            lambda: any(beat.at_us >= until_us for beat in follower.of(Heartbeat)),
        )

    # --- what it left

    def journal(self) -> list[JournalEntry]:
        data = self.paths.journal.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]  # without a line that is being written
        entries = [parse_line(line) for line in whole.splitlines()]
        return [entry for entry in entries if isinstance(entry, JournalEntry)]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.journal()]

    def entries(self, kind: str) -> list[JournalEntry]:
        return [entry for entry in self.journal() if entry.kind == kind]

    def wait_for(self, kind: str, timeout_s: float = DEADLINE_S) -> JournalEntry:
        """Return the first entry of a kind."""
        wait_until("the journal exists", self.paths.journal.exists)
        found: list[JournalEntry] = wait_until(
            f"{kind} in the journal", lambda: self.entries(kind), timeout_s
        )
        return found[0]

    def log(self, stream: str = "rank0") -> str:
        path = self.paths.logs / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, text: str, stream: str = "rank0") -> None:
        wait_until(f"{text!r} in the log", lambda: text in self.log(stream))

    def pids(self, name: str = "run") -> ScriptPids | None:
        return read_pids(self.paths.memory / name)

    def is_program_alive(self) -> bool:
        pids = self.pids()
        return pids is not None and is_alive(pids.program)

    def put(self, archive: bytes, digest: str) -> Package:
        done = self.call("put", "--digest", digest, stdin=archive)
        assert done.returncode == 0, done.stderr.decode()
        return Package(digest, "")


class Following:
    """A running `spot-node follow` whose lines are read as they come."""

    def __init__(self, node: Node, after: int, logs: Mapping[str, int]) -> None:
        args = ("follow", "--job", "job-1", "--generation", str(node.generation))
        self._output = node.home / f"follow-{len(node.followers)}.out"
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [*node.program, *args, "--after", str(after)],
                stdin=subprocess.PIPE,
                stdout=file,
                env=node.env,
                cwd=node.home,
            )
        assert self.process.stdin is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdin.write(wire.encode({"logs": dict(logs)}))
        self.stdin.flush()

    def lines(self) -> list[Line]:
        data = self._output.read_bytes()
        return [parse_line(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def of(self, kind: type[Any]) -> list[Any]:
        return [line for line in self.lines() if isinstance(line, kind)]

    def close(self) -> int:
        if self.process.poll() is None:
            self.stdin.close()
        code = self.process.wait(LIMIT_S)
        self.stdin.close()
        return code


def is_running(pid: int) -> bool:
    """Whether a process with this id runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
