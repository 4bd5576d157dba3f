"""Prometheus itself, and its promtool: what they say of our metrics, rules and queries counts.

A missing program is a failure, never a skip.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rigs.ports import free_port

START_S = 60.0


def binary(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is missing: apt-get install prometheus")
    return found


def promtool(*words: str, stdin: str = "") -> tuple[int, str]:
    """Its exit code, and all that it says."""
    done = subprocess.run(
        [binary("promtool"), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@dataclass
class Prometheus:
    """A server that runs."""

    port: int

    def get(self, path: str, **query: str) -> Any:
        """`data` of its API's answer; an error of a query is a HTTPError."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success"
        return answer["data"]

    def value(self, expr: str) -> list[float]:
        """What an expression comes to now."""
        return [float(one["value"][1]) for one in self.get("query", query=expr)["result"]]


@contextmanager
def running(folder: Path, config: str) -> Iterator[Prometheus]:
    """A server with this configuration, its data in `folder`."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            *(binary("prometheus"), f"--config.file={folder / 'prometheus.yml'}"),
            *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        server, end_s = Prometheus(port), time.monotonic() + START_S
        while True:
            try:
                server.get("status/buildinfo")
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end_s, (folder / "log").read_text()
                time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(20)
        log.close()
