"""A control box in a folder: local cloud and daemon as real processes, and ways to hurt them.

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

from providers.local.access import credentials, token_file
from spotd.api_client.client import Client
from spotd.base.errors import UnreachableError, UserError
from spotd.demo.bucket import Bucket

T = TypeVar("T")

PERSONALITIES = ("aws", "gcp", "azure")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
COMPARE_TIMEOUT_S = 60.0


class BoxError(Exception):
    """A process of the box did not come up, or died; the text has the end of its log."""


def wait_for(what: str, ask: Callable[[], T], timeout_s: float, every_s: float = 0.05) -> T:
    """The first true answer of `ask`. Raises BoxError when there is none in time."""
    end = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > end:
            raise BoxError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(every_s)


class Box:
    """Processes, logs and state under `folder`. `settings` is extra TOML for the configuration;
    `python` the interpreter, with spotd installed, that everything runs with (ours, unless given).
    Checkpoints are kept in `bucket`, else in a folder.
    """

    program = "spotd"  # the module that is the daemon

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
        self.cloud_options: list[str] = []  # more of the local cloud's command line
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
        """The cloud, then the daemon. Raises BoxError."""
        self.start_cloud()
        self.start_daemon()

    def start_cloud(self) -> None:
        """The local cloud, with the scenario."""
        scenario = self.folder / "scenario.toml"
        scenario.write_text(self._scenario)
        arguments = ["-m", "providers.local.server", "--dir", str(self.folder / "cloud")]
        arguments += ["--scenario", str(scenario), *self.cloud_options]
        self.cloud = self._spawn("cloud", arguments, stdout=subprocess.PIPE)
        assert self.cloud.stdout is not None  # noqa: S101 - we asked for a pipe
        line = self.cloud.stdout.readline()
        if not line:
            raise BoxError(f"the local cloud did not start:\n{self.tail('cloud')}")
        self.cloud_url = str(json.loads(line)["url"])

    @property
    def config_path(self) -> Path:
        return self.folder / "config.toml"

    @property
    def socket_path(self) -> Path:
        """Short enough for a unix socket wherever the folder is."""
        return self.folder / "s"

    @property
    def checkpoints_url(self) -> str:
        """The jobs' authority store."""
        return self.bucket.url if self.bucket else (self.folder / "checkpoints").as_uri()

    @property
    def store_options(self) -> dict[str, str]:
        """What the store is opened with."""
        return self.bucket.options if self.bucket else {}

    def compare(self, job_id: str, store: str, other_id: str) -> subprocess.CompletedProcess[str]:
        """The trainer's own comparison of a job's newest state with that of another in `store`, bit
        for bit, in a process of its own: torch is not for the control box."""
        both = [self.checkpoints_url, job_id, store, other_id]
        return subprocess.run(
            [str(self.python), "-m", "trainer.reference.compare", "compare", *both],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=COMPARE_TIMEOUT_S,
            env=self.environ() | {"SPOTD_STORE_OPTIONS": json.dumps(self.store_options)},
        )

    def write_config(self) -> None:
        """config.toml with its providers."""
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
        """One provider per personality of the local cloud."""
        lines = []
        for name in PERSONALITIES:
            lines += [f"[providers.local-{name}]", 'kind = "local"']
            lines += [f'url = "{self.cloud_url}"', f'personality = "{name}"']
            lines += [f'token_file = "{self.token_file}"']
        return lines

    def start_daemon(self) -> None:
        """The daemon; back when its socket answers."""
        self.write_config()
        self.daemon = self._spawn(
            "daemon", ["-m", self.program, "run", "--config", str(self.config_path)]
        )
        process = self.daemon

        def answers() -> bool:
            if process.poll() is not None:
                raise BoxError(f"the daemon ended at once:\n{self.tail('daemon')}")
            try:
                return bool(self.client.get("/v1/health"))
            except UnreachableError:
                return False

        wait_for("the daemon's socket", answers, START_TIMEOUT_S)

    def kill_daemon(self) -> None:
        """kill -9, as a power cut would. On purpose, it is no crash: see
        spotd/daemon/safe_mode.py."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
            (self.folder / "state" / "starts").unlink(missing_ok=True)
            self.daemon = None

    def stop(self) -> None:
        """End both, the daemon first; nothing is left behind."""
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
                start_new_session=True,  # Ctrl-C in the terminal is ours to pass on
            )

    def environ(self) -> dict[str, str]:
        """Ours, with the programs of this Python first in PATH."""
        path = f"{self.python.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        return os.environ | {"PATH": path}

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a process's log."""
        path = self.folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # --- the daemon

    @property
    def client(self) -> Client:
        """Requests to the daemon, each on a connection of its own."""
        return Client(self.socket_path)

    def submit(self, text: str, request_id: str) -> str:
        """Submit a job file; its id. Raises UserError."""
        answer = self.client.post("/v1/jobs", {"yaml": text, "request_id": request_id})
        return str(answer["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as `spotctl show -o json` has it."""
        return self.client.get(f"/v1/jobs/{job_id}")

    def events(self, job_id: str, after: int = 0) -> list[dict[str, Any]]:
        """Events of a job after a number."""
        return list(self.client.get("/v1/events", job=job_id, after=after)["items"])

    def wait_phase(self, job_id: str, phases: set[str], timeout_s: float) -> dict[str, Any]:
        """The job once its phase is one of `phases`; a daemon that is away is waited for."""

        def ask() -> dict[str, Any] | None:
            try:
                job = self.job(job_id)
            except UserError:
                return None
            return job if job["phase"] in phases else None

        found = wait_for(f"{job_id} to be {' or '.join(sorted(phases))}", ask, timeout_s)
        return found or {}

    # --- the cloud

    def ask_cloud(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """GET, or POST a JSON body, to the local cloud. Raises BoxError for a refusal."""
        parts = urlsplit(self.cloud_url)
        with contextlib.closing(
            http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        ) as connection:
            data = None if body is None else json.dumps(body).encode()
            method = "GET" if data is None else "POST"
            connection.request(method, path, body=data, headers=credentials(self.token_file))
            response = connection.getresponse()
            text = response.read()
        if response.status >= 300:
            raise BoxError(f"{path}: HTTP {response.status}: {text.decode(errors='replace')}")
        return json.loads(text)

    def preempt(self, instance_id: str, **how: Any) -> Any:
        """Take a machine away as `how` says (kind, mode, notice_s, thaw_after_s, zombie_s)."""
        return self.ask_cloud("/control/preempt", {"instance": instance_id} | how)

    def meter(self) -> list[dict[str, Any]]:
        """The cloud's own record of every machine: token, launched and ended times."""
        return list(self.ask_cloud("/control/meter")["meter"])


@contextlib.contextmanager
def running_box(*arguments: Any, **more: Any) -> Iterator[Box]:
    """A started box, stopped at the end whatever happens."""
    with Box(*arguments, **more) as box:
        box.start()
        yield box
