"""The owner's client of a local cloud, and a way to start one: for tests, benches and `spotctl`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from providers.local.access import NoTokenError, token_file
from providers.local.client import Client, NoAnswer


class ControlError(Exception):
    """The cloud refused an order, or could not be started; the text says why."""


class Control:
    """Orders to the local cloud at `url`. Every method raises ControlError or client.NoAnswer."""

    def __init__(self, url: str, token_file: Path, timeout_s: float = 30.0) -> None:
        self._client = Client(url, timeout_s, token_file)
        self.url = url

    def preempt(self, **rule: object) -> list[dict[str, Any]]:
        """Take machines away: keys of a `[[preempt]]` table, with `instance`, `zone` or
        `personality`. Returns the notices with `notice_id, published_at_us, deadline_us`."""
        notices: list[dict[str, Any]] = self._post("preempt", rule)["notices"]
        return notices

    def rebalance(self, instance: str) -> list[dict[str, Any]]:
        """Publish a rebalance recommendation (aws)."""
        return self.preempt(instance=instance, kind="rebalance", notice_s=0)

    def withdraw(self, notice_id: str) -> dict[str, Any]:
        """Take a notice back."""
        return self._post("withdraw", {"notice_id": notice_id})

    def fault(self, **fault: object) -> None:
        """Keys of a `[[fault]]` table; its times count from the start of the server."""
        self._post("fault", fault)

    def clear_faults(self) -> None:
        """No more faults."""
        self._post("clear_faults", {})

    def price(self, usd_per_hour: float, **where: object) -> None:
        """A price from now on, for `personality`, `zone`, `instance_type`, `capacity_type`."""
        self._post("price", {"usd_per_hour": usd_per_hour, **where})

    def capacity(self, count: int, **where: object) -> None:
        """A capacity from now on, for `personality`, `zone`, `capacity_type`."""
        self._post("capacity", {"count": count, **where})

    def metadata(self, instance: str, kind: str, seconds: float = 0.0) -> None:
        """A fault of one machine's metadata service; see metadata.FAULTS."""
        self._post("metadata", {"instance": instance, "kind": kind, "seconds": seconds})

    def shutdown(self) -> None:
        """End the cloud and every machine; the call returns before all is over."""
        self._post("shutdown", {})

    def meter(self) -> list[dict[str, Any]]:
        """Machine-seconds by token, with launch and end times."""
        rows: list[dict[str, Any]] = self._call("GET", "meter")["meter"]
        return rows

    def state(self) -> dict[str, Any]:
        """Every machine and every notice there was."""
        return self._call("GET", "state")

    def _post(self, verb: str, body: dict[str, object]) -> dict[str, Any]:
        return self._call("POST", verb, body)

    def _call(
        self, method: str, verb: str, body: dict[str, object] | None = None
    ) -> dict[str, Any]:
        try:
            answer = self._client.call(method, f"/control/{verb}", body=body)
        except NoTokenError as error:
            raise ControlError(str(error)) from None
        if answer.status != 200:
            raise ControlError(str(answer.document.get("error", {}).get("text", answer.document)))
        return answer.document


@dataclass(frozen=True)
class Running:
    """A local cloud that was started here."""

    url: str
    token_file: Path
    process: subprocess.Popen[bytes]
    control: Control

    def stop(self, timeout_s: float = 30.0) -> None:
        """End it and all its machines."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the machines end all the same: the zygote sees to it
            self.process.wait()
            raise


def start(folder: Path, scenario: Path | None = None, port: int = 0) -> Running:
    """Start a local cloud as a process of its own. Raises ControlError with what it said."""
    argv = [sys.executable, "-m", "providers.local.server", "--dir", str(folder)]
    argv += ["--port", str(port)] + (["--scenario", str(scenario)] if scenario else [])
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    assert process.stdout  # noqa: S101  for the type checker
    with process.stdout:
        line = process.stdout.readline()
    if not line:
        process.wait()
        said = log.read_text("utf-8", "replace").strip().splitlines()[-5:]
        raise ControlError("the local cloud did not start: " + "\n".join(said))
    url, token = json.loads(line)["url"], token_file(folder)
    return Running(url, token, process, Control(url, token))


def attach(folder: Path) -> Control:
    """The cloud that runs on this folder. Raises ControlError when none does."""
    try:
        url = json.loads((folder / "server.json").read_text("utf-8"))["url"]
        control = Control(url, token_file(folder))
        control.state()
    except (OSError, ValueError, NoAnswer) as error:
        raise ControlError(f"no local cloud runs on {folder}; start one: {error}") from None
    return control


@contextlib.contextmanager
def running(folder: Path, scenario: Path | None = None, port: int = 0) -> Iterator[Running]:
    """A local cloud for the length of a `with` block."""
    cloud = start(folder, scenario, port)
    try:
        yield cloud
    finally:
        cloud.stop()
