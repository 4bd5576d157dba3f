"""A control box in a folder: local cloud and daemon as real processes, with fault injection.

Used by the demo, the end-to-end tests and the benchmarks.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from providers.local.access import auth_header, token_file
from providers.local.scenario import PERSONALITIES
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UnreachableError, UserError
from spotd.demo.bucket import Bucket

T = TypeVar("T")

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
COMPARE_TIMEOUT_S = 60.0


class BoxError(Exception):
    """A process of the box did not start or has died; the text has the end of its log."""


def wait_for(
    description: str, check: Callable[[], T], timeout_s: float, every_s: float = 0.05
) -> T:
    """Call `check` until it returns a true value, and return it. Raises BoxError on timeout."""
    end = time.monotonic() + timeout_s
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > end:
            raise BoxError(f"waited {timeout_s:g} s in vain for {description}")
        time.sleep(every_s)


class Box:
    """A control box with its processes, logs and state under `folder`.

    `scenario` is the local cloud's, `settings` is extra TOML for the configuration, and `python` is
    an interpreter with spotd installed. Checkpoints are stored in `bucket`, or in a folder if None.
    """

    program = "spotd"  # the daemon's module

    def __init__(
        self,
        folder: Path,
        scenario: str = "",
        settings: str = "",
        python: Path = Path(sys.executable),
        *,
        bucket: Bucket | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.python = python
        self.bucket = bucket
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._scenario = scenario
        self.cloud_options: list[str] = []  # extra options of the local cloud
        self.cloud: subprocess.Popen[bytes] | None = None
        self.daemon: subprocess.Popen[bytes] | None = None
        self.cloud_url = ""
        self.token_file = token_file(self.folder / "cloud")

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- processes

    def start(self) -> None:
        """Start the cloud, then the daemon. Raises BoxError."""
        self.start_cloud()
        self.start_daemon()

    def start_cloud(self) -> None:
        """Start the local cloud with the scenario. Raises BoxError."""
        scenario = self.folder / "scenario.toml"
        scenario.write_text(self._scenario)
        arguments = ["-m", "providers.local.server", "--dir", str(self.folder / "cloud")]
        arguments += ["--scenario", str(scenario), *self.cloud_options]
        self.cloud = self._spawn("cloud", arguments, stdout=subprocess.PIPE)
        assert self.cloud.stdout is not None  # noqa: S101 - opened as a pipe
        line = self.cloud.stdout.readline()
        if not line:
            raise BoxError(f"the local cloud did not start:\n{self.tail('cloud')}")
        self.cloud_url = str(json.loads(line)["url"])

    @property
    def config_path(self) -> Path:
        return self.folder / "config.toml"

    @property
    def socket_path(self) -> Path:
        """A short name, because the length of a Unix socket's path is limited."""
        return self.folder / "s"

    @property
    def checkpoints_url(self) -> str:
        """URL of the jobs' authority store."""
        return self.bucket.url if self.bucket else (self.folder / "checkpoints").as_uri()

    @property
    def store_options(self) -> dict[str, str]:
        """Options for opening the store."""
        return self.bucket.options if self.bucket else {}

    def compare(self, job_id: str, store: str, other_id: str) -> subprocess.CompletedProcess[str]:
        """Compare a job's newest state with that of another job in `store`, bit for bit.

        The trainer's comparison runs in a process of its own, because it needs torch.
        """
        arguments = [self.checkpoints_url, job_id, store, other_id]
        return subprocess.run(
            [str(self.python), "-m", "trainer.reference.compare", "compare", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=COMPARE_TIMEOUT_S,
            env=self.environ() | {"SPOTD_STORE_OPTIONS": json.dumps(self.store_options)},
        )

    def write_config(self) -> None:
        """Write config.toml."""
        lines = [
            f'state_dir = "{self.folder / "state"}"',
            f'socket = "{self.socket_path}"',
            "[checkpoint]",
            f'store = "{self.checkpoints_url}"',
            *self.provider_lines(),
            self._settings,
            self.bucket.settings(self.folder / "bucket-key") if self.bucket else "",
        ]
        self.config_path.write_text("\n".join(lines))

    def provider_lines(self) -> list[str]:
        """Return the configuration of one provider per personality of the local cloud."""
        lines = []
        for name in PERSONALITIES:
            lines += [f"[providers.local-{name}]", 'kind = "local"']
            lines += [f'url = "{self.cloud_url}"', f'personality = "{name}"']
            lines += [f'token_file = "{self.token_file}"']
        return lines

    def start_daemon(self) -> None:
        """Write the configuration, start the daemon, and wait until it answers. Raises BoxError."""
        self.write_config()
        self.daemon = self._spawn(
            "daemon", ["-m", self.program, "run", "--config", str(self.config_path)]
        )
        process = self.daemon

        def is_ready() -> bool:
            if process.poll() is not None:
                raise BoxError(f"the daemon ended at once:\n{self.tail('daemon')}")
            try:
                return bool(self.client.call(routes.HEALTH()))
            except UnreachableError:
                return False

        wait_for("the daemon's socket", is_ready, START_TIMEOUT_S)

    def kill_daemon(self) -> None:
        """Kill the daemon with SIGKILL, like a power cut.

        The start counter is removed, so that it does not count as a crash (see
        spotd/daemon/safe_mode.py).
        """
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
            (self.folder / "state" / "starts").unlink(missing_ok=True)
            self.daemon = None

    def stop(self) -> None:
        """Stop the daemon, then the cloud. Neither is left running."""
        for process in (self.daemon, self.cloud):
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.cloud is not None and self.cloud.stdout is not None:
            self.cloud.stdout.close()
        self.daemon = self.cloud = None

    def _spawn(
        self, name: str, arguments: list[str], stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(self.python), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                cwd=self.folder,
                env=self.environ(),
                start_new_session=True,  # the parent handles Ctrl-C
            )

    def environ(self) -> dict[str, str]:
        """Return this process's environment, with the programs of `python` first in PATH."""
        path = f"{self.python.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        return os.environ | {"PATH": path}

    def tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines of a process's log."""
        path = self.folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # --- the daemon

    @property
    def client(self) -> Client:
        """A client of the daemon that opens a connection per request."""
        return Client(self.socket_path)

    def submit(self, text: str, request_id: str) -> str:
        """Submit a job file and return the job's id. Raises UserError."""
        response = self.client.call(routes.SUBMIT_JOB(), {"yaml": text, "request_id": request_id})
        return str(response["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job, as printed by `spotctl show -o json`."""
        return self.client.call(routes.SHOW_JOB(job=job_id))

    def events(self, job_id: str, after: int = 0) -> list[dict[str, Any]]:
        """Return the job's events with ids above `after`."""
        return list(
            self.client.call(routes.READ_EVENTS(), query={"job": job_id, "after": after})["items"]
        )

    def wait_phase(self, job_id: str, phases: set[str], timeout_s: float) -> dict[str, Any]:
        """Wait until the job's phase is one of `phases`, and return the job. Raises BoxError.

        Errors of the daemon are ignored until the timeout.
        """

        def reached() -> dict[str, Any] | None:
            try:
                job = self.job(job_id)
            except UserError:
                return None
            return job if job["phase"] in phases else None

        job_in_phase = wait_for(f"{job_id} to be {' or '.join(sorted(phases))}", reached, timeout_s)
        return job_in_phase or {}

    # --- the cloud

    def call_cloud(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a GET, or a POST with a JSON body, to the local cloud. Raises BoxError on errors."""
        parts = urlsplit(self.cloud_url)
        with contextlib.closing(
            http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        ) as connection:
            data = None if body is None else json.dumps(body).encode()
            method = "GET" if data is None else "POST"
            connection.request(method, path, body=data, headers=auth_header(self.token_file))
            response = connection.getresponse()
            text = response.read()
        if response.status >= 300:
            raise BoxError(f"{path}: HTTP {response.status}: {text.decode(errors='replace')}")
        return json.loads(text)

    def preempt(self, instance_id: str, **options: Any) -> Any:
        """Preempt a machine. `options` are kind, mode, notice_s, thaw_after_s and zombie_s."""
        return self.call_cloud("/control/preempt", {"instance": instance_id} | options)

    def meter(self) -> list[dict[str, Any]]:
        """Return the cloud's billing record of every machine: token, launch and end times."""
        return list(self.call_cloud("/control/meter")["meter"])


@contextlib.contextmanager
def running_box(*arguments: Any, **options: Any) -> Iterator[Box]:
    """Yield a started box, which is stopped at the end whatever happens."""
    with Box(*arguments, **options) as box:
        box.start()
        yield box
