"""The tutorial's commands, one after the other, in a home that has nothing, do what it says."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from tests.e2e.rig import FINISH_TIMEOUT_S, UP_TIMEOUT_S
from tests.fixtures.waiting import until
from tests.trainer.rig import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
# Nothing is installed: the environment of the tests has all of it.
INSTALLS = ["python3 -m venv ~/spotd-env && . ~/spotd-env/bin/activate", "pip install '.[torch]'"]
LASTING = ["spotd run", "spotctl logs -f my-training"]  # until somebody ends them


def commands() -> list[str]:
    """Every command of the page, as a reader types it."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


class Reader:
    """A person with one terminal, whose folder is that of the last `cd`, and another one."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
        self.env = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "COLUMNS": "160"}

    def type(self, command: str, answer: str = "") -> str:
        """What a command prints. `answer` is typed if it asks for something."""
        where = self.home / "where"
        line = f"{command}\nresult=$?; pwd > {shlex.quote(str(where))}; exit $result"
        ours, theirs = pty.openpty()
        try:
            os.write(ours, f"{answer}\n".encode() if answer else b"\x04")
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.env,
                stdin=theirs,
                capture_output=True,
                text=True,
                check=False,
                timeout=FINISH_TIMEOUT_S,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        print(f"$ {command}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, command
        self.folder = Path(where.read_text().strip())
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def beside(self, command: str) -> Iterator[Callable[[], str]]:
        """A command in the other terminal until the end of the block; what it has printed."""
        path = self.home / f"{command.split()[1]}.out"
        with path.open("wb") as output, self._started(command, output) as process:
            try:
                yield path.read_text
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(UP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _started(self, command: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            shlex.split(command),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def job(self) -> dict[str, Any]:
        shown = ["spotctl", "show", "my-training", "-o", "json"]
        done = subprocess.run(shown, env=self.env, capture_output=True, check=False)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def saved_step(self) -> int:
        checkpoint = self.job().get("last_checkpoint")
        return int(checkpoint["step"]) if checkpoint else 0


@pytest.fixture
def reader(folder: Path) -> Iterator[Reader]:
    home = folder / "home"
    home.mkdir()
    reader = Reader(home)
    yield reader
    subprocess.run(["spotctl", "cloud", "down"], env=reader.env, capture_output=True, check=False)
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.e2e
def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    todo = commands()
    assert todo[:2] == INSTALLS
    assert [line for line in todo if line in LASTING] == LASTING
    said: dict[str, str] = {}
    with contextlib.ExitStack() as terminals:
        for command in todo[2:]:
            verb = " ".join(command.partition("#")[0].split()[:3])
            if command == "spotd run":
                terminals.enter_context(reader.beside(command))
                socket = reader.home / ".local" / "state" / "spotd" / "spotd.sock"
                until(socket.exists, UP_TIMEOUT_S)
            elif command in LASTING:
                with reader.beside(command) as printed:
                    until(partial(_has_step, printed), UP_TIMEOUT_S)
            else:
                if verb == "spotctl drill run":
                    until(lambda: reader.saved_step() > 0, UP_TIMEOUT_S)
                said[verb] = reader.type(command, answer="y" if verb == "spotctl drill run" else "")
            if verb == "spotctl cancel my-training":
                until(lambda: reader.job()["phase"] == "cancelled", UP_TIMEOUT_S)
        _check(reader, said)


def _has_step(printed: Callable[[], str]) -> bool:
    return "step" in printed()


def _check(reader: Reader, said: dict[str, str]) -> None:
    """What matters of what the reader saw, by the first words of the command."""
    assert {"job.yaml", "train.py"} <= {path.name for path in reader.folder.iterdir()}
    assert "local-aws" in said["spotctl plan job.yaml"]
    assert "my-training" in said["spotctl run job.yaml"]
    assert "passed" in said["spotctl drill run"]
    assert re.search(r"^ +2 .* running ", said["spotctl show my-training"], re.MULTILINE)
    assert re.search(r"^lost +no work$", said["spotctl show my-training"], re.MULTILINE)
    assert re.search(r"training again .* from step [1-9]", said["spotctl events my-training"])
    assert [path.name for path in (reader.folder / "model").iterdir()]
    assert "$" in said["spotctl cost my-training"]
    assert "stopped" in said["spotctl cloud down"]
