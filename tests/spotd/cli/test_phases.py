"""`spotctl run` of a file with several jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotd.money.budget import Budget
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

EXAMPLE = Path(__file__).parents[3] / "examples" / "phases.yaml"


def test_each_job_starts_after_the_one_before(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, "run", str(EXAMPLE), "-d", "-o", "json") == 0
    captured = capsys.readouterr()
    jobs = json.loads(captured.out)["items"]
    assert [job["name"] for job in jobs] == ["search", "train", "validate"]
    assert captured.err.count("submitted") == 3
    stored = [rig.store.jobs.find(job["id"]) for job in jobs]
    assert [job.spec.queue.after for job in stored if job] == ["", jobs[0]["id"], jobs[1]["id"]]
    kinds = [
        [c.value for c in job.spec.resources.alternatives[0].capacity_types]
        for job in stored
        if job
    ]
    assert kinds == [["spot"], ["spot", "on_demand"], ["on_demand"]]
    assert rig.store.jobs.spec_yaml(jobs[1]["id"]).startswith("name: train\n")


def test_repeated_request_submits_nothing(rig: Rig, spotctl: Spotctl) -> None:
    for _ in range(2):
        assert spotctl(rig, "run", str(EXAMPLE), "-d", "--request-id", "mine") == 0
    assert len(rig.store.jobs.rows()) == 3


def test_unnamed_jobs_are_named_after_the_file(rig: Rig, spotctl: Spotctl, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("run: a\n---\nrun: b\n")
    assert spotctl(rig, "run", str(tmp_path / "two.yaml"), "-d") == 0
    assert {job.name for job in rig.store.jobs.rows()} == {"two-1", "two-2"}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("run: a\n---\nrun: b\n", ("-n", "x"), "--name and --continue apply to one job"),
        ("name: a\nrun: a\n---\nname: a\nrun: b\n", (), "have the same name: a, a"),
        ("run: a\n---\nnodes: 2\nrun: b\n", (), "line 3: nodes"),
    ],
)
def test_invalid_document_is_refused_before_any_submission(
    rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    text: str, arguments: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    (tmp_path / "two.yaml").write_text(text)
    assert spotctl(rig, "run", str(tmp_path / "two.yaml"), "-d", *arguments) == 2
    assert message in capsys.readouterr().err
    assert rig.store.jobs.rows() == []


def test_refusal_names_the_jobs_submitted_before(
    rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.budgets = [Budget("lab", 25_000_000)]
    (tmp_path / "two.yaml").write_text("name: a\nrun: a\n---\nname: b\nrun: b\n")
    assert spotctl(rig, "run", str(tmp_path / "two.yaml"), "-d") == 4
    error = capsys.readouterr().err
    assert "b was refused; submitted before it: spotctl cancel a" in error
    assert [job.name for job in rig.store.jobs.rows()] == ["a"]
