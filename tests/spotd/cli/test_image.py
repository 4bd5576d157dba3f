"""`spotctl image`: bakes that are submitted, refused and removed through the real API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from providers.base import CapacityType
from spotd.base.errors import ExitCode
from spotd.domain.events import AuditOutcome
from spotd.domain.job import Job
from tests.spotd.api.images import image
from tests.spotd.api.rig import JOB_FILE, Rig
from tests.spotd.cli.conftest import Spotctl

BAKE = JOB_FILE.replace("run:", "setup: pip install torch\nrun:").replace(
    "H100:8", "H100:8\n  use_spot: true"
)
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(rig: Rig) -> Path:
    path = rig.folder / "bake.yaml"
    path.write_text(BAKE)
    return path


def only_job(rig: Rig) -> Job:
    (job,) = rig.store.jobs.rows()
    return job


def error_of(capsys: Captured) -> str:
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("try: ")
    return error


def test_bake_is_a_job_that_only_runs_setup(rig: Rig, spotctl: Spotctl, file: Path) -> None:
    assert spotctl(rig, "image", "bake", str(file), "--name", "torch", "-d") == 0
    job = only_job(rig)
    spec = job.spec
    assert (job.name, spec.program.bake, spec.program.setup, spec.program.run) == (
        "bake-torch",
        "torch",
        "pip install torch",
        "",
    )
    assert spec.checkpoint.store == "", "a bake saves nothing"
    (want,) = spec.resources.alternatives
    assert (want.cloud, want.accelerator, want.accelerator_count) == ("aws", "H100", 8)
    assert want.capacity_types == (CapacityType.SPOT,), "as the file says"
    done = [row for row in rig.store.audit.rows(0) if row.outcome is AuditOutcome.DONE]
    assert [(row.action, row.text) for row in done] == [
        ("image bake", f"name=bake-torch id={job.id}")
    ]


def test_bake_needs_neither_run_nor_a_checkpoint_store(
    rig: Rig, spotctl: Spotctl, file: Path
) -> None:
    rig.checkpoint_store = ""
    file.write_text("name: Torch\nresources:\n  instance_type: t3\nsetup: make\n")
    assert spotctl(rig, "image", "bake", str(file), "-d") == 0
    assert only_job(rig).spec.program.bake == "torch"


def test_bake_in_several_places_on_a_cheaper_machine(
    rig: Rig, spotctl: Spotctl, file: Path, capsys: Captured
) -> None:
    rig.image_makers = {"aws": "aws", "google": "gcp"}
    line = [
        "--infra",
        "aws/us-west-2",
        "--infra",
        "gcp",
        "--instance-type",
        "g5.xlarge",
        "-o",
        "json",
    ]
    assert spotctl(rig, "image", "bake", str(file), "-n", "torch", "-d", *line) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [job["name"] for job in shown["items"]] == ["bake-torch-aws-us-west-2", "bake-torch-gcp"]
    wants = [job.spec.resources.alternatives for job in rig.store.jobs.rows()]
    places = sorted((w.cloud, w.region, w.instance_type, w.accelerator) for (w,) in wants)
    assert places == [("aws", "us-west-2", "g5.xlarge", ""), ("gcp", "", "g5.xlarge", "")]


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        (("setup: pip install torch\n", ""), [], "setup: is empty: there is nothing to bake"),
        (
            ("resources:", "resources:\n  image_id: docker:a/b"),
            [],
            "resources.image_id: names a container image",
        ),
        ((), ["--name", "Torch 2"], "'Torch 2' is not a name of a baked image"),
        ((), ["--infra", "azure"], "cloud: azure cannot make machine images"),
        ((), ["--infra", "aws/a/b"], "--infra: 'aws/a/b' is not a cloud or region for an image"),
        (
            ("resources:", "resources:\n  cloud: local"),
            [],
            "none of the clouds in the file",
        ),
    ],
)
def test_invalid_bake_is_one_clear_error(
    rig: Rig,
    spotctl: Spotctl,
    file: Path,
    capsys: Captured,
    change: tuple[str, ...],
    options: list[str],
    text: str,
) -> None:
    if change:
        file.write_text(BAKE.replace(*change))
    assert spotctl(rig, "image", "bake", str(file), "-d", *options) == ExitCode.USAGE
    assert text in error_of(capsys)
    assert rig.store.jobs.rows() == []


def test_bake_without_an_image_cloud_is_an_error(
    rig: Rig, spotctl: Spotctl, file: Path, capsys: Captured
) -> None:
    rig.image_makers = {}
    assert spotctl(rig, "image", "bake", str(file), "-d") == ExitCode.USAGE
    assert "no configured cloud can make machine images" in error_of(capsys)


def test_job_with_a_baked_image_is_warned_where_it_is_missing(
    rig: Rig, spotctl: Spotctl, file: Path, capsys: Captured
) -> None:
    file.write_text(BAKE.replace("resources:", "resources:\n  image_id: baked:torch"))
    assert spotctl(rig, "run", str(file), "-d") == ExitCode.USAGE
    assert "resources.image_id: no image 'torch' was baked" in error_of(capsys)
    image(rig)
    assert spotctl(rig, "plan", str(file)) == 0
    shown = capsys.readouterr()
    assert "image torch is in aws/us-east-1; machines elsewhere start without it" in shown.err
    lines = shown.out[shown.out.index("WHERE") :].splitlines()[1:]
    assert [line.endswith("baked image") for line in lines] == [True, False, True]
    assert "toy-gcp" in lines[1]
    assert spotctl(rig, "run", str(file), "-d") == 0
    assert only_job(rig).spec.resources.image_id == "baked:torch"


def test_invalid_image_name_is_refused(
    rig: Rig, spotctl: Spotctl, file: Path, capsys: Captured
) -> None:
    file.write_text(BAKE.replace("resources:", "resources:\n  image_id: baked:Torch!"))
    assert spotctl(rig, "run", str(file), "-d") == ExitCode.USAGE
    assert "'Torch!' is not a name of a baked image" in error_of(capsys)


def test_image_in_use_needs_force(rig: Rig, spotctl: Spotctl, file: Path, capsys: Captured) -> None:
    image(rig)
    file.write_text(BAKE.replace("resources:", "resources:\n  image_id: baked:torch"))
    spotctl(rig, "run", str(file), "-d")
    capsys.readouterr()
    assert spotctl(rig, "image", "ls", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["used_by"] == ["gpt"]
    assert spotctl(rig, "image", "rm", "torch", "--yes") == ExitCode.FAILURE
    assert "image torch is used by gpt" in error_of(capsys)
    assert rig.store.images.rows()[0].good
    assert spotctl(rig, "image", "rm", "torch", "--yes", "--force") == 0
    assert not rig.store.images.rows()[0].good
    assert rig.store.market.load(0).images == (), "no machine starts from it any more"
    done = [
        r
        for r in rig.store.audit.rows(0)
        if (r.action, r.outcome) == ("image rm", AuditOutcome.DONE)
    ]
    assert [row.target for row in done] == ["torch"]
    assert "aws/us-east-1/spotd-torch-k2j4" in done[0].text


def test_removal_needs_confirmation_and_may_be_in_one_place(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    image(rig)
    image(rig, node_id="jold-west", region="us-west-2", vendor_name="spotd-torch-west")
    assert spotctl(rig, "image", "rm", "torch") == ExitCode.USAGE
    assert "was not confirmed" in error_of(capsys)
    assert spotctl(rig, "image", "rm", "torch", "--infra", "aws/us-west-2", "--yes") == 0
    assert [(row.region, row.good) for row in rig.store.images.rows()] == [
        ("us-east-1", True),
        ("us-west-2", False),
    ]
    assert spotctl(rig, "image", "rm", "spotd-torch-k2j4", "--yes") == 0
    assert not any(row.good for row in rig.store.images.rows())
    assert spotctl(rig, "image", "rm", "none", "--yes") == ExitCode.NOT_FOUND
    assert "there is no image 'none'" in error_of(capsys)


def test_image_in_the_configuration_is_in_use(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    image(rig)
    rig.configured_images = {"ami-torch": "[providers.aws] image"}
    assert spotctl(rig, "image", "rm", "torch", "--yes") == ExitCode.FAILURE
    assert "is used by [providers.aws] image" in error_of(capsys)


def test_removal_during_the_bake_cancels_it(
    rig: Rig, spotctl: Spotctl, file: Path, capsys: Captured
) -> None:
    spotctl(rig, "image", "bake", str(file), "-n", "torch", "-d")
    job = only_job(rig)
    node = rig.launch(job.id, rig.store.market.load(0).offers[0], 60)
    image(rig, node_id=node.id, job_id=job.id, made_at_us=0)
    capsys.readouterr()
    assert spotctl(rig, "image", "rm", "torch", "--yes", "--force") == ExitCode.FAILURE
    assert error_of(capsys).endswith("spotctl cancel bake-torch\n")


def test_empty_list(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(rig, "image", "ls") == 0
    assert capsys.readouterr().err == "no image was baked: spotctl image bake FILE\n"
