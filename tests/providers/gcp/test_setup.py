"""`spotctl init gcp` against the stand-in: it creates each resource once, and allows only the right
SSH sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.base import AuthError, UnknownOutcome
from providers.federation import pool_provider
from providers.gcp.apply import Account
from providers.gcp.policy import policies
from providers.gcp.script import script
from providers.gcp.setup import SERVICES, blocks, email_of, grants, rules, steps
from providers.gcp.terraform import terraform
from providers.iam.policy import CONTROL, PolicyFacts
from providers.iam.setup import NETWORKS, SetupFacts, apply, find_missing_steps
from tests.providers.gcp.conftest import Lab

BOX = "203.0.113.7/32"
REGIONS = ("us-central1", "europe-west4")


def facts(project: str, network: str = "public") -> SetupFacts:
    account = {"project": project}
    stores = ("gs://ours/spotd", "gs://runs/team")
    policy = PolicyFacts("0123456789ab", REGIONS, *stores, account=account)
    return SetupFacts(policy, BOX, network)


@pytest.fixture
def account(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Account:
    """The account of an empty project."""
    monkeypatch.setattr("providers.gcp.apply.PAUSE_S", 0.01)
    lab.gce.facts.account.empty.add(lab.name)
    lab.gce.facts.account.late = lab.gce.facts.account.shy = 0
    names = ("compute", "iam", "serviceusage", "cloudresourcemanager")
    endpoints = dict.fromkeys(names, lab.standin.endpoint)
    return Account(str(lab.standin.credentials_file), endpoints)


def test_what_google_does_not_know_everywhere_yet_is_waited_for(lab: Lab, account: Account) -> None:
    """A service that was just enabled refuses for a while, and so do policies a new account."""
    lab.gce.facts.account.late, lab.gce.facts.account.shy = 3, 2
    wanted = steps(facts(lab.name))
    list(apply(wanted, account.execute))
    assert find_missing_steps(wanted, account.execute) == []
    assert (lab.gce.facts.account.late, lab.gce.facts.account.shy) == (0, 0)


def test_a_service_that_stays_out_is_told(
    lab: Lab, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("providers.gcp.apply.TIMEOUT_S", 0.1)
    lab.gce.facts.account.late = 10_000
    with pytest.raises(AuthError, match="has not been used in project"):
        list(apply(steps(facts(lab.name)), account.execute))


@pytest.mark.parametrize("network", ["public", "jump"])
def test_applied_twice_it_is_there_once(lab: Lab, account: Account, network: str) -> None:
    wanted = steps(facts(lab.name, network))
    reported = find_missing_steps(wanted, account.execute)
    assert len(reported) == len(wanted), "nothing is there"
    assert not [key for key in lab.gce.facts.account.made if lab.name in key]
    done = [text for text, there in apply(wanted, account.execute) if not there]
    # A role is made with what it may do.
    assert done == [text for text in reported if not text.startswith("what the role")]
    assert find_missing_steps(wanted, account.execute) == []
    before = dict(lab.gce.facts.account.made)
    assert {there for _, there in apply(wanted, account.execute)} == {True}
    assert lab.gce.facts.account.made == before


TRUSTS = {
    "aws": ("123456789012", "spotd-node-d0"),
    "azure": ("a-tenant", "an-object", "api://spotd-d0"),
}
POOL = "projects/1234/locations/global/workloadIdentityPools/spotd-0123456789ab"


def test_machines_of_other_clouds_may_be_the_machines_account(lab: Lab, account: Account) -> None:
    """By Google's description of its API: the stand-in refuses anything else."""
    wanted = steps(replace(facts(lab.name), trusts=TRUSTS))
    reported = find_missing_steps(wanted, account.execute)
    assert "that machines of aws may be spotd-node-0123456789ab" in reported
    list(apply(wanted, account.execute))
    assert find_missing_steps(wanted, account.execute) == []
    state = lab.gce.facts.account
    email = f"spotd-node-0123456789ab@{lab.name}.iam.gserviceaccount.com"
    kind = "//iam.googleapis.com/" + POOL
    role = "attribute.aws_role/arn:aws:sts::123456789012:assumed-role/spotd-node-d0"
    bound = {row["members"][0]: row["role"] for row in state.policies[email]["bindings"]}
    assert bound == dict.fromkeys(
        (f"principalSet:{kind}/{role}", f"principal:{kind}/subject/an-object"),
        "roles/iam.workloadIdentityUser",
    )
    pool = (lab.name, "global", "spotd-0123456789ab")
    assert state.made[(*pool, "spotd-aws")]["aws"] == {"accountId": "123456789012"}
    assert state.made[(*pool, "spotd-azure")]["oidc"] == {
        "issuerUri": "https://sts.windows.net/a-tenant/",
        "allowedAudiences": ["api://spotd-d0"],
    }
    assert ("projects", lab.name, "sts.googleapis.com") in state.made
    assert {pool_provider(cloud) for cloud in TRUSTS} == {"spotd-aws", "spotd-azure"}


def test_the_script_and_the_module_have_what_others_are_trusted_by() -> None:
    wanted = replace(facts("lab"), trusts=TRUSTS)
    text, module = script(steps(wanted)), terraform(wanted)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "workload-identity-pools providers create-aws spotd-aws" in text
    assert '/subject/an-object" --condition=None' in text
    assert 'resource "google_iam_workload_identity_pool_provider" "azure"' in module
    assert "${google_iam_workload_identity_pool.spotd.name}/attribute.aws_role/arn:aws" in module
    assert module.count("{") == module.count("}")
    assert "workload" not in script(steps(facts("lab"))) + terraform(facts("lab"))


def test_the_roles_are_those_of_the_policies(lab: Lab, account: Account) -> None:
    wanted = facts(lab.name)
    list(apply(steps(wanted), account.execute))
    state = lab.gce.facts.account
    bound: dict[str, list[Any]] = {}
    for binding in state.policies[lab.name]["bindings"]:
        resource_id = binding["role"].rpartition("/")[2]
        row = state.made[lab.name, resource_id]
        grant = {"includedPermissions": row["includedPermissions"]}
        if "condition" in binding:
            grant["condition"] = {"expression": binding["condition"]["expression"]}
        [member] = binding["members"]
        name = member.partition(":")[2].partition("@")[0]
        bound.setdefault(name, []).append(grant)
    assert bound == {name: one["grants"] for name, one in policies(wanted.policy).items()}


def test_a_role_that_is_another_by_now_is_put_right(lab: Lab, account: Account) -> None:
    wanted = steps(facts(lab.name))
    list(apply(wanted, account.execute))
    role = lab.gce.facts.account.made[lab.name, "spotd_control_0123456789ab_0"]
    role["includedPermissions"] = ["compute.instances.list"]
    assert find_missing_steps(wanted, account.execute) == [
        "what the role spotd_control_0123456789ab_0 may do"
    ]
    list(apply(wanted, account.execute))
    assert find_missing_steps(wanted, account.execute) == []


def test_a_role_that_was_deleted_is_had_again(lab: Lab, account: Account) -> None:
    wanted = steps(facts(lab.name))
    list(apply(wanted, account.execute))
    role = lab.gce.facts.account.made[lab.name, "spotd_control_0123456789ab_0"]
    role |= {"deleted": True, "includedPermissions": ["compute.instances.list"]}
    resource_id = "spotd_control_0123456789ab_0"
    reported = [f"the role {resource_id}", f"what the role {resource_id} may do"]
    assert find_missing_steps(wanted, account.execute) == reported
    list(apply(wanted, account.execute))
    assert "deleted" not in role
    assert find_missing_steps(wanted, account.execute) == []


def test_a_condition_that_is_another_by_now_leaves_no_old_binding(
    lab: Lab, account: Account
) -> None:
    """Other members keep the role under the old condition."""
    wanted = steps(facts(lab.name))
    list(apply(wanted, account.execute))
    policy = lab.gce.facts.account.policies[lab.name]
    before = [dict(binding, members=[*binding["members"]]) for binding in policy["bindings"]]
    one = next(binding for binding in policy["bindings"] if "condition" in binding)
    one["condition"] = {**one["condition"], "expression": "resource.name == 'old'"}
    one["members"].append("user:a")
    # And one beside the right one, without a condition.
    other = policy["bindings"][-1]
    policy["bindings"].append({"role": other["role"], "members": [*other["members"]]})
    assert len(find_missing_steps(wanted, account.execute)) == (2 if one is not other else 1)
    list(apply(wanted, account.execute))
    assert find_missing_steps(wanted, account.execute) == []
    after = lab.gce.facts.account.policies[lab.name]["bindings"]
    [stored] = [row for row in after if row["members"] == ["user:a"]]
    assert stored["condition"]["expression"] == "resource.name == 'old'"
    assert sorted(map(str, (row for row in after if row is not stored))) == sorted(map(str, before))


def test_somebody_elses_change_of_the_policy_is_not_lost(lab: Lab, account: Account) -> None:
    wanted = steps(facts(lab.name))
    some = [step for step in wanted if "has the role" not in step.text]
    list(apply(some, account.execute))
    [*_, binding] = wanted
    lab.gce.facts.account.policies[lab.name] = {
        "etag": "MA==",
        "version": 3,
        "bindings": [{"role": "projects/p/roles/spotd_node_0123456789ab_0", "members": ["user:a"]}],
    }
    assert binding.make is not None
    assert account.execute(binding.look) is False, "another member, and no condition"
    lab.gce.facts.account.raced = True
    with pytest.raises(UnknownOutcome):
        account.execute(binding.make)
    assert account.execute(binding.make) is True
    left = lab.gce.facts.account.policies[lab.name]["bindings"]
    assert left[0]["members"] == ["user:a"]


@pytest.mark.parametrize("network", NETWORKS)
def test_nobody_but_the_box_gets_in(network: str) -> None:
    reported = rules(facts("lab", network))
    assert [name for name, rule in reported.items() if "sourceRanges" in rule] == (
        ["spotd-jump"] if network == "jump" else ["spotd-login"]
    )
    for rule in reported.values():
        assert rule.get("sourceRanges", [BOX]) == [BOX]
        assert rule["targetTags"] in (["spotd"], ["spotd-jump"])
    login = reported["spotd-login"]
    assert login.get("sourceTags", []) == (["spotd-jump"] if network == "jump" else [])
    assert login["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]


def test_regions_share_no_addresses() -> None:
    reported = blocks([f"r{number}" for number in range(40)])
    assert len({*reported.values()}) == 40
    assert reported["r0"] == "10.213.0.0/20"
    assert reported["r17"] == "10.214.16.0/20"


@pytest.mark.parametrize("network", NETWORKS)
def test_the_script_and_the_module_have_every_thing(network: str) -> None:
    wanted = facts("lab", network)
    text = script(steps(wanted))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    module = terraform(wanted)
    for name in SERVICES:
        assert f"gcloud services enable {name} --project=lab" in text
        assert f'service = "{name}"' in module
    for name in rules(wanted):
        assert f"firewall-rules create {name} " in text
        assert f'name = "{name}"' in module
    for document in policies(wanted.policy).values():
        for grant in document["grants"]:
            assert ",".join(grant["includedPermissions"]) in text
            for permission in grant["includedPermissions"]:
                assert f'"{permission}"' in module
    assert module.count("{") == module.count("}")


# With the words of the real one: of what is missing it tells in several lines, an empty one last.
GCLOUD = """#!/usr/bin/env bash
echo "$*" >> "$LOG"
case "$*" in
  "projects add-iam-policy-binding "*)
    [ -e "$THERE.known" ] && exit 0
    touch "$THERE.known"
    echo "ERROR: (gcloud...) INVALID_ARGUMENT: Service account x does not exist." >&2; exit 1 ;;
  "projects get-iam-policy "*) [ -z "${BOUND:-}" ] || cat "$BOUND"; exit 0 ;;
  "iam roles describe "*"value(deleted)") [ -n "${DELETED:-}" ] && { echo True; exit 0; } ;;&
  "iam roles undelete "*)
    [ -n "${DELETED:-}" ] && exit 0
    echo "ERROR: (gcloud.iam.roles.undelete) NOT_FOUND: The role was not found." >&2; exit 1 ;;
  *describe*|*"services list"*) grep -qxF "$*" "$THERE" 2>/dev/null && exit 0 ;;&
  "compute "*describe*)
    echo "ERROR: (gcloud.compute.describe) Could not fetch resource:" >&2
    echo " - The resource 'projects/lab/global/x' was not found" >&2; echo >&2; exit 1 ;;
  "services list"*) echo "Listed 0 items." >&2; exit 0 ;;
  *describe*) echo "ERROR: (gcloud.iam.describe) NOT_FOUND: Unknown service account" >&2; exit 1 ;;
esac
"""


_REFUSED = """\
case "$*" in "services list"*) echo enabled; exit 0 ;; esac
echo "ERROR: (gcloud.compute.networks.describe) Could not fetch resource:" >&2
echo " - Required 'compute.networks.get' permission for 'projects/lab'" >&2; exit 1
"""


def test_the_script_makes_what_is_missing_and_leaves_the_rest(tmp_path: Any) -> None:
    """With a gcloud that only records its arguments."""
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    (tmp_path / "log").write_text("")
    there = "compute networks describe spotd --project=lab\n"
    (tmp_path / "there").write_text(there)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    environ |= {"LOG": str(tmp_path / "log"), "THERE": str(tmp_path / "there"), "PAUSE": "0"}
    text = script(steps(facts("lab")))
    done = subprocess.run(
        ["bash", "-c", text], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    received = (tmp_path / "log").read_text()
    assert "compute networks create spotd" not in received
    assert "compute networks subnets create spotd --region=us-central1 --project=lab" in received
    assert "made: the firewall rule spotd-login" in done.stdout
    assert "iam roles create spotd_control_0123456789ab_0" in received
    (tmp_path / "log").write_text("")
    line, deleted = ["bash", "-c", text], {**environ, "DELETED": "1"}
    done = subprocess.run(line, env=deleted, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    received = (tmp_path / "log").read_text()
    assert "iam roles undelete spotd_control_0123456789ab_0" in received
    assert "iam roles create" not in received
    (tmp_path / "gcloud").write_text("#!/bin/sh\n" + _REFUSED)
    done = subprocess.run(
        ["bash", "-c", text], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Required 'compute.networks.get' permission" in done.stderr


def test_the_script_takes_out_what_an_earlier_one_bound(tmp_path: Path) -> None:
    """Otherwise a removed store would stay open to the box for ever."""
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    wanted = facts("lab")
    [right, *_] = [
        grant["condition"]["expression"]
        for grant in grants(wanted, CONTROL).values()
        if "condition" in grant
    ]
    (tmp_path / "bound").write_text(f"{right}\nresource.name == 'old' || a\n\n")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "THERE": str(tmp_path / "there")}
    environ |= {"LOG": str(tmp_path / "log"), "BOUND": str(tmp_path / "bound"), "PAUSE": "0"}
    line = ["bash", "-c", script(steps(wanted))]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    received = (tmp_path / "log").read_text().splitlines()
    [resource_id] = [
        resource_id
        for resource_id, grant in grants(wanted, CONTROL).items()
        if grant.get("condition", {}).get("expression") == right
    ]
    role, member = (
        f"projects/lab/roles/{resource_id}",
        f"serviceAccount:{email_of(wanted, CONTROL)}",
    )
    who = f"projects remove-iam-policy-binding lab --member={member} --role={role} --condition="
    gone = [
        row.removeprefix(who).removesuffix(" --quiet") for row in received if row.startswith(who)
    ]
    assert gone == [f"^;^title={resource_id};expression=resource.name == 'old' || a", "None"]
    reported = f"bindings.role={role} AND bindings.members={member}"
    assert [row for row in received if f"--filter={reported} " in row]


PLUGINS = Path(os.environ.get("SPOTD_TERRAFORM_PLUGINS", "/nowhere"))


@pytest.mark.skipif(
    not (shutil.which("terraform") and [*PLUGINS.glob("*/hashicorp/google")]),
    reason="needs terraform, and SPOTD_TERRAFORM_PLUGINS: a mirror with the provider google",
)
@pytest.mark.parametrize("network", NETWORKS)
def test_terraform_takes_the_module(tmp_path: Path, network: str) -> None:
    (tmp_path / "main.tf").write_text(terraform(facts("lab", network)))
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
        input=terraform(facts("lab", network)),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
