"""Orders for many jobs are given with their number, or with --yes, or not at all."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest

from spotd.domain.job import Desired
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

JOBS = ("one", "two", "three")


@pytest.fixture(autouse=True)
def jobs(rig: Rig) -> None:
    for name in JOBS:
        rig.submit(name)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A person at the keyboard: what is written here is typed."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


def wanted(rig: Rig) -> list[Desired]:
    found = [rig.store.find_job(name) for name in JOBS]
    return [job.desired for job in found if job is not None]


RUN, CANCEL, PAUSE = Desired.RUN, Desired.CANCEL, Desired.PAUSE


@pytest.mark.parametrize("order", [["cancel", *JOBS], ["cancel", "--all"], ["pause", "--all"]])
def test_where_nobody_can_be_asked_it_is_refused(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    assert spotctl(rig, *order) == 2
    assert wanted(rig) == [RUN] * 3
    assert f"{order[0]} of 3 jobs was not confirmed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "now"),
    [
        (["cancel", *JOBS, "--yes"], CANCEL),
        (["cancel", "--all", "-y"], CANCEL),
        (["pause", "--all", "--yes"], PAUSE),
    ],
)
def test_it_may_be_confirmed_beforehand(
    rig: Rig, spotctl: Spotctl, order: list[str], now: Desired
) -> None:
    assert spotctl(rig, *order) == 0
    assert wanted(rig) == [now] * 3


def test_the_number_is_typed(
    rig: Rig, spotctl: Spotctl, terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (b"y\n", b"2\n", b"\n"):
        os.write(terminal, answer)
        assert spotctl(rig, "cancel", "--all") == 2
    assert wanted(rig) == [RUN] * 3
    asked = capsys.readouterr().err
    assert "cancel 3 jobs: " in asked
    assert all(name in asked for name in JOBS)
    os.write(terminal, b"3\n")
    assert spotctl(rig, "cancel", "--all") == 0
    assert wanted(rig) == [CANCEL] * 3


def test_for_one_nobody_is_asked(rig: Rig, spotctl: Spotctl) -> None:
    assert spotctl(rig, "cancel", "one", "one") == 0
    assert wanted(rig) == [CANCEL, RUN, RUN]


@pytest.mark.parametrize("order", [["cancel"], ["cancel", "one", "--all"], ["pause"]])
def test_for_whom_it_is_has_to_be_said_once(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    assert spotctl(rig, *order) == 2
    assert wanted(rig) == [RUN] * 3
    assert "--all" in capsys.readouterr().err
