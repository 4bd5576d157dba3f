"""Start and control a local cloud, for tests, benchmarks and `spotctl`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from providers.local.access import NoTokenError, token_file
from providers.local.client import Client


class ControlError(Exception):
    """The cloud refused a request or could not be started; the message says why."""


class Control:
    """Client of the control API at `url`. All methods raise ControlError or NoResponseError."""

    def __init__(self, url: str, token_file: Path, timeout_s: float = 30.0) -> None:
        self._client = Client(url, timeout_s, token_file)
        self.url = url

    def preempt(self, **rule: object) -> list[dict[str, Any]]:
        """Preempt machines now and return the notices.

        Takes the keys of a `[[preempt]]` table, with `instance`, `zone` or `personality`.
        """
        notices: list[dict[str, Any]] = self._post("preempt", rule)["notices"]
        return notices

    def rebalance(self, instance: str) -> list[dict[str, Any]]:
        """Publish a rebalance recommendation (aws)."""
        return self.preempt(instance=instance, kind="rebalance", notice_s=0)

    def withdraw(self, notice_id: str) -> dict[str, Any]:
        """Withdraw a notice."""
        return self._post("withdraw", {"notice_id": notice_id})

    def fault(self, **fault: object) -> None:
        """Add a fault, given by the keys of a `[[fault]]` table."""
        self._post("fault", fault)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._post("clear_faults", {})

    def price(self, usd_per_hour: float, **scope: object) -> None:
        """Set the price from now on. Scope: personality, zone, instance_type, capacity_type."""
        self._post("price", {"usd_per_hour": usd_per_hour, **scope})

    def capacity(self, count: int, **scope: object) -> None:
        """Set the capacity from now on. Scope: personality, zone, capacity_type."""
        self._post("capacity", {"count": count, **scope})

    def metadata(self, instance: str, kind: str, seconds: float = 0.0) -> None:
        """Inject a fault into one machine's metadata service; see metadata.FAULTS."""
        self._post("metadata", {"instance": instance, "kind": kind, "seconds": seconds})

    def shutdown(self) -> None:
        """Stop the cloud and all machines; returns before they have ended."""
        self._post("shutdown", {})

    def meter(self) -> list[dict[str, Any]]:
        """Machine-seconds by token, with launch and end times."""
        rows: list[dict[str, Any]] = self._call("GET", "meter")["meter"]
        return rows

    def state(self) -> dict[str, Any]:
        """All machines and notices, past ones included."""
        return self._call("GET", "state")

    def _post(self, verb: str, body: dict[str, object]) -> dict[str, Any]:
        return self._call("POST", verb, body)

    def _call(
        self, method: str, verb: str, body: dict[str, object] | None = None
    ) -> dict[str, Any]:
        try:
            response = self._client.call(method, f"/control/{verb}", body=body)
        except NoTokenError as error:
            raise ControlError(str(error)) from None
        if response.status != 200:
            raise ControlError(
                str(response.document.get("error", {}).get("text", response.document))
            )
        return response.document


@dataclass(frozen=True)
class RunningCloud:
    """A local cloud started by this process."""

    url: str
    token_file: Path
    process: subprocess.Popen[bytes]
    control: Control

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the cloud and all its machines. Raises subprocess.TimeoutExpired."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the fork server then kills the machines
            self.process.wait()
            raise


def start(folder: Path, scenario: Path | None = None, port: int = 0) -> RunningCloud:
    """Start a local cloud as a separate process. Raises ControlError with its error output."""
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
        output = log.read_text("utf-8", "replace").strip().splitlines()[-5:]
        raise ControlError("the local cloud did not start: " + "\n".join(output))
    url, token = json.loads(line)["url"], token_file(folder)
    return RunningCloud(url, token, process, Control(url, token))
