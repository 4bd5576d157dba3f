"""`spotctl init`: printed from the daemon's configuration or from the command line, and applied."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.errors import ExitCode
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.serve.rig import Rig

Captured = pytest.CaptureFixture[str]
BOX = ("--box", "203.0.113.7/32")
ALONE = ("--deployment", "0123456789ab", "--region", "eu-west-2", "--store", "s3://ours/spotd")


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with pytest.MonkeyPatch.context() as patch, serving(tmp_path_factory.mktemp("aws")) as running:
        for name, value in running.environ.items():
            patch.setenv(name, value)
        yield running


def test_of_a_daemon_it_is_the_roles_and_regions_of_the_configuration(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    assert spotctl(rig, "init", "aws", *BOX, "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["cloud"]) == ("Setup", "aws")
    texts = [step["text"] for step in data["steps"]]
    assert "the role spotd-control-d0" in texts
    regions = {text.partition(":")[0] for text in texts if text.endswith(": its vpc")}
    assert "us-east-1" in regions
    assert spotctl(rig, "init", "aws", *BOX, "--region", "eu-west-1", "-o", "json") == 0
    texts = [step["text"] for step in json.loads(capsys.readouterr().out)["steps"]]
    assert [text for text in texts if text.endswith(": its vpc")] == ["eu-west-1: its vpc"]


def test_commands_are_a_script(spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(None, "init", "aws", *BOX, *ALONE, "--queue", "warned") == 0
    text = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for word in ("203.0.113.7/32", "spotd-node-0123456789ab", "eu-west-2", "warned", "s3:::ours"):
        assert word in text


def test_terraform_is_printed(spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(None, "init", "aws", *BOX, *ALONE, "-o", "terraform") == 0
    text = capsys.readouterr().out
    assert 'resource "aws_vpc" "eu_west_2"' in text
    assert 'cidr_blocks = ["203.0.113.7/32"]' in text


@pytest.mark.parametrize(
    ("words", "text", "fix"),
    [
        (["ibm", *BOX], "CLOUD: 'ibm' is none that can be set up", "known here: aws"),
        (["aws"], "--box is missing", "--box ADDRESS/32"),
        (
            ["aws", "--box", "203.0.113.7/24"],
            "--box: 203.0.113.7/24 has host bits set",
            "IPv4 CIDR",
        ),
        (["aws", "--box", "me"], "--box: ", "IPv4 CIDR"),
        (["aws", "--box", "::1/128"], "--box: ", "IPv4 CIDR"),
        (["aws", "--box", "0.0.0.0/0"], "--box: 0.0.0.0/0 is everybody", "203.0.113.7/32"),
        (["aws", *BOX, "--network", "jmp"], "--network: 'jmp' is no kind", "did you mean 'jump'?"),
        (["aws", *BOX, "--region", "us east"], "--region: 'us east' is no region", "us-east-1"),
        (["aws", *BOX, "--queue", "a b"], "--queue: 'a b' is no name of a queue", "letters"),
        (["aws", *BOX, "--deployment", "x"], "--deployment: 'x' is no id", "12 hexadecimal"),
        (["aws", *BOX, *ALONE[:2]], "--region is missing", "--region us-east-1"),
        (["aws", *BOX, *ALONE[:4]], "--store is missing", "--store s3://BUCKET/PREFIX"),
    ],
)
def test_bad_input_is_one_clear_error(
    spotctl: Spotctl, capsys: Captured, words: list[str], text: str, fix: str
) -> None:
    assert spotctl(None, "init", *words) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err
    assert fix in said.err.splitlines()[-1]


def test_without_a_daemon_it_says_how_to_go_on(
    spotctl: Spotctl, capsys: Captured, folder: Path
) -> None:
    line = ("--socket", str(folder / "none.sock"), "init", "aws", *BOX)
    assert spotctl(None, *line) == ExitCode.UNREACHABLE
    assert "or without a daemon: --deployment ID --region REGION" in capsys.readouterr().err


def test_of_a_cloud_that_is_not_configured(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    """The rig has no provider of that kind in these regions; the daemon says so itself."""
    assert spotctl(rig, "init", "gcp", *BOX) == ExitCode.USAGE
    assert "none that can be set up" in capsys.readouterr().err


def test_applied_it_is_made_once(aws: StandIn, spotctl: Spotctl, capsys: Captured) -> None:
    line = ("init", "aws", *BOX, *ALONE, "--queue", "warned", "--profile", PROFILE, "--apply")
    assert spotctl(None, *line) == ExitCode.USAGE  # nobody is there to be asked
    said = capsys.readouterr().err
    assert "missing:\n  the role spotd-control-0123456789ab\n" in said
    assert "things would be made, and nobody is here to be asked" in said
    assert not [one for one in aws.ec2.seen if one.action in ("CreateVpc", "CreateRole")]
    assert spotctl(None, *line, "--yes") == 0
    said = capsys.readouterr()
    assert "made: eu-west-2: its vpc\n" in said.err
    assert said.out.splitlines() == [
        "[providers.aws]",
        'kind = "aws"',
        'regions = ["eu-west-2"]',
        'network = "public"',
        'node_role = "spotd-node-0123456789ab"',
        'queue = "warned"',
    ]
    aws.ec2.seen.clear()
    assert spotctl(None, *line) == 0
    assert "all of it is there" in capsys.readouterr().err
    changed = [one for one in aws.ec2.seen if one.action.startswith(("Create", "Put"))]
    assert changed == []


def test_who_has_no_credentials_is_told(aws: StandIn, spotctl: Spotctl, capsys: Captured) -> None:
    line = ("init", "aws", *BOX, *ALONE, "--profile", "nobodys", "--apply", "--yes")
    assert spotctl(None, *line) == ExitCode.AUTH
    said = capsys.readouterr().err
    assert "no credentials for AWS: The config profile (nobodys) could not be found" in said
    assert "try: the same again, with --profile" in said
