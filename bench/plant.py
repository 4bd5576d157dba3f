"""A fleet and a daemon that runs it, as processes, with ways to load and to read them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fleet_cloud import CLOUDS, region

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UnreachableError
from spotd.demo.box import BoxError, wait_for

HERE = Path(__file__).parent
UNIT = HERE.parent / "systemd" / "spotd.service"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_S = 60.0
# The daemon's threads by what they are for; what has none of these names follows a node.
_THREADS = (
    (r"reconcile", "reconcile loop"),
    (r"follower", "following nodes"),
    (r"output|alert", "output and alerts"),
    (r"local-", "calls to clouds"),
    (r"node-", "calls to nodes"),
    (r"follow$", "opening links"),
    (r"ThreadPoolExecutor|APScheduler", "duties"),
    (r"MainThread|server|uvicorn|AnyIO|asyncio|anyio|api", "API"),
)
LINKS = "links"


@dataclass(frozen=True)
class Reading:
    """The daemon at one moment. CPU in seconds since it started."""

    at_s: float
    cpu_s: float
    thread_cpu_s: dict[str, float]
    threads: dict[str, int]
    resident_kb: int
    recorded: int  # journal entries on record
    said: int  # journal entries spoken by the fleet
    passes: int  # decisions committed


class Plant:
    """Files of both processes lie in `folder`. `pipe`: without SSH."""

    def __init__(self, folder: Path, *, pipe: bool) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        doors = ["pipe", str(folder / "fleet.sock")] if pipe else ["ssh"]
        self.fleet = self._spawn("fleet", ["fleet.py", *doors], stdout=subprocess.PIPE)
        assert self.fleet.stdout is not None
        self._url = urlsplit(json.loads(self.fleet.stdout.readline())["url"])
        self._write_config()
        arguments = ["watched_daemon.py", str(folder / "config.toml"), str(folder), *doors[1:]]
        self.daemon = self._spawn("daemon", arguments, settings=service_settings())
        self.client = Client(folder / "s")
        wait_for("the daemon's socket", self._answers, 60)

    def _spawn(
        self,
        name: str,
        arguments: list[str],
        stdout: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / arguments[0]), *arguments[1:]],
                env={**os.environ, **(settings or {})},
                stdin=subprocess.PIPE,
                stdout=log if stdout is None else stdout,
                stderr=log,
            )

    def _write_config(self) -> None:
        lines = [
            f'state_dir = "{self.folder / "state"}"',
            f'socket = "{self.folder / "s"}"',
            "[checkpoint]",
            f'store = "{(self.folder / "checkpoints").as_uri()}"',
            "[limits]",
            "max_nodes = 10000",
            "max_usd_per_hour = 1000000",
            "[log]",
            'level = "warning"',
        ]
        for cloud in CLOUDS:
            lines += [f"[providers.local-{cloud}]", 'kind = "local"', f'personality = "{cloud}"']
            lines += [f'url = "{self._url.geturl()}"', f'token_file = "{self.folder / "token"}"']
        (self.folder / "token").write_text("the fleet lets everybody in\n")
        (self.folder / "config.toml").write_text("\n".join([*lines, ""]))

    def _answers(self) -> bool:
        if self.daemon.poll() is not None:
            raise BoxError(f"the daemon ended: {(self.folder / 'daemon.log').read_text()[-2000:]}")
        try:
            return bool(self.client.call(routes.HEALTH()))
        except UnreachableError:
            return False

    def close(self) -> None:
        """End both."""
        self.daemon.send_signal(signal.SIGTERM)
        for process in (self.daemon, self.fleet):
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert self.fleet.stdout is not None
        self.fleet.stdout.close()

    # --- loading

    def submit(self, jobs: int) -> None:
        """Through the daemon's own door; each job prefers one region and takes any."""

        def submit(number: int) -> None:
            cloud, where = region(number)
            text = f"""\
name: job-{number:05d}
resources:
  accelerators: H100:8
  use_spot: true
  ordered: [{{infra: {cloud}/{where}}}, {{infra: aws}}, {{infra: gcp}}, {{infra: azure}}]
run: python train.py
spotd:
  checkpoint: {{engine: spotd}}
"""
            self.client.call(routes.SUBMIT_JOB(), {"yaml": text, "request_id": f"bench-{number}"})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(submit, range(jobs)))

    def ask_fleet(self, path: str) -> Any:
        """GET from the fleet's control door."""
        connection = http.client.HTTPConnection(
            self._url.hostname or "", self._url.port, timeout=60
        )
        with closing(connection):
            connection.request("GET", f"/control/{path}")
            return json.loads(connection.getresponse().read())

    def query(self, sql: str) -> int:
        """One number out of the daemon's database, read beside it."""
        url = f"{(self.folder / 'state' / 'spotd.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(url, uri=True, timeout=10)) as connection:
            return int(connection.execute(sql).fetchone()[0] or 0)

    def running(self) -> int:
        """Jobs with a machine that trains, and no other."""
        return self.query(
            "SELECT count(*) FROM (SELECT job_id FROM nodes WHERE state <> 'gone'"
            " GROUP BY job_id HAVING count(*) = 1 AND min(state) = 'running')"
        )

    # --- reading

    def read(self) -> Reading:
        """Where the daemon stands now."""
        names = self._thread_names()
        cpu_s, threads = dict[str, float](), dict[str, int]()
        for task in Path(f"/proc/{self.daemon.pid}/task").iterdir():
            purpose = _purpose(names.get(task.name, ""))
            threads[purpose] = threads.get(purpose, 0) + 1
            cpu_s[purpose] = cpu_s.get(purpose, 0.0) + _cpu_s(task)
        return Reading(
            at_s=time.monotonic(),
            cpu_s=_cpu_s(Path(f"/proc/{self.daemon.pid}")),
            thread_cpu_s=cpu_s,
            threads=threads,
            resident_kb=self.resident_kb(),
            recorded=self.query("SELECT sum(journal_seq) FROM nodes"),
            said=int(self.ask_fleet("facts")["entries"]),
            passes=self.query("SELECT sum(version) FROM jobs"),
        )

    def _thread_names(self) -> dict[str, str]:
        path = self.folder / "threads.json"
        path.unlink(missing_ok=True)
        self.daemon.send_signal(signal.SIGUSR1)
        wait_for("the names of the daemon's threads", path.exists, 30)
        return dict(json.loads(path.read_text()))

    def resident_kb(self) -> int:
        """Of the daemon."""
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1])

    def plans(self) -> list[dict[str, Any]]:
        """What the watched daemon noted."""
        path = self.folder / "plans.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def service_settings() -> dict[str, str]:
    """The environment that the unit gives the daemon."""
    found = re.findall(r"^Environment=(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE)
    return dict(found)


def _cpu_s(folder: Path) -> float:
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _purpose(name: str) -> str:
    return next((words for pattern, words in _THREADS if re.search(pattern, name)), LINKS)


@contextmanager
def running_plant(folder: Path, *, pipe: bool) -> Iterator[Plant]:
    """A plant that answers, ended with the block."""
    plant = Plant(folder, pipe=pipe)
    try:
        yield plant
    finally:
        plant.close()
