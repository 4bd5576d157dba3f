"""Commands for many jobs need their number, or --yes."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest

from spotd.domain.job import Desired
from spotd.domain.node import EffectKind
from spotd.store.outputs import OUTPUTS_SKIPPED
from tests.spotd.api.rig import SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

JOBS = ("one", "two", "three")


@pytest.fixture(autouse=True)
def jobs(rig: Rig) -> None:
    for name in JOBS:
        rig.submit(name)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A pseudo terminal as stdin: bytes written to the result are typed."""
    controller, terminal_fd = pty.openpty()
    with os.fdopen(terminal_fd) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield controller
    os.close(controller)


def desired_states(rig: Rig) -> list[Desired]:
    jobs = [rig.store.jobs.find(name) for name in JOBS]
    return [job.desired for job in jobs if job is not None]


RUN, CANCEL, PAUSE = Desired.RUN, Desired.CANCEL, Desired.PAUSE


@pytest.mark.parametrize("order", [["cancel", *JOBS], ["cancel", "--all"], ["pause", "--all"]])
def test_without_a_terminal_several_jobs_are_refused(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    assert spotctl(rig, *order) == 2
    assert desired_states(rig) == [RUN] * 3
    assert f"{order[0]} of 3 jobs was not confirmed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "now"),
    [
        (["cancel", *JOBS, "--yes"], CANCEL),
        (["cancel", "--all", "-y"], CANCEL),
        (["pause", "--all", "--yes"], PAUSE),
    ],
)
def test_yes_option_confirms(rig: Rig, spotctl: Spotctl, order: list[str], now: Desired) -> None:
    assert spotctl(rig, *order) == 0
    assert desired_states(rig) == [now] * 3


def test_the_number_must_be_typed(
    rig: Rig, spotctl: Spotctl, terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (b"y\n", b"2\n", b"\n"):
        os.write(terminal, answer)
        assert spotctl(rig, "cancel", "--all") == 2
    assert desired_states(rig) == [RUN] * 3
    stderr = capsys.readouterr().err
    assert "cancel 3 jobs: " in stderr
    assert all(name in stderr for name in JOBS)
    os.write(terminal, b"3\n")
    assert spotctl(rig, "cancel", "--all") == 0
    assert desired_states(rig) == [CANCEL] * 3


def test_a_cancel_may_leave_its_files(rig: Rig, spotctl: Spotctl) -> None:
    assert spotctl(rig, "cancel", "one", "--no-outputs") == 0
    assert spotctl(rig, "cancel", "two") == 0
    ids = [job.id for name in ("one", "two") if (job := rig.store.jobs.find(name))]
    skipped = [rig.store.events.of_kinds(job_id, [OUTPUTS_SKIPPED]) for job_id in ids]
    assert [len(rows) for rows in skipped] == [1, 0]
    assert spotctl(rig, "cancel", "two", "three", "--no-outputs") == 2, "several are confirmed"


def test_a_machine_that_stops_already_may_store_its_files(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    job = rig.store.jobs.find("one")
    assert job is not None
    node = rig.launch(job.id, SPOT, 60)
    rig.store.nodes.record_acknowledged(node.id, EffectKind.DRAIN, rig.ago(10))
    assert spotctl(rig, "cancel", "one", "--no-outputs") == 0
    assert "it may store its files" in capsys.readouterr().err


def test_one_job_needs_no_confirmation(rig: Rig, spotctl: Spotctl) -> None:
    assert spotctl(rig, "cancel", "one", "one") == 0
    assert desired_states(rig) == [CANCEL, RUN, RUN]


@pytest.mark.parametrize("order", [["cancel"], ["cancel", "one", "--all"], ["pause"]])
def test_names_and_all_exclude_each_other(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    assert spotctl(rig, *order) == 2
    assert desired_states(rig) == [RUN] * 3
    assert "--all" in capsys.readouterr().err
