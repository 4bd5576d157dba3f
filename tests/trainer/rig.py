"""Training processes under test, and the agent's end of their line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotd.wire import encode
from tests.fixtures.forks import TORCH, Fork, nursery
from tests.fixtures.waiting import LIMIT_S

ROOT = Path(__file__).parent.parent.parent
Process = subprocess.Popen[bytes] | Fork
TINY = (
    "--layers",
    "1",
    "--heads",
    "2",
    "--width",
    "32",
    "--block",
    "32",
    "--batch",
    "4",
    "--warmup",
    "5",
    "--threads",
    "1",
    "--device",
    "cpu",
)


@dataclass
class Message:
    """One thing that a training process said, and when we heard it (monotonic)."""

    at: float
    kind: str
    data: dict[str, Any]


class AgentEnd:
    """Listens where SPOTD_SOCKET points, keeps what workers say, and tells them the flag."""

    def __init__(self, **flag: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rig")
        self.path = str(Path(self._folder.name) / "worker.sock")
        self.flag: dict[str, Any] = {
            "save": 0,
            "stop": False,
            "deadline_s": None,
            "reason": "",
            "claim": "now",
            "claim_deadline_s": 0.0,
            **flag,
        }
        self.messages: list[Message] = []
        self._changed = threading.Condition()
        self._lines: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> AgentEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(LIMIT_S)
        self._folder.cleanup()

    def hang_up(self) -> None:
        """Break every line that is open now."""
        with self._changed:
            for line in self._lines:
                line.shutdown(socket.SHUT_RDWR)
            self._lines.clear()

    def tell(self, **changes: Any) -> None:
        """Change the flag and tell every worker."""
        with self._changed:
            self.flag.update(changes)
            for line in self._lines:
                line.sendall(encode({"flag": self.flag}))

    def wait(
        self,
        kind: str,
        meets: Callable[[dict[str, Any]], bool] = lambda _: True,
        timeout_s: float = LIMIT_S,
    ) -> Message:
        """The first message of that kind that meets the condition; fails after `timeout_s`."""

        def find() -> Message | None:
            return next((m for m in self.messages if m.kind == kind and meets(m.data)), None)

        with self._changed:
            found = self._changed.wait_for(find, timeout_s)
        assert found, f"no {kind} within {timeout_s} s; heard {[m.kind for m in self.messages]}"
        return found

    def wait_left(self, timeout_s: float = LIMIT_S) -> None:
        """Until all who were connected have gone, the saver of a killed program included."""
        with self._changed:
            gone = self._changed.wait_for(lambda: not self._lines, timeout_s)
        assert gone, f"still connected after {timeout_s} s"

    def of(self, kind: str) -> list[dict[str, Any]]:
        with self._changed:
            return [message.data for message in self.messages if message.kind == kind]

    def losses(self) -> dict[int, float]:
        """Every reported loss by step (from 1)."""
        return {
            report["from_step"] + index: loss
            for report in self.of("progress")
            for index, loss in enumerate(report["losses"])
        }

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()[0]
            except OSError:
                return
            with self._changed, contextlib.suppress(BrokenPipeError):  # it may be gone already
                line.sendall(encode({"flag": self.flag}))
                self._lines.append(line)
            thread = threading.Thread(target=self._listen, args=(line,))
            thread.start()
            self._threads.append(thread)

    def _listen(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as file:
            # A killed program may leave something of ours unread: the line is reset then.
            with contextlib.suppress(ConnectionResetError):
                for text in file:
                    value = json.loads(text)
                    kind = value.get("kind") or next(iter(value))
                    data = value["data"] if "kind" in value else value[kind]
                    with self._changed:
                        self.messages.append(Message(time.monotonic(), kind, data))
                        self._changed.notify_all()
            with self._changed:
                if line in self._lines:
                    self._lines.remove(line)
                    self._changed.notify_all()


@dataclass
class Trainer:
    """Starts generations of one job; `env` overrides what spotd would set, and `loaded` is what
    torch is loaded with. `fresh`: each in an interpreter of its own, where what happens before
    torch is there matters."""

    folder: Path
    steps: int = 40
    job_id: str = "job"
    every_steps: int = 5
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    module: str = "trainer.train"
    fresh: bool = False
    modules: tuple[str, ...] = ()  # that are loaded beforehand, beside torch
    env: Mapping[str, str] = field(default_factory=dict)
    loaded: Mapping[str, str] = field(default_factory=dict)
    started: list[Process] = field(default_factory=list)

    def held(self, after: int) -> Trainer:
        """The same, which waits after so many steps for what tests/trainer/held.py says."""
        module = "tests.trainer.held" if self.module == "trainer.train" else self.module
        until = self.folder / f"beyond-{after}"
        env = {**self.env, "HELD_AFTER": str(after), "HELD_UNTIL": str(until)}
        return replace(self, module=module, env=env)

    def go_on(self) -> None:
        """Let one that was `held` make its other steps."""
        Path(self.env["HELD_UNTIL"]).touch()

    @property
    def store_url(self) -> str:
        return self.env.get("SPOTD_STORE_URL", (self.folder / "store").as_uri())

    def start(self, generation: int, agent: AgentEnd | None = None) -> Process:
        steps = ["--steps", str(self.steps)]
        data = ["--data", argparse.__file__]  # some text that stays as it is
        arguments = [*steps, *TINY, *data, *self.arguments]
        env = self.environment(generation, agent)
        log = self.folder / "out.log"
        if self.fresh:
            process = self._interpreter(arguments, env, log)
        else:
            module = self.module
            if self.ranks > 1 or "SPOTD_TEST_NODES" in self.env:
                arguments, module = [str(self.ranks), module, *arguments], "tests.fixtures.ranks"
            modules = (*TORCH, *self.modules) if self.modules else ()
            place = nursery(*modules, **self.loaded)
            process = place.fork(module, arguments, env | self.loaded, self.folder, log)
        self.started.append(process)
        return process

    def environment(self, generation: int, agent: AgentEnd | None = None) -> dict[str, str]:
        """What spotd would set, and ours."""
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPOTD_JOB_ID": self.job_id,
            "SPOTD_GENERATION": str(generation),
            "SPOTD_TOKEN": f"token{generation}",
            "SPOTD_STORE_URL": (self.folder / "store").as_uri(),
            "SPOTD_EVERY_STEPS": str(self.every_steps),
            "SPOTD_PROGRESS_EVERY_S": "0",
            "SPOTD_SOCKET": agent.path if agent else "",
            "GLOO_SOCKET_IFNAME": "lo",
            **self.env,
        }

    def _interpreter(self, arguments: list[str], env: dict[str, str], log: Path) -> Process:
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                env=env,
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, generation: int, agent: AgentEnd | None = None) -> int:
        try:
            return self.start(generation, agent).wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{error}: {self.output()}") from None

    def end(self) -> None:
        """Kill what a test left running, with its children."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(LIMIT_S)

    def output(self) -> str:
        return (self.folder / "out.log").read_text()
