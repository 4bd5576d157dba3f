"""A daemon that crashes again and again only observes and ends machines, until all is quiet."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotd.api_routes import routes
from spotd.config.file import SafeModeSettings
from spotd.daemon.safe_mode import FILE, SafeMode
from spotd.demo.box import Box, wait_for
from tests.fixtures.forked import ForkedBox
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import HandClock

SETTINGS = SafeModeSettings(after_crashes=3, within_s=600.0, quiet_s=300.0)


def start(folder: Path, clock: HandClock) -> SafeMode:
    """A daemon's life that has just begun; it crashes unless it is told to end well."""
    safe = SafeMode(folder, clock, SETTINGS)
    safe.begin()
    return safe


def crash(folder: Path, clock: HandClock, times: int, every_s: float = 10.0) -> None:
    for _ in range(times):
        start(folder, clock)
        clock.sleep(every_s)


def test_so_many_crashes_within_minutes_and_no_fewer(tmp_path: Path) -> None:
    clock = HandClock()
    crash(tmp_path, clock, 2)
    assert start(tmp_path, clock).why() == "", "the third life after two crashes"
    clock.sleep(1.0)
    safe = start(tmp_path, clock)
    assert "crashed 3 times within 10 min" in safe.why()
    assert "5 min more, or until `spotctl safe-mode leave`" in safe.why()
    assert safe.until_us() == clock.now_us() + 300_000_000


def test_crashes_long_ago_do_not_count(tmp_path: Path) -> None:
    clock = HandClock()
    crash(tmp_path, clock, 9, every_s=250.0)
    assert start(tmp_path, clock).why() == ""


def test_a_start_that_ends_as_it_should_does_not_count(tmp_path: Path) -> None:
    clock = HandClock()
    for _ in range(9):
        start(tmp_path, clock).end_well()
        clock.sleep(1.0)
    crash(tmp_path, clock, 2)
    start(tmp_path, clock).end_well()
    assert start(tmp_path, clock).why() == ""


def test_it_ends_by_itself_when_all_was_quiet(tmp_path: Path) -> None:
    clock = HandClock()
    crash(tmp_path, clock, 3)
    safe = start(tmp_path, clock)
    clock.sleep(SETTINGS.quiet_s - 1)
    assert safe.why()
    clock.sleep(1.0)
    assert (safe.why(), safe.until_us()) == ("", 0)


def test_a_person_may_end_it_and_is_overruled_by_another_crash(tmp_path: Path) -> None:
    clock = HandClock()
    crash(tmp_path, clock, 3)
    safe = start(tmp_path, clock)
    safe.leave()
    assert (safe.why(), safe.until_us()) == ("", 0)
    clock.sleep(1.0)
    assert "crashed 4 times" in start(tmp_path, clock).why()


@pytest.mark.parametrize("text", ["", "{", "{}", '["x", null, 1.5, true]', "[" * 100_000, "[9]"])
def test_a_record_that_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    clock = HandClock()
    assert start(tmp_path, clock).why() == ""
    assert json.loads((tmp_path / FILE).read_text()) == [clock.now_us()]


def test_a_folder_that_takes_nothing_keeps_nobody_from_work(tmp_path: Path) -> None:
    safe = SafeMode(tmp_path / "missing", HandClock(), SETTINGS)
    assert safe.begin() == ""
    safe.end_well()


# --- the daemon as a process


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    settings = (
        "[safe_mode]\nafter_crashes = 2\n[timing]\noffers_every_s = 0.5\nsurvey_every_s = 1.0"
    )
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        ForkedBox(Path(name), settings=settings) as made,
    ):
        made.start_cloud()
        yield made


def job(name: str, folder: Path) -> str:
    return f"""\
name: {name}
resources:
  accelerators: H100:8
run: |
  touch {folder}/{name}
  while :; do sleep 0.05; done
spotd:
  checkpoint: {{engine: none}}
"""


def crash_daemon(box: Box) -> None:
    """Not through the box: that calls it no crash."""
    assert box.daemon is not None
    box.daemon.kill()
    box.daemon.wait()


def machines(box: Box, job_id: str) -> list[dict[str, Any]]:
    return [row for row in box.meter() if f"-{job_id}-" in row["token"]]


@pytest.mark.xdist_group("daemon")
def test_after_a_crash_loop_it_observes_and_ends_and_makes_nothing(box: Box) -> None:
    box.start_daemon()
    first = box.submit(job("first", box.folder), "r1")
    box.wait_phase(first, {"running"}, LIMIT_S)
    for _ in range(2):
        crash_daemon(box)
        box.start_daemon()
    assert box.client.call(routes.SHOW_SAFE_MODE())["active"]
    checks = {check["name"]: check for check in box.client.call(routes.DOCTOR())["checks"]}
    assert "crashed 2 times" in checks["safe mode"]["text"]

    def told() -> list[str]:
        rows = box.client.call(routes.READ_EVENTS())["items"]
        return [str(row) for row in rows if row["kind"] == "safe_mode"]

    found = wait_for("a person to be told", told, LIMIT_S)
    assert len(found) == 1, found
    text = found[0]
    assert "crashed 2 times" in text

    second = box.submit(job("second", box.folder), "r2")

    def decided() -> bool:
        return "safe mode" in json.dumps(box.client.call(routes.EXPLAIN_JOB(job=second)))

    wait_for("the second job to be decided about", decided, LIMIT_S)
    assert box.job(first)["phase"] == "running", "what trains, trains on"
    box.client.call(routes.CANCEL_JOB(job=first))
    wait_for("its machine's end", lambda: machines(box, first)[0]["ended_at_us"], LIMIT_S)
    assert not machines(box, second)

    assert "crashed 2 times" in box.client.call(routes.LEAVE_SAFE_MODE())["reason"]
    box.wait_phase(second, {"running"}, LIMIT_S)
    assert len(machines(box, second)) == 1
    box.client.call(routes.CANCEL_JOB(job=second))
    box.wait_phase(second, {"cancelled"}, LIMIT_S)
