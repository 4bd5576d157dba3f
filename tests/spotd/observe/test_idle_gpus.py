"""The duty of idle GPUs: who is told of, and who saves and is paused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.domain.events import Event, Severity
from spotd.domain.health import USAGE
from spotd.domain.job import Desired
from spotd.money.idle import IdlePolicy
from spotd.observe.idle_gpus import IdleGpuCheck
from tests.spotd.api.rig import SPOT, Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def trains(rig: Rig, gpu: float, windows: int = 11, **waits: float) -> str:
    """A job whose machine, at $19.93 an hour, said each five minutes how busy its GPUs are."""
    job_id = rig.submit("lazy", ago_s=7200)
    node = rig.launch(job_id, SPOT, ago_s=7000)
    rig.train(node, ago_s=6900, until_s=60, first=0, last=9)
    for number in range(windows):
        event = Event(USAGE, "", node.id, data={"window_s": 300.0, "gpu": gpu, **waits})
        rig.store.events.add(job_id, event, rig.ago(3500 - 300 * number))
    return job_id


def judged(rig: Rig, job_id: str, does: str, *, dry_run: bool = False) -> tuple[list[str], Desired]:
    for _ in range(2):  # told once a day
        IdleGpuCheck(lambda: IdlePolicy(does, dry_run=dry_run), rig.clock).look(rig.store)
    job = rig.store.jobs.find(job_id)
    assert job is not None
    rows = rig.store.events.of_kinds(job_id, ["idle_gpus"])
    assert all(row.event.alert for row in rows)
    return [row.event.text for row in rows], job.desired


@pytest.mark.req("BUD-05")
@pytest.mark.parametrize(
    ("does", "dry_run", "desired", "ends"),
    [
        ("warn", False, Desired.RUN, "`spotctl why lazy` shows what it waits for"),
        ("pause", True, Desired.RUN, "with dry_run = false in [policies] it would save"),
        ("pause", False, Desired.PAUSE, "continue it with `spotctl resume lazy`"),
    ],
)
def test_a_job_whose_gpus_do_nothing(
    rig: Rig, does: str, dry_run: bool, desired: Desired, ends: str
) -> None:
    job_id = trains(rig, 0.04)
    [text], now = judged(rig, job_id, does, dry_run=dry_run)
    assert now is desired
    # 11 windows: 0.96 * 55/60 h * $19.93
    assert "busy 4% of the last 60 min: $17.54 for GPUs that did nothing, and $19.13 more" in text
    assert ends in text


@pytest.mark.parametrize(
    ("gpu", "windows", "does"),
    [(0.5, 11, "pause"), (0.04, 5, "pause"), (0.04, 11, "allow")],
    ids=["it works", "it has just begun", "nobody minds"],
)
def test_who_is_left_alone(rig: Rig, gpu: float, windows: int, does: str) -> None:
    assert judged(rig, trains(rig, gpu, windows), does) == ([], Desired.RUN)


def test_who_is_paused_already_is_not_told(rig: Rig) -> None:
    job_id = trains(rig, 0.0)
    rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.clock.now_us())
    assert judged(rig, job_id, "pause") == ([], Desired.PAUSE)


@pytest.mark.req("HLT-11")
@pytest.mark.parametrize(
    ("waits", "cause"),
    [
        ({"data_s": 150.0, "save_s": 6.0}, "it waits for data: use more loader workers"),
        ({"data_s": 6.0, "save_s": 150.0}, "it waits for checkpoints: use a longer interval"),
        ({"data_s": 6.0, "save_s": 6.0}, "neither data nor checkpoints: communication"),
        ({"save_s": 6.0}, "not checkpoints; how long it waits for data is not measured"),
        ({"save_s": 150.0}, "it waits for checkpoints: use a longer interval"),
        ({}, "not known: the program reports neither"),
    ],
)
def test_below_70_percent_of_15_minutes_is_told_with_its_likely_cause(
    rig: Rig, waits: dict[str, float], cause: str
) -> None:
    job_id = trains(rig, 0.5, 12, **waits)
    for _ in range(2):
        IdleGpuCheck(IdlePolicy, rig.clock).look(rig.store)
    [row] = rig.store.events.of_kinds(job_id, ["gpus_low"])  # once a day
    assert row.event.alert
    assert row.event.severity is Severity.WARNING
    assert "busy 50% of the last 15 min, below 70%: $9.96 per hour" in row.event.text
    assert f"likely cause: {cause}" in row.event.text


def low(rig: Rig, job_id: str, does: str = "warn") -> int:
    IdleGpuCheck(lambda: IdlePolicy(does), rig.clock).look(rig.store)
    return len(rig.store.events.of_kinds(job_id, ["gpus_low"]))


@pytest.mark.req("HLT-11")
def test_it_is_the_last_15_minutes_that_count(rig: Rig) -> None:
    """Busy before and starved since is told; starved before and busy since is not."""
    job_id = trains(rig, 0.9, 12)
    assert low(rig, job_id) == 0
    node = rig.store.nodes.of_job(job_id)[0]
    for ago_s in (850, 700, 550, 400):  # beside three of 0.9
        event = Event(USAGE, "", node.id, data={"window_s": 300.0, "gpu": 0.1})
        rig.store.events.add(job_id, event, rig.ago(ago_s))
    assert low(rig, job_id, "allow") == 0
    assert low(rig, job_id) == 1


def test_who_is_told_of_idle_gpus_is_not_told_that_they_are_low(rig: Rig) -> None:
    assert low(rig, trains(rig, 0.04, 12)) == 0
