"""`spotctl doctor --policy`: the deployment's policy documents, as each cloud accepts them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotd.api.request.request import ApiError
from spotd.api.routes.policy import read_policy
from spotd.base.errors import ExitCode, UserError
from spotd.config.iam_policies import policy_facts
from spotd.config.load import load_config
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

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
    roles = ("control", "reaper", "node", "rehearse", "interrupt")
    assert list(documents) == [f"spotd-{role}-d0" for role in roles]
    text = json.dumps(documents)
    for expected in ("ours/packages/", "runs/jobs/", "us-east-1", '["p5.*", "g6e.*"]', '"spot"'):
        assert expected in text
    assert spotctl(rig, *line, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["documents"] == documents


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--policy", "gcp"], ExitCode.NOT_FOUND, "no provider of kind gcp is configured"),
        (["--policy", "ibm"], ExitCode.NOT_FOUND, "no cloud 'ibm'"),
        (["--policy", "aws", "--types", 'a"b'], ExitCode.USAGE, "is not an instance type"),
    ],
)
def test_unknown_cloud_has_no_policy(
    rig: Rig, spotctl: Spotctl, capsys: Captured, words: list[str], code: int, text: str
) -> None:
    del rig.facts["gcp"]
    assert spotctl(rig, "doctor", *words) == code
    assert text in capsys.readouterr().err


def test_two_accounts_are_bad_input() -> None:
    def refuse(cloud: str) -> None:
        raise UserError(f"two of {cloud}", "one of them", ExitCode.USAGE)

    context = SimpleNamespace(clouds=SimpleNamespace(policy_facts=refuse))
    call: Any = SimpleNamespace(path={"cloud": "gcp"}, query={}, context=context)
    with pytest.raises(ApiError, match="two of gcp") as caught:
        read_policy(call)
    assert (caught.value.status, caught.value.try_) == (400, "one of them")


def test_facts_come_from_the_configuration(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("cloud", "sections", "told"),
    [
        ("gcp", ['kind = "gcp"\nproject = "p-one"', 'kind = "gcp"\nproject = "p-two"'], "project"),
        (
            "azure",
            [
                f'kind = "azure"\nsubscription_id = "s0"\nresource_group = "{group}"'
                for group in ("rg", "rg2")
            ],
            "resource_group",
        ),
        (
            "aws",
            ['kind = "aws"\nqueue = "q1"', 'kind = "aws"\nprofile = "b"\nqueue = "q2"'],
            "queue",
        ),
    ],
)
def test_two_accounts_are_not_mixed_up(
    tmp_path: Path, cloud: str, sections: list[str], told: str
) -> None:
    text = AZURE.partition("[providers")[0]
    for name, section in zip(("one", "two"), sections, strict=True):
        text += f'[providers.{name}]\n{section}\nregions = ["us-{name}"]\n'
    (tmp_path / "config.toml").write_text(text)
    config = load_config(tmp_path / "config.toml", {})
    with pytest.raises(UserError, match=rf"providers\.one\.{told} .*providers\.two\.{told} "):
        policy_facts(config, "d0", cloud, lambda _: [])


def test_two_providers_of_one_account_have_the_regions_of_both(tmp_path: Path) -> None:
    """And what one of them alone says of it."""
    section = '[providers.{}]\nkind = "aws"\nregions = ["{}"]\n'
    queue = section.format("a", "us-east-1") + 'queue = "warned"\n'
    (tmp_path / "config.toml").write_text(
        AZURE + queue + section.format("b", "us-west-2") + 'profile = "b"\n'
    )
    config = load_config(tmp_path / "config.toml", {})
    facts = policy_facts(config, "d0", "aws", lambda _: [])
    assert facts is not None
    assert facts.account == {"queue": "warned"}
    assert [*facts.regions] == ["us-east-1", "us-west-2"]


UUID = "00000000-0000-0000-0000-00000000000b"


def test_queue_and_leased_role_of_aws_are_facts(tmp_path: Path) -> None:
    """Or its events could not be read."""
    section = '[providers.ec2]\nkind = "aws"\nregions = ["us-east-1"]\nqueue = "warned"\n'
    (tmp_path / "config.toml").write_text(AZURE + section)
    facts = policy_facts(load_config(tmp_path / "config.toml", {}), "d0", "aws", lambda _: [])
    assert facts is not None
    assert facts.account == {"queue": "warned"}
    role = "arn:aws:iam::123456789012:role/spotd-node-d0"
    lend = f'[stores.x]\nurl = "s3://x"\nlend = {{kind = "aws", role = "{role}"}}\n'
    (tmp_path / "config.toml").write_text(AZURE + section + lend)
    facts = policy_facts(load_config(tmp_path / "config.toml", {}), "d0", "aws", lambda _: [])
    assert facts is not None
    assert facts.account == {"queue": "warned", "lend": role}
    named = f'tenant = "{UUID}", application = "{UUID}"'
    for clouds, prove in (('"gcp"', {}), ('"aws", "gcp"', {"prove": "api://AzureADTokenExchange"})):
        made = f'federate = {{kind = "azure", clouds = [{clouds}], {named}}}\n'
        url = 'url = "az://x"\noptions = {account = "runs"}\n'
        own = section + 'node_role = "spotd-node-d0"\n'
        (tmp_path / "config.toml").write_text(f"{AZURE}{own}[stores.x]\n{url}{made}")
        facts = policy_facts(load_config(tmp_path / "config.toml", {}), "d0", "aws", lambda _: [])
        assert facts is not None
        assert facts.account == {"queue": "warned", **prove}
    assert facts.regions == ("us-east-1",)
