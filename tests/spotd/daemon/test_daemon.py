"""The whole daemon as a process: signals, restarts, systemd's datagrams, clouds and disks gone bad.

The training programs are shell scripts on real local machines: what matters here is that they live.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from spotd.api_routes import routes
from spotd.base.clock import SystemClock
from spotd.base.errors import UserError
from spotd.daemon.daemon import WATCHDOG_EVERY_S, Daemon
from spotd.demo.box import Box, BoxError
from spotd.domain.units import S
from spotd.store.errors import LostLeaseError
from spotd.store.sql_store import open_store
from tests.fixtures import slack
from tests.fixtures.forked import ForkedBox
from tests.fixtures.manager import Manager
from tests.fixtures.processes import alive
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.spotd.daemon import patient

T = TypeVar("T")

pytestmark = pytest.mark.xdist_group("daemon")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Box]:
    """One local cloud for all daemons; each has a deployment of its own."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name, Box(Path(name)) as box:
        box.start_cloud()
        yield box


@pytest.fixture
def box(cloud: Box, folder: Path) -> Iterator[ForkedBox]:
    """A daemon's box at that cloud, nothing started."""
    with ForkedBox(folder, settings="[timing]\noffers_every_s = 0.5\nsurvey_every_s = 1.0") as made:
        made.cloud_url, made.token_file = cloud.cloud_url, cloud.token_file
        yield made


def script(folder: Path) -> str:
    """A job that runs until it is told to finish; it leaves its process id."""
    return f"""\
name: patient
resources:
  accelerators: H100:8
run: |
  echo $$ > {folder}/pid
  while [ ! -e {folder}/finish ]; do sleep 0.05; done
spotd:
  checkpoint: {{engine: none}}
"""


def training(box: Box, job_id: str) -> int:
    """The process id of the program, once the job runs."""
    box.wait_phase(job_id, {"running"}, LIMIT_S)
    return int(wait_until("the program", lambda: read(box.folder / "pid")))


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def finish(box: Box, job_id: str) -> dict[str, Any]:
    """Let the program end; the job when it has succeeded and its machine is gone."""
    (box.folder / "finish").touch()
    box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
    wait_until("the machine to be gone", lambda: not open_machines(box, job_id))
    return box.job(job_id)


def machines(box: Box, job_id: str) -> list[dict[str, Any]]:
    """The job's rows on the cloud's own meter."""
    return [row for row in box.meter() if f"-{job_id}-" in row["token"]]


def open_machines(box: Box, job_id: str) -> list[dict[str, Any]]:
    return [row for row in machines(box, job_id) if not row["ended_at_us"]]


def ended_cleanly(box: Box, number: int = signal.SIGTERM) -> None:
    """Signal the daemon, which ends and leaves nothing."""
    assert box.daemon is not None
    box.daemon.send_signal(number)
    assert box.daemon.wait(LIMIT_S) == 0, box.tail("daemon")
    assert not box.socket_path.exists()
    assert "Traceback" not in box.tail("daemon", 1000)


@pytest.fixture
def manager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    listening = Manager(folder / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    yield listening
    listening.close()


# What fails right after the start, with every thread running.
BROKEN = """
import sys, time
import spotd.daemon.daemon
from pathlib import Path
from spotd.config.load import load_config

def fail(word):
    time.sleep(1.0)
    raise RuntimeError("nobody expected this")

spotd.daemon.daemon.notify = fail
sys.exit(spotd.daemon.daemon.run_daemon(load_config(Path(sys.argv[1]))))
"""


def test_the_loop_that_goes_round_looks_after_the_clock_of_the_duties() -> None:
    """Nothing in their own schedule can: that stands still when the clock is set back."""
    daemon, looked = Daemon.__new__(Daemon), []
    daemon.clock, daemon._watchdog_fed_s = SystemClock(), -WATCHDOG_EVERY_S
    daemon.tasks = SimpleNamespace(notice_clock=lambda: looked.append(1))  # type: ignore[assignment]
    daemon._update_condition_alerts = lambda: looked.append(2)  # type: ignore[method-assign]
    daemon._progressed()
    assert looked == [1, 2]


def test_a_failure_of_the_main_thread_ends_it_whole(box: Box) -> None:
    """Its other threads would go on, hold the state folder, and keep systemd from a new start."""
    box.write_config()
    command = [sys.executable, "-c", BROKEN, str(box.config_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stderr
    assert "nobody expected this" in done.stderr
    assert not box.socket_path.exists()


def test_a_daemon_comes_and_goes_and_the_training_stays(box: Box, manager: Manager) -> None:
    """SIGTERM, then kill -9: neither touches the program, and the next daemon goes on with it."""
    box.start_daemon()
    wait_until("READY", lambda: manager.hears(b"READY=1"))
    wait_until("the watchdog fed", lambda: manager.hears(b"WATCHDOG=1"))
    job_id = box.submit(script(box.folder), "r1")
    program = training(box, job_id)
    ended_cleanly(box)
    assert manager.hears(b"STOPPING=1")
    assert alive(program)

    manager.said.clear()
    box.start_daemon()
    wait_until("the watchdog fed", lambda: manager.hears(b"WATCHDOG=1"))
    assert box.job(job_id)["phase"] == "running"
    box.kill_daemon()
    assert alive(program)
    left = box.folder / "state" / "spool" / "upload-cut-off"
    left.write_bytes(b"half")

    box.start_daemon()
    assert not left.exists(), "it would stay for ever"
    job = finish(box, job_id)
    assert job["generation"] == 1
    assert len(machines(box, job_id)) == 1
    assert "Traceback" not in box.tail("daemon", 1000)


def test_what_trained_while_the_daemon_was_away_for_long_trains_on(
    cloud: Box, folder: Path
) -> None:
    """For longer than the silence after which a node is given up."""
    timing = "survey_every_s = 1.0\nsuspect_after_s = 8\nlost_after_s = 12"
    with ForkedBox(folder, settings=f"[timing]\noffers_every_s = 0.5\n{timing}") as box:
        box.cloud_url, box.token_file = cloud.cloud_url, cloud.token_file
        box.start_daemon()
        job_id = box.submit(script(box.folder), "r1")
        program = training(box, job_id)
        box.kill_daemon()
        end_s = time.monotonic() + 13.0
        wait_until("it to be away for long", lambda: time.monotonic() > end_s)
        back_at = datetime.now(UTC)
        box.start_daemon()

        def heard() -> bool:
            (node,) = box.job(job_id)["nodes"]
            return datetime.fromisoformat(node["heard_at"]) > back_at

        wait_until("the node to be heard", heard)
        assert alive(program)
        assert finish(box, job_id)["generation"] == 1
        assert len(machines(box, job_id)) == 1


def test_what_a_daemon_whose_clock_was_ahead_held_binds_nobody(box: Box) -> None:
    """It died, and the clock was set right: its leases do not run until their hour has come."""
    (box.folder / "state").mkdir(mode=0o700)
    path = box.folder / "state" / "spotd.db"
    ahead_us = time.time_ns() // 1000 + 3600 * S
    store = open_store(
        f"sqlite:///{path}", now=lambda: ahead_us, notify=int, deployment_factory=lambda: "d0"
    )
    store.leases.take("alerts", "the dead", lambda: ahead_us, S)
    box.start_daemon()
    mine = store.fenced("alerts", 1)

    def overtaken() -> bool:
        try:
            mine.jobs.mark_due([])
        except LostLeaseError:
            return True
        return False

    wait_until("its lease to be over", overtaken)
    store.close()
    told = box.tail("daemon", 1000)
    assert re.search(r'clock is behind the records.*"seconds": 3[56]\d\d', told), told


def test_a_database_without_its_master_key_is_refused(box: Box) -> None:
    """With a fresh key every job's keys would fail to open, and healthy nodes be given up."""
    box.start_daemon()
    ended_cleanly(box)
    key = box.folder / "state" / "spotd-key"
    kept = key.rename(box.folder / "backup")
    with pytest.raises(BoxError, match="master key of the database is missing"):
        box.start_daemon()
    assert not key.exists()
    assert "Traceback" not in box.tail("daemon", 1000)
    kept.rename(key)
    box.start_daemon()
    ended_cleanly(box)


def test_with_every_cloud_down_it_starts_and_goes_on_when_they_come_back(folder: Path) -> None:
    with ForkedBox(folder, settings="[timing]\noffers_every_s = 0.5") as box:
        box.start_cloud()
        assert box.cloud is not None
        box.cloud.kill()
        box.cloud.communicate()
        box.start_daemon()
        job_id = box.submit(script(folder), "r1")
        assert box.job(job_id)["phase"] == "waiting"
        assert "no provider offers" in box.client.call(routes.EXPLAIN_JOB(job=job_id))["reason"]
        port = box.cloud_url.rsplit(":", 1)[1]
        (folder / "cloud2").mkdir()
        shutil.copy(box.token_file, folder / "cloud2")  # with the same door and the same key
        arguments = ["--dir", str(folder / "cloud2"), "--port", port]
        box.cloud = box._spawn(
            "cloud", ["-m", "providers.local.server", *arguments], stdout=subprocess.DEVNULL
        )
        training(box, job_id)
        finish(box, job_id)
        ended_cleanly(box, signal.SIGINT)


def test_under_nohup_it_outlives_its_terminal(box: ForkedBox) -> None:
    box.forking = False
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which a child inherits
    try:
        box.start_daemon()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert box.daemon is not None
    box.daemon.send_signal(signal.SIGHUP)
    ended_cleanly(box)
    assert "SIGHUP" not in box.tail("daemon", 1000)  # what ended it is told


def test_when_its_terminal_is_closed_it_ends(box: Box) -> None:
    """Elsewhere the same signal has the configuration read anew (test_reload.py)."""
    box.write_config()
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "spotd", "run", "-c", str(box.config_path)]
    with (box.folder / "daemon.log").open("ab") as log:
        box.daemon = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=its, stdout=log, stderr=log
        )
    os.close(its)
    wait_until("it to be ready", lambda: "ready" in box.tail("daemon", 1000))
    box.config_path.write_text(box.config_path.read_text() + "\n[budgets.lab]\nusd_per_month = 9\n")
    box.daemon.send_signal(signal.SIGHUP)  # its terminal is there: somebody wants a reload
    wait_until("the reload", lambda: "read again: budgets.lab" in box.tail("daemon", 1000))
    assert box.daemon.poll() is None
    os.close(ours)
    assert box.daemon.wait(LIMIT_S) == 0, box.tail("daemon")
    assert "SIGHUP" in box.tail("daemon", 1000)


def test_a_cloud_that_accepts_and_never_answers_delays_neither_start_nor_end(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls in flight are cut off then: they are due again, as after a crash."""
    with socket.socket() as tarpit:
        tarpit.bind(("127.0.0.1", 0))
        tarpit.listen(64)
        box.cloud_url = f"http://127.0.0.1:{tarpit.getsockname()[1]}"
        box.program = patient.__name__
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        box.start_daemon()
        wait_until("READY", lambda: "ready" in box.tail("daemon", 1000))
        ended_cleanly(box)
    assert "maximum number of running instances" not in box.tail("daemon", 1000)


# --- a disk that is full


@contextlib.contextmanager
def small_disk(box: Box, kind: str) -> Iterator[Callable[[], Callable[[], object]]]:
    """Yields what fills the disk under the state folder; calling what that returns frees it again.
    A file system of its own where we may mount one, else a limit on the size of files."""
    state = box.folder / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", str(state)]
    mounted = kind == "tmpfs" and not subprocess.run(mount, check=False).returncode

    def fill_disk() -> Callable[[], object]:
        filler = state / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert shutil.disk_usage(state).free == 0
        return filler.unlink

    def forbid_growth() -> Callable[[], object]:
        assert box.daemon is not None
        limit = partial(resource.prlimit, box.daemon.pid, resource.RLIMIT_FSIZE)
        limit((4096, resource.RLIM_INFINITY))
        return partial(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    try:
        yield fill_disk if mounted else forbid_growth
    finally:
        box.stop()
        if mounted:
            subprocess.run(["umount", "-l", str(state)], check=True)


def said(chat: slack.Slack) -> str:
    return " ".join(message["text"] for message in chat.messages)


@pytest.mark.parametrize("kind", ["limit", pytest.param("tmpfs", marks=pytest.mark.root)])
def test_a_full_disk_under_the_database_loses_nothing(box: Box, kind: str) -> None:
    """Nothing is decided while nothing can be written, and a person is told; the training goes on,
    and then so do we."""
    with small_disk(box, kind) as fill, slack.serving() as chat:
        (box.folder / "url").write_text(chat.url)
        box._settings += f"""
lease_s = 8
[alerts.routes.team]
kind = "slack"
url_file = "{box.folder / "url"}"
allow_hosts = ["{chat.host}"]"""
        box.start_daemon()
        job_id = box.submit(script(box.folder), "r1")
        program = training(box, job_id)
        free = fill()
        (box.folder / "finish").touch()
        wait_until("the program's end", lambda: not alive(program))
        with pytest.raises(UserError, match="disk"):
            box.submit(script(box.folder).replace("patient", "other"), "r2")
        assert box.job(job_id)["phase"] == "running", "it can still be asked"
        wait_until("a person to be told", lambda: "accepted no writes" in said(chat))
        assert "disk" in said(chat)
        assert box.daemon is not None
        assert box.daemon.poll() is None
        free()
        job = finish(box, job_id)
        assert (job["generation"], job["failures"]) == (1, 0)
        assert len(machines(box, job_id)) == 1
        assert [
            item["name"] for item in box.client.call(routes.LIST_JOBS(), query={"all": 1})["items"]
        ] == ["patient"]
        wait_until("its end to be told", lambda: "accepts writes again after" in said(chat))
