"""`spotctl init`: printed from the daemon's configuration or from options, and applied."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from providers.iam.policy import PolicyFacts
from providers.iam.setup import SetupFacts
from spotd.base.errors import ExitCode
from spotd.cli.init import _provider_section
from spotd.config.clouds import Provider
from spotd.config.config import Config
from spotd.config.load import load_config
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
BOX = ("--box", "203.0.113.7/32")
ALONE = ("--deployment", "0123456789ab", "--region", "ap-northeast-2", "--store", "s3://ours/spotd")

ALONE_GCP = (
    "--deployment",
    "0123456789ab",
    "--region",
    "us-central1",
    "--store",
    "gs://ours/spotd",
    "--project",
    "lab",
)
ALONE_AZURE = (
    "--deployment",
    "0123456789ab",
    "--region",
    "eastus",
    "--store",
    "az://ours/spotd",
    "--subscription",
    "11111111-2222",
    "--group",
    "spotd-lab",
)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with pytest.MonkeyPatch.context() as patch, serving(tmp_path_factory.mktemp("aws")) as running:
        for name, value in running.environ.items():
            patch.setenv(name, value)
        yield running


def test_roles_and_regions_come_from_the_configuration(
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
    for field in (
        "203.0.113.7/32",
        "spotd-node-0123456789ab",
        "ap-northeast-2",
        "warned",
        "s3:::ours",
    ):
        assert field in text


def test_terraform_is_printed(spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(None, "init", "aws", *BOX, *ALONE, "-o", "terraform") == 0
    text = capsys.readouterr().out
    assert 'resource "aws_vpc" "ap_northeast_2"' in text
    assert 'cidr_blocks = ["203.0.113.7/32"]' in text


@pytest.mark.parametrize(
    ("arguments", "text", "fix"),
    [
        (["ibm", *BOX], "CLOUD: 'ibm' is not a cloud that can be set up", "known here: aws"),
        (["gcp", *BOX, "--queue", "q"], "--queue: gcp has no queue", "leave it out"),
        (["aws", *BOX, "--project", "p"], "--project: aws has none", "leave it out"),
        (["gcp", *BOX, "--project", "p"], "--project: the daemon provides", "give --deployment"),
        (["gcp", *BOX, *ALONE], "--region: 'ap-northeast-2' is not a region", "us-central1"),
        (["gcp", *BOX, *ALONE_GCP[:-2]], "--project is missing", "as in [providers.gcp]"),
        (["azure", *BOX, *ALONE_AZURE[:-2]], "--group is missing", "as in [providers.azure]"),
        (
            ["azure", *BOX, *ALONE_AZURE[:-1], "a b"],
            "--group: 'a b' is not a valid name",
            "as in [prov",
        ),
        (["aws"], "--box is missing", "--box ADDRESS/32"),
        (
            ["aws", "--box", "203.0.113.7/24"],
            "--box: 203.0.113.7/24 has host bits set",
            "IPv4 CIDR",
        ),
        (["aws", "--box", "me"], "--box: ", "IPv4 CIDR"),
        (["aws", "--box", "::1/128"], "--box: ", "IPv4 CIDR"),
        (["aws", "--box", "0.0.0.0/0"], "--box: 0.0.0.0/0 allows every address", "203.0.113.7/32"),
        (
            ["aws", *BOX, "--network", "jmp"],
            "--network: 'jmp' is not a kind",
            "did you mean 'jump'?",
        ),
        (["aws", *BOX, "--region", "us east"], "--region: 'us east' is not a region", "us-east-1"),
        (["aws", *BOX, "--queue", "a b"], "--queue: 'a b' is not a queue name", "letters"),
        (
            ["aws", *BOX, "--deployment", "x"],
            "--deployment: 'x' is not a deployment id",
            "12 hexadecimal",
        ),
        (["aws", *BOX, *ALONE[:2]], "--region is missing", "--region us-east-1"),
        (["aws", *BOX, *ALONE[:4]], "--store is missing", "--store s3://BUCKET/PREFIX"),
    ],
)
def test_bad_input_is_one_clear_error(
    spotctl: Spotctl, capsys: Captured, arguments: list[str], text: str, fix: str
) -> None:
    assert spotctl(None, "init", *arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert fix in captured.err.splitlines()[-1]


def test_missing_daemon_error_names_the_options(
    spotctl: Spotctl, capsys: Captured, folder: Path
) -> None:
    line = ("--socket", str(folder / "none.sock"), "init", "aws", *BOX)
    assert spotctl(None, *line) == ExitCode.UNREACHABLE
    assert "or without a daemon: --deployment ID --region REGION" in capsys.readouterr().err


def test_unconfigured_cloud_is_an_error(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    """The daemon's own message."""
    del rig.facts["azure"]
    assert spotctl(rig, "init", "azure", *BOX) != 0
    assert "azure" in capsys.readouterr().err


@pytest.mark.parametrize(("cloud", "alone"), [("gcp", ALONE_GCP), ("azure", ALONE_AZURE)])
def test_every_cloud_has_every_output_form(
    spotctl: Spotctl, capsys: Captured, cloud: str, alone: tuple[str, ...]
) -> None:
    assert spotctl(None, "init", cloud, *BOX, *alone) == 0
    text = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "203.0.113.7/32" in text
    assert spotctl(None, "init", cloud, *BOX, *alone, "-o", "terraform") == 0
    assert "203.0.113.7/32" in capsys.readouterr().out
    assert spotctl(None, "init", cloud, *BOX, *alone, "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cloud"] == cloud
    assert any("spotd-node-0123456789ab" in step["text"] for step in data["steps"])


def test_apply_is_idempotent(aws: StandIn, spotctl: Spotctl, capsys: Captured) -> None:
    line = ("init", "aws", *BOX, *ALONE, "--queue", "warned", "--profile", PROFILE, "--apply")
    assert spotctl(None, *line) == ExitCode.USAGE  # nobody is there to be asked
    captured = capsys.readouterr().err
    assert "missing:\n  the role spotd-control-0123456789ab\n" in captured
    assert "things would be created, and stdin is not a terminal" in captured
    assert not [
        request for request in aws.ec2.seen if request.action in ("CreateVpc", "CreateRole")
    ]
    assert spotctl(None, *line, "--yes") == 0
    captured = capsys.readouterr()
    assert "created: ap-northeast-2: its vpc\n" in captured.err
    assert captured.out.splitlines() == [
        "[providers.aws]",
        'kind = "aws"',
        'queue = "warned"',
        'regions = ["ap-northeast-2"]',
        'network = "public"',
        'node_role = "spotd-node-0123456789ab"',
    ]
    aws.ec2.seen.clear()
    assert spotctl(None, *line) == 0
    assert "everything exists already" in capsys.readouterr().err
    changed = [request for request in aws.ec2.seen if request.action.startswith(("Create", "Put"))]
    assert changed == []


@pytest.mark.parametrize(
    ("cloud", "region", "account"),
    [
        ("aws", "us-east-1", {"queue": "warned", "lend": "arn:aws:iam::1:role/lent"}),
        ("gcp", "us-central1", {"project": "lab"}),
        ("azure", "eastus", {"subscription_id": "1-2", "resource_group": "spotd-lab"}),
    ],
)
def test_printed_provider_section_is_valid(
    cloud: str, region: str, account: dict[str, str]
) -> None:
    """Also if the daemon's own facts have more that policies are made from."""
    policy = PolicyFacts("0123456789ab", (region,), "s3://a", "s3://b", account=account)
    lines = _provider_section(cloud, SetupFacts(policy, BOX[1], "private"))
    [section] = tomllib.loads("\n".join(lines))["providers"].values()
    read = TypeAdapter[Any](Provider).validate_python(section)
    assert (read.kind, read.regions, read.network) == (cloud, [region], "private")


def test_unsupported_profile_is_one_clear_error(spotctl: Spotctl, capsys: Captured) -> None:
    line = ("init", "azure", *BOX, *ALONE_AZURE, "--profile", "mine", "--apply", "--yes")
    assert spotctl(None, *line) == ExitCode.USAGE
    assert "--profile: azure has none" in capsys.readouterr().err


def test_missing_credentials_are_an_auth_error(
    aws: StandIn, spotctl: Spotctl, capsys: Captured
) -> None:
    line = ("init", "aws", *BOX, *ALONE, "--profile", "nobodys", "--apply", "--yes")
    assert spotctl(None, *line) == ExitCode.AUTH
    stderr = capsys.readouterr().err
    assert "no credentials for AWS: The config profile (nobodys) could not be found" in stderr
    assert "try: run it again with --profile" in stderr


@pytest.mark.parametrize(
    ("network", "count", "expected_words"),
    [
        ("public", 0, []),
        ("private", 2, ["gateway endpoint that costs nothing", "NAT gateway"]),
        ("jump", 3, ["gateway endpoint that costs nothing", "AllowTcpForwarding"]),
    ],
)
def test_notes_on_private_networks(
    spotctl: Spotctl, capsys: Captured, network: str, count: int, expected_words: list[str]
) -> None:
    arguments = ("init", "aws", *BOX, *ALONE, "--network", network)
    assert spotctl(None, *arguments, "-o", "terraform") == 0
    captured = capsys.readouterr()
    assert captured.err.count("note: ") == count
    assert [expected for expected in expected_words if expected not in captured.err] == []
    assert "note: " not in captured.out
    assert spotctl(None, *arguments, "-o", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == count


UUID = "00000000-0000-0000-0000-00000000000b"
POOL = "projects/1234/locations/global/workloadIdentityPools/spotd-0123456789ab"


@pytest.mark.parametrize(
    ("cloud", "alone", "trust", "shown"),
    [
        ("aws", ALONE, f"azure={UUID},{UUID},api://spotd", f"oidc-provider/sts.windows.net/{UUID}"),
        ("aws", ALONE, "gcp=1234567,spotd", "accounts.google.com:oaud"),
        ("gcp", ALONE_GCP, "aws=123456789012,r", "assumed-role/r"),
        ("azure", ALONE_AZURE, "gcp=1234567", "/federatedIdentityCredentials/gcp"),
    ],
)
def test_trust_option_trusts_machines_of_another_cloud(
    spotctl: Spotctl, capsys: Captured, cloud: str, alone: tuple[str, ...], trust: str, shown: str
) -> None:
    assert spotctl(None, "init", cloud, *BOX, *alone) == 0
    assert shown not in capsys.readouterr().out
    assert spotctl(None, "init", cloud, *BOX, *alone, "--trust", trust) == 0
    text = capsys.readouterr().out
    assert shown in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        (["gcp=1"], "'gcp' is not another cloud"),
        (["aws"], "aws needs ACCOUNT-ID and ROLE"),
        (["aws=1,r"], "'1' is not a valid ACCOUNT-ID"),
        (["aws=123456789012,$(r)"], "is not a valid ROLE"),
        ([f"azure={UUID},{UUID},a b"], "'a b' is not a valid AUDIENCE"),
        ([f"azure={UUID},{UUID},a'b"], "is not a valid AUDIENCE"),
        (["aws=123456789012,r", "aws=123456789012,s"], "aws is given twice"),
    ],
)
def test_invalid_trust_option_is_refused(
    spotctl: Spotctl, capsys: Captured, trust: list[str], message: str
) -> None:
    arguments = [argument for value in trust for argument in ("--trust", value)]
    assert spotctl(None, "init", "gcp", *BOX, *ALONE_GCP, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cloud", "alone", "trust", "answers"),
    [
        ("aws", ALONE, "gcp=1234567,spotd", {"aws": "123456789012"}),
        ("gcp", ALONE_GCP, "aws=123456789012,r", {"gcloud": POOL}),
        ("gcp", ALONE_GCP, f"azure={UUID},{UUID},api://spotd", {"gcloud": POOL}),
        ("azure", ALONE_AZURE, "gcp=1234567", {"az": UUID}),
    ],
)
def test_script_prints_the_federate_section(
    spotctl: Spotctl,
    capsys: Captured,
    tmp_path: Path,
    cloud: str,
    alone: tuple[str, ...],
    trust: str,
    answers: dict[str, str],
) -> None:
    """With a command line that has everything already, and a daemon's own reading of the file."""
    line = ("init", cloud, *BOX, *alone, "--trust", trust)
    assert spotctl(None, *line) == 0
    text = capsys.readouterr().out
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {answer}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PAUSE": "0"}
    done = subprocess.run(
        ["bash", "-c", text], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    _, found, rest = done.stdout.partition("# Where config.toml")
    store = _loaded(tmp_path, found + rest).file.stores["checkpoints"]
    assert store.federate is not None
    assert (store.url, store.federate.kind) == (alone[5], cloud)
    assert store.federate.clouds == [trust.partition("=")[0]]
    assert {"$", "None"}.isdisjoint(store.federate.model_dump_json())


def _loaded(folder: Path, text: str) -> Config:
    (folder / "config.toml").write_text(
        f'[providers.here]\nkind = "local"\npersonality = "gcp"\nurl = "http://127.0.0.1:1"\n{text}'
    )
    return load_config(folder / "config.toml", {"HOME": str(folder)})


def test_apply_prints_the_federate_section(
    aws: StandIn, spotctl: Spotctl, capsys: Captured, tmp_path: Path
) -> None:
    line = ("init", "aws", *BOX, *ALONE, "--trust", "gcp=1234567,spotd", "--profile", PROFILE)
    for _ in range(2):  # made, and found
        assert spotctl(None, *line, "--apply", "--yes") == 0
        _, found, rest = capsys.readouterr().out.partition("# Where config.toml")
        store = _loaded(tmp_path, found + rest).file.stores["checkpoints"]
        assert store.federate is not None
        assert store.federate.model_dump() == {
            "kind": "aws",
            "clouds": ["gcp"],
            "role": "arn:aws:iam::123456789012:role/spotd-web-0123456789ab",
            "audience": "spotd",
        }


@pytest.mark.parametrize(
    ("cloud", "alone", "trust", "expression"),
    [
        ("aws", ALONE, "gcp=1,x", "iam::${data.aws_caller_identity.here.account_id}:role/spotd"),
        ("gcp", ALONE_GCP, "aws=123456789012,r", "${google_iam_workload_identity_pool.spotd.name}"),
        ("azure", ALONE_AZURE, "gcp=1", "${azurerm_user_assigned_identity.node.client_id}"),
    ],
)
def test_terraform_has_the_federate_section_as_an_output(
    spotctl: Spotctl,
    capsys: Captured,
    cloud: str,
    alone: tuple[str, ...],
    trust: str,
    expression: str,
) -> None:
    trust = trust.replace("gcp=1", "gcp=1234567")
    assert spotctl(None, "init", cloud, *BOX, *alone, "--trust", trust, "-o", "terraform") == 0
    module = capsys.readouterr().out
    assert expression in module[module.index('output "federate"') :]
    assert spotctl(None, "init", cloud, *BOX, *alone, "--trust", trust, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["federate"]["kind"] == cloud
    assert spotctl(None, "init", cloud, *BOX, *alone, "-o", "terraform") == 0
    assert "federate" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("alone", "trusts", "text", "fix"),
    [
        (
            (*ALONE[:-1], "gs://ours"),
            ["gcp=1234567,spotd"],
            "no checkpoint store is a s3:// one",
            "--checkpoints s3://BUCKET",
        ),
        (
            ALONE,
            ["gcp=1234567,spotd", f"azure={UUID},{UUID},api://spotd"],
            "a store has one AUDIENCE, and gcp's is 'spotd' and azure's is 'api://spotd'",
            "the same AUDIENCE for both",
        ),
    ],
)
def test_impossible_trust_is_one_clear_error(
    spotctl: Spotctl,
    capsys: Captured,
    alone: tuple[str, ...],
    trusts: list[str],
    text: str,
    fix: str,
) -> None:
    arguments = [argument for value in trusts for argument in ("--trust", value)]
    assert spotctl(None, "init", "aws", *BOX, *alone, *arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert (captured.out, text in captured.err) == ("", True)
    assert fix in captured.err
