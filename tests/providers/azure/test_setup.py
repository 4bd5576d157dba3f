"""`spotctl init azure` against the stand-in: it creates each resource once, and allows only the
right SSH sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.azure.apply import Account
from providers.azure.policy import policies
from providers.azure.script import script
from providers.azure.setup import HOLDERS, blocks, steps
from providers.azure.terraform import terraform
from providers.base import UnknownOutcome
from providers.iam.policy import PolicyFacts
from providers.iam.setup import NETWORKS, SetupFacts, apply, find_missing_steps
from tests.clouds.azure.account import Account as Made
from tests.clouds.azure.arm import SUBSCRIPTION
from tests.clouds.azure.serving import StandIn

BOX = "203.0.113.7/32"
REGIONS = ("eastus",)


def facts(network: str = "public", stores: str = "az") -> SetupFacts:
    account = {"subscription_id": SUBSCRIPTION, "resource_group": "lab"}
    urls = (f"{stores}://ours/spotd", f"{stores}://runs/team")
    policy = PolicyFacts("0123456789ab", REGIONS, *urls, account=account)
    return SetupFacts(policy, BOX, network)


@pytest.fixture
def made(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """In an empty subscription."""
    monkeypatch.setattr("providers.azure.apply.PAUSE_S", 0.01)
    azure.arm.account = Made()
    yield azure.arm.account
    azure.arm.account = None


@pytest.fixture
def account(azure: StandIn, made: Made) -> Account:
    return Account("", azure.arm.endpoint, azure.arm.endpoint)


@pytest.mark.parametrize("network", ["private", "jump"])
def test_applied_twice_it_is_there_once(made: Made, account: Account, network: str) -> None:
    wanted = steps(facts(network))
    reported = find_missing_steps(wanted, account.execute)
    assert (len(reported), made.made) == (len(wanted), {})
    assert [text for text, there in apply(wanted, account.execute) if not there] == reported
    assert find_missing_steps(wanted, account.execute) == []
    made.puts.clear()
    assert {there for _, there in apply(wanted, account.execute)} == {True}
    assert made.puts == []


TRUSTS = {"aws": ("https://x.tokens.sts.global.api.aws", "arn:aws:iam::1:role/r"), "gcp": ("77",)}


def test_machines_of_other_clouds_may_be_the_machines_identity(
    made: Made, account: Account
) -> None:
    wanted = steps(replace(facts(), trusts=TRUSTS))
    list(apply(wanted, account.execute))
    assert find_missing_steps(wanted, account.execute) == []
    google = {"issuer": "https://accounts.google.com", "subject": "77"}
    aws = {"issuer": TRUSTS["aws"][0], "subject": TRUSTS["aws"][1]}
    audiences = {"audiences": ["api://AzureADTokenExchange"]}
    reported = named(made, "federatedIdentityCredentials")
    assert reported == {"aws": aws | audiences, "gcp": google | audiences}
    moved = steps(replace(facts(), trusts={"gcp": ("78",)}))
    assert find_missing_steps(moved, account.execute) == [
        "that machines of gcp may be spotd-node-0123456789ab"
    ]
    list(apply(moved, account.execute))
    assert named(made, "federatedIdentityCredentials")["gcp"]["subject"] == "78"
    module = terraform(replace(facts(), trusts=TRUSTS))
    assert module.count('resource "azurerm_federated_identity_credential"') == 2
    assert module.count("{") == module.count("}")


def named(made: Made, kind: str) -> dict[str, Any]:
    return {
        item["id"].rpartition("/")[2]: item["properties"]
        for item in made.made.values()
        if f"/{kind}/" in item["id"]
    }


def test_the_roles_are_those_of_the_policies(made: Made, account: Account) -> None:
    wanted = facts()
    list(apply(steps(wanted), account.execute))
    documents = policies(wanted.policy)
    definitions = named(made, "roleDefinitions")
    reported = {
        definition["roleName"]: definition["permissions"][0] for definition in definitions.values()
    }
    assert {name: one["actions"] for name, one in reported.items()} == {
        name: document["Actions"] for name, document in documents.items()
    }
    assert {name: one["dataActions"] for name, one in reported.items()} == {
        name: document["DataActions"] for name, document in documents.items()
    }
    owner = {
        one["principalId"]: name for name, one in named(made, "userAssignedIdentities").items()
    }
    holds: dict[str, set[str]] = {}
    for item in named(made, "roleAssignments").values():
        role = definitions[item["roleDefinitionId"].rpartition("/")[2]]["roleName"]
        holds.setdefault(owner[item["principalId"]], set()).add(role)
        assert item.get("condition") == documents[role].get("AssignmentCondition")
    assert holds == {
        f"spotd-{holder}-0123456789ab": {f"spotd-{role}-0123456789ab" for role in roles}
        for holder, roles in HOLDERS.items()
    }


def test_a_role_that_grants_nothing_is_not_made(made: Made, account: Account) -> None:
    list(apply(steps(facts(stores="s3")), account.execute))
    reported = {item["roleName"] for item in named(made, "roleDefinitions").values()}
    assert "spotd-node-0123456789ab" not in reported
    assert "spotd-control-0123456789ab" in reported


def test_a_role_that_is_another_by_now_is_put_right(made: Made, account: Account) -> None:
    wanted = steps(facts())
    list(apply(wanted, account.execute))
    role = next(
        item
        for item in named(made, "roleDefinitions").values()
        if item["roleName"] == "spotd-reaper-0123456789ab"
    )
    role["permissions"][0]["actions"] = ["*"]
    assert find_missing_steps(wanted, account.execute) == ["the role spotd-reaper-0123456789ab"]
    list(apply(wanted, account.execute))
    assert find_missing_steps(wanted, account.execute) == []


def test_other_stores_are_put_into_roles_and_assignments(made: Made, account: Account) -> None:
    """Without a store, a role has no data actions and its assignment no condition."""
    before, after = facts(stores="s3"), facts()
    list(apply(steps(before), account.execute))
    reported = find_missing_steps(steps(after), account.execute)
    assert reported == [
        "the role spotd-control-0123456789ab",
        "that spotd-control-0123456789ab has the role spotd-control-0123456789ab",
        "the role spotd-node-0123456789ab",
        "that spotd-node-0123456789ab has the role spotd-node-0123456789ab",
    ]
    list(apply(steps(after), account.execute))
    assert find_missing_steps(steps(after), account.execute) == []
    other = PolicyFacts(
        "0123456789ab", REGIONS, "az://ours/spotd", "az://other/x", account=after.policy.account
    )
    moved = steps(SetupFacts(other, BOX, "public"))
    assert len(find_missing_steps(moved, account.execute)) == 2, (
        "the conditions of both who have objects"
    )
    list(apply(moved, account.execute))
    conditions = [item.get("condition", "") for item in named(made, "roleAssignments").values()]
    assert [condition for condition in conditions if "'runs'" in condition] == []
    assert find_missing_steps(moved, account.execute) == []


def test_an_identity_that_is_not_known_everywhere_yet_is_waited_for(
    made: Made, account: Account
) -> None:
    made.shy = 2
    list(apply(steps(facts()), account.execute))
    assert made.shy == 0


@pytest.mark.parametrize("network", NETWORKS)
def test_nobody_but_the_box_gets_in(network: str) -> None:
    """Not even from elsewhere in the network."""
    firewalls = {
        step.make.parameters["path"].rpartition("/")[2]: step.make.parameters["body"]["properties"]
        for step in steps(facts(network))
        if step.make is not None and "/networkSecurityGroups/" in step.make.parameters["path"]
    }
    lets_in = {
        name: [
            (reported["sourceAddressPrefix"], reported["destinationPortRange"])
            for reported in (rule["properties"] for rule in one["securityRules"])
            if reported["access"] == "Allow"
        ]
        for name, one in firewalls.items()
    }
    [(_, own, jump)] = blocks(REGIONS).values()
    expected = {"spotd-eastus": [(BOX, "22"), (own, "*")]}
    if network == "jump":
        expected = {"spotd-eastus": [(jump, "22"), (own, "*")]}
        expected["spotd-jump-eastus"] = [(BOX, "22"), (jump, "*")]
    assert lets_in == expected
    for firewall in firewalls.values():
        last = max(
            (r["properties"] for r in firewall["securityRules"]), key=lambda r: r["priority"]
        )
        assert (last["access"], last["sourceAddressPrefix"]) == ("Deny", "*")


def test_regions_share_no_addresses() -> None:
    reported = blocks([f"r{number}" for number in range(16)])
    assert len({item for three in reported.values() for item in three[:2]}) == 32


@pytest.mark.parametrize("network", NETWORKS)
def test_the_script_and_the_module_have_every_thing(network: str) -> None:
    wanted = facts(network)
    text = script(steps(wanted))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    module = terraform(wanted)
    for document in policies(wanted.policy).values():
        for action in (*document["Actions"], *document["DataActions"]):
            assert action in text
            assert f'"{action}"' in module
    for step in steps(wanted):
        assert step.make is not None
        assert step.make.parameters["path"] in text
    assert module.count("{") == module.count("}")
    assert module.count('"azurerm_network_security_group"') == (2 if network == "jump" else 1)


AZ = """#!/usr/bin/env bash
echo "$*" >> "$LOG"
case "$*" in
  *"--method get"*provisioningState*) echo Succeeded ;;
  *"--method get"*) [ -n "${REFUSED:-}" ] && { echo "Forbidden($REFUSED)" >&2; exit 1; }
    code=ResourceNotFound
    case "$*" in *roleDefinitions*) code=RoleDefinitionDoesNotExist ;; esac
    echo "ERROR: Not Found({\\"error\\":{\\"code\\":\\"$code\\"}})" >&2; exit 1 ;;
  *roleAssignments*)
    echo x >> "$LOG.assigned"
    if [ "$(wc -l < "$LOG.assigned")" -le "${UNKNOWN:-0}" ]; then
      echo 'ERROR: Bad Request({"error":{"code":"PrincipalNotFound"}})' >&2; exit 1
    fi
    echo '"made"' ;;
  *userAssignedIdentities*) echo '"11111111-aaaa"' ;;
  *) echo '"made"' ;;
esac
"""


def test_the_script_makes_what_is_missing(tmp_path: Any) -> None:
    """With an az that only records its arguments."""
    (tmp_path / "az").write_text(AZ)
    (tmp_path / "az").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(tmp_path / "log")}
    line = ["bash", "-c", script(steps(facts()))]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    received = (tmp_path / "log").read_text()
    assert received.count("--method put") == len(steps(facts()))
    assert '"principalId": "11111111-aaaa"' in received
    assert "made: the identity spotd-node-0123456789ab" in done.stdout
    refused = {**environ, "REFUSED": "AuthorizationFailed"}
    done = subprocess.run(line, env=refused, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "AuthorizationFailed" in done.stderr


@pytest.mark.parametrize(("unknown", "code"), [(2, 0), (1000, 1)])
def test_the_script_waits_for_an_identity_that_is_not_known_everywhere(
    tmp_path: Any, unknown: int, code: int
) -> None:
    """As long as `--apply` does."""
    (tmp_path / "az").write_text(AZ)
    (tmp_path / "az").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(tmp_path / "log"), "PAUSE": "0"}
    environ["UNKNOWN"] = str(unknown)
    line = ["bash", "-c", script(steps(facts()))]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("PrincipalNotFound" in done.stderr) == bool(code)
    tried = len((tmp_path / "log.assigned").read_text().split())
    assigned = sum("roleAssignments" in str(step.make) for step in steps(facts()))
    assert tried == (20 if code else unknown + assigned)


def test_azure_has_no_profiles() -> None:
    with pytest.raises(UnknownOutcome, match="az login"):
        Account("somebody")


PLUGINS = Path(os.environ.get("SPOTD_TERRAFORM_PLUGINS", "/nowhere"))


@pytest.mark.skipif(
    not (shutil.which("terraform") and [*PLUGINS.glob("*/hashicorp/azurerm")]),
    reason="needs terraform, and SPOTD_TERRAFORM_PLUGINS: a mirror with the provider azurerm",
)
@pytest.mark.parametrize("network", NETWORKS)
def test_terraform_takes_the_module(tmp_path: Path, network: str) -> None:
    (tmp_path / "main.tf").write_text(terraform(facts(network)))
    environ = {**os.environ, "CHECKPOINT_DISABLE": "1"}
    for arguments in (["init", "-input=false", f"-plugin-dir={PLUGINS}"], ["validate"]):
        line = ["terraform", *arguments]
        subprocess.run(line, cwd=tmp_path, env=environ, check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("terraform"), reason="needs terraform")
@pytest.mark.parametrize("network", NETWORKS)
def test_terraform_can_read_the_module(network: str) -> None:
    """Its syntax, without the provider."""
    done = subprocess.run(
        ["terraform", "fmt", "-"],
        input=terraform(facts(network)),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
