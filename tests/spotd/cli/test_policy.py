"""`spotctl doctor --policy`: documents of this deployment, as the cloud takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotd.config import load_config
from spotd.config.policies import policy_facts
from spotd.errors import ExitCode
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.serve.rig import Rig

Captured = pytest.CaptureFixture[str]
AZURE = """
[limits]
max_nodes = 1
max_usd_per_hour = 1.0
[deployment]
store = "s3://ours/packages"
[checkpoint]
store = "s3://runs"
[providers.azure]
kind = "azure"
subscription_id = "s0"
resource_group = "rg"
regions = ["eastus"]
[providers.lab]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
[stores.mine]
url = "s3://my-bucket/finetune"
"""


def test_the_documents_are_json_by_name(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    line = ("doctor", "--policy", "aws", "--types", "p5.*,g6e.*", "--spot-only")
    assert spotctl(rig, *line) == 0
    documents = json.loads(capsys.readouterr().out)
    assert list(documents) == ["spotd-control-d0", "spotd-reaper-d0", "spotd-node-d0"]
    said = json.dumps(documents)
    for word in ("ours/packages/", "runs/jobs/", "us-east-1", '["p5.*", "g6e.*"]', '"spot"'):
        assert word in said
    assert spotctl(rig, *line, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["documents"] == documents


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--policy", "gcp"], ExitCode.NOT_FOUND, "no provider of kind gcp is configured"),
        (["--policy", "ibm"], ExitCode.NOT_FOUND, "no cloud 'ibm'"),
        (["--policy", "aws", "--types", 'a"b'], ExitCode.USAGE, "no instance type"),
    ],
)
def test_what_there_is_none_for(
    rig: Rig, spotctl: Spotctl, capsys: Captured, words: list[str], code: int, text: str
) -> None:
    assert spotctl(rig, "doctor", *words) == code
    assert text in capsys.readouterr().err


def test_facts_are_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(AZURE)
    config = load_config(tmp_path / "config.toml", {})
    on_sale = {"lab": ["us-1", "us-2"]}
    azure = policy_facts(config, "d0", "azure", on_sale.__getitem__)
    assert azure is not None
    assert azure.account == {"subscription_id": "s0", "resource_group": "rg"}
    assert (azure.regions, azure.deployment) == (("eastus",), "d0")
    assert (azure.own_store, azure.checkpoint_store) == ("s3://ours/packages", "s3://runs")
    aws = policy_facts(config, "d0", "aws", on_sale.__getitem__)
    assert aws is not None
    assert [*aws.job_stores] == ["s3://my-bucket/finetune"]
    assert aws.regions == ("us-1", "us-2")
    assert policy_facts(config, "d0", "gcp", on_sale.__getitem__) is None


def test_the_queue_of_aws_is_a_fact(tmp_path: Path) -> None:
    """Or its events could not be read."""
    section = '[providers.ec2]\nkind = "aws"\nregions = ["us-east-1"]\nqueue = "warned"\n'
    (tmp_path / "config.toml").write_text(AZURE + section)
    facts = policy_facts(load_config(tmp_path / "config.toml", {}), "d0", "aws", lambda _: [])
    assert facts is not None
    assert facts.account == {"queue": "warned"}
    assert facts.regions == ("us-east-1",)
