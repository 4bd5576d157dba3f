"""What spotd needs in a project of Google Cloud: a network of its own, three service accounts and
what they may do. `spotctl init gcp` prints or applies it.

`Call.operation` is a verb, `Call.service` the host's first name, `parameters` have "path" and,
where there is one, "body". Two things are no single call: "bind" (the policy of a project is read,
changed and written back) and "bound" (it is looked at); apply.py knows them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from providers.gcp.launch import FIREWALL_TAG
from providers.gcp.policy import policies
from providers.gcp.readiness import SERVICES
from providers.iam.policy import CONTROL, NODE, REAPER, Document
from providers.iam.setup import Call, SetupFacts, Step

NETWORK = "spotd"  # and the subnetwork of each region
JUMP_TAG = "spotd-jump"  # of the jump host, which is yours to start
ROLES = (CONTROL, REAPER, NODE)
# What says who the machines of another cloud are: an account and a role there; a tenant, the object
# id of an identity there, and the ID URI of an application.
TRUSTS = {"aws": ("ACCOUNT-ID", "ROLE"), "azure": ("TENANT", "OBJECT-ID", "AUDIENCE")}
USER = "roles/iam.workloadIdentityUser"
_EXCHANGE = ("sts.googleapis.com", "iamcredentials.googleapis.com")


def steps(facts: SetupFacts) -> list[Step]:
    """In an order in which each finds what it needs."""
    project = project_of(facts)
    found = [_service(project, name) for name in services(facts)]
    found += _network(project, facts)
    for role in ROLES:
        found += _account(project, facts, role)
    if facts.trusts:
        found += _trusts(project, facts)
    return found


def services(facts: SetupFacts) -> tuple[str, ...]:
    """The APIs that are to be enabled."""
    return (*SERVICES, "iam.googleapis.com", *(_EXCHANGE if facts.trusts else ()))


def pool_of(facts: SetupFacts) -> str:
    """The id of the pool of workload identities."""
    return f"spotd-{facts.policy.deployment}"


def believed(facts: SetupFacts) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Cloud -> (its provider in the pool, what that is, whom of it the account trusts)."""
    found: dict[str, tuple[str, dict[str, Any], str]] = {}
    for cloud, words in facts.trusts.items():
        if cloud == "aws":
            told: dict[str, Any] = {"aws": {"accountId": words[0]}}
            who = f"attribute.aws_role/arn:aws:sts::{words[0]}:assumed-role/{words[1]}"
        else:
            issuer = f"https://sts.windows.net/{words[0]}/"
            told = {"oidc": {"issuerUri": issuer, "allowedAudiences": [words[2]]}}
            told["attributeMapping"] = {"google.subject": "assertion.sub"}
            who = f"subject/{words[1]}"
        found[cloud] = (f"spotd-{cloud}", told, who)
    return found


def member_of(pool: str, who: str) -> str:
    """`pool` is its full name, which has the project's number."""
    kind = "principal" if who.startswith("subject/") else "principalSet"
    return f"{kind}://iam.googleapis.com/{pool}/{who}"


def machines_are(facts: SetupFacts) -> dict[str, str]:
    """What the configuration says of who machines are."""
    return {"node_service_account": email_of(facts, NODE)}


def federate(facts: SetupFacts) -> dict[str, Any]:
    """What [stores.NAME.federate] says of whom `trusts` are."""
    told = {"kind": "gcp", "clouds": [*facts.trusts], "service_account": email_of(facts, NODE)}
    audience = {"audience": facts.trusts["azure"][2]} if "azure" in facts.trusts else {}
    return {**told, "pool": "$POOL", **audience}


def project_of(facts: SetupFacts) -> str:
    return facts.policy.account.get("project", "PROJECT")


def blocks(regions: Sequence[str]) -> dict[str, str]:
    """Region -> the addresses of its machines."""
    return {
        region: f"10.{213 + number // 16}.{number % 16 * 16}.0/20"
        for number, region in enumerate(regions)
    }


def rules(facts: SetupFacts) -> dict[str, dict[str, Any]]:
    """Name -> a firewall rule, as the API has it: who gets in to which machines."""
    ssh, anything = [{"IPProtocol": "tcp", "ports": ["22"]}], [{"IPProtocol": "all"}]
    login: dict[str, Any] = {"sourceRanges": [facts.box]}
    found: dict[str, dict[str, Any]] = {}
    if facts.network == "jump":
        found["spotd-jump"] = {**login, "targetTags": [JUMP_TAG], "allowed": ssh}
        login = {"sourceTags": [JUMP_TAG]}
    found["spotd-login"] = {**login, "targetTags": [FIREWALL_TAG], "allowed": ssh}
    own = {"sourceTags": [FIREWALL_TAG], "targetTags": [FIREWALL_TAG]}
    found["spotd-among-themselves"] = {**own, "allowed": anything}
    return found


def grants(facts: SetupFacts, role: str) -> dict[str, Document]:
    """Id of a custom role -> what it has, and the condition of its binding."""
    documents = policies(facts.policy)[facts.policy.name(role)]["grants"]
    name = facts.policy.name(role).replace("-", "_")
    return {f"{name}_{number}": grant for number, grant in enumerate(documents)}


def email_of(facts: SetupFacts, role: str) -> str:
    return f"{facts.policy.name(role)}@{project_of(facts)}.iam.gserviceaccount.com"


def _service(project: str, name: str) -> Step:
    path = f"/v1/projects/{project}/services/{name}"
    enabled = f"--enabled --filter=config.name={name} --format='value(config.name)'"
    return Step(
        f"the API {name}",
        _call("serviceusage", "GET", path, answer="state == 'ENABLED'"),
        _call("serviceusage", "POST", f"{path}:enable", {}),
        commands=(
            f"gcloud services list --project={project} {enabled} | grep -q .",
            f"gcloud services enable {name} --project={project}",
        ),
    )


def _network(project: str, facts: SetupFacts) -> Iterator[Step]:
    root = f"/compute/v1/projects/{project}"
    link = f"projects/{project}/global/networks/{NETWORK}"
    yield Step(
        f"the network {NETWORK}",
        _call("compute", "GET", f"{root}/global/networks/{NETWORK}", answer="name"),
        _call(
            "compute",
            "POST",
            f"{root}/global/networks",
            {"name": NETWORK, "autoCreateSubnetworks": False},
        ),
        commands=_gcloud(project, f"networks {{}} {NETWORK}", "--subnet-mode=custom"),
    )
    for region, block in blocks(facts.policy.regions).items():
        place = f"{root}/regions/{region}/subnetworks"
        body = {
            "name": NETWORK,
            "network": link,
            "ipCidrRange": block,
            "privateIpGoogleAccess": True,  # of machines without an address of the internet
        }
        yield Step(
            f"{region}: its subnetwork",
            _call("compute", "GET", f"{place}/{NETWORK}", answer="name"),
            _call("compute", "POST", place, body),
            commands=_gcloud(
                project,
                f"networks subnets {{}} {NETWORK} --region={region}",
                f"--network={NETWORK} --range={block} --enable-private-ip-google-access",
            ),
        )
    for name, rule in rules(facts).items():
        place = f"{root}/global/firewalls"
        body = {"name": name, "network": link, "direction": "INGRESS", **rule}
        yield Step(
            f"the firewall rule {name}",
            _call("compute", "GET", f"{place}/{name}", answer="name"),
            _call("compute", "POST", place, body),
            commands=_gcloud(project, f"firewall-rules {{}} {name}", _rule_options(rule)),
        )


def _rule_options(rule: Mapping[str, Any]) -> str:
    allowed = rule["allowed"][0]
    what = ",".join(f"{allowed['IPProtocol']}:{port}" for port in allowed.get("ports", ())) or "all"
    words = [f"--network={NETWORK}", f"--allow={what}"]
    words += [
        f"--{option}={','.join(rule[key])}"
        for key, option in (
            ("sourceRanges", "source-ranges"),
            ("sourceTags", "source-tags"),
            ("targetTags", "target-tags"),
        )
        if key in rule
    ]
    return " ".join(words)


def _account(project: str, facts: SetupFacts, role: str) -> Iterator[Step]:
    name, email = facts.policy.name(role), email_of(facts, role)
    place = f"/v1/projects/{project}/serviceAccounts"
    yield Step(
        f"the service account {name}",
        _call("iam", "GET", f"{place}/{email}", answer="email"),
        _call("iam", "POST", place, {"accountId": name, "serviceAccount": {"displayName": name}}),
        commands=(
            f"gcloud iam service-accounts describe {email} --project={project}",
            f"gcloud iam service-accounts create {name} --project={project}",
        ),
    )
    for ident, grant in grants(facts, role).items():
        yield from _role(project, ident, grant["includedPermissions"])
        yield _binding(project, ident, email, grant.get("condition", {}).get("expression", ""))


def _role(project: str, ident: str, permissions: Sequence[str]) -> Iterator[Step]:
    place = f"/v1/projects/{project}/roles"
    words = f"--project={project} --permissions={','.join(permissions)} --quiet"
    role = {"title": ident, "includedPermissions": [*permissions], "stage": "GA"}
    describe = f"gcloud iam roles describe {ident} --project={project}"
    undelete = f"gcloud iam roles undelete {ident} --project={project} --quiet"
    create = f"gcloud iam roles create {ident} --title={ident} --stage=GA {words}"
    yield Step(
        f"the role {ident}",
        # One that was deleted is shown for a week, and can be had again, but it gives nothing.
        _call("iam", "GET", f"{place}/{ident}", answer="!deleted && name"),
        _call("iam", "POST", place, {"roleId": ident, "role": role}),
        commands=(
            f"told=$({describe} --format='value(deleted)') && [ \"$told\" != True ]",
            f"{undelete} 2>/dev/null || {create}",
        ),
    )
    as_text = json.dumps(sorted(permissions))
    listed = f"{describe} --format='value(includedPermissions)' | tr ';' '\\n' | sort | tr '\\n' ,"
    told = shlex.quote("".join(f"{one}," for one in sorted(permissions)))
    yield Step(
        f"what the role {ident} may do",
        _call("iam", "GET", f"{place}/{ident}", answer=f"sort(includedPermissions) == `{as_text}`"),
        _call("iam", "PATCH", f"{place}/{ident}?updateMask=includedPermissions", role),
        commands=(f'[ "$({listed})" = {told} ]', f"gcloud iam roles update {ident} {words}"),
    )


def _binding(project: str, ident: str, email: str, expression: str) -> Step:
    condition = {"title": ident, "expression": expression} if expression else {}
    role, member = f"projects/{project}/roles/{ident}", f"serviceAccount:{email}"
    binding = {"role": role, "member": member, "condition": condition}
    asked = {"path": f"/v3/projects/{project}", "body": binding}
    flag = f"^;^title={ident};expression={expression}" if expression else "None"
    bind = (
        f"gcloud projects add-iam-policy-binding {project} --member={member} "
        f"--role={role} --condition={shlex.quote(flag)} --quiet"
    )
    only = shlex.join([project, member, role, ident, expression])
    return Step(
        f"that {email.partition('@')[0]} has the role {ident}",
        Call("", "cloudresourcemanager", "bound", asked),
        Call("", "cloudresourcemanager", "bind", asked),
        commands=("false", f"{bind}\nonly {only}"),  # it adds none that is there already
    )


def _trusts(project: str, facts: SetupFacts) -> Iterator[Step]:
    """A pool, a provider in it for each cloud, and that the machines' account trusts one there."""
    pool, place = pool_of(facts), f"/v1/projects/{project}/locations/global/workloadIdentityPools"
    where = f"--location=global --project={project}"
    tool = "gcloud iam workload-identity-pools"
    describe = f"{tool} describe {pool} {where} --format='value(name)'"
    alive = "state != 'DELETED' && name"
    yield Step(
        f"the pool of identities {pool}",
        _call("iam", "GET", f"{place}/{pool}", answer=alive),
        _made("iam", f"{place}?workloadIdentityPoolId={pool}", {}, f"{place}/{pool}", "name"),
        name="POOL",
        commands=(describe, f"{tool} create {pool} {where}"),
    )
    email = email_of(facts, NODE)
    for cloud, (name, told, who) in believed(facts).items():
        yield _provider(name, told, f"{place}/{pool}/providers", (tool, pool, where))
        asked = {
            "path": f"/v1/projects/{project}/serviceAccounts/{email}",
            "body": {"role": USER, "member": member_of("$POOL", who), "condition": {}},
        }
        member = member_of(f"$({describe})", who)
        bind = (
            f"gcloud iam service-accounts add-iam-policy-binding {email} --project={project} "
            f'--role={USER} --member="{member}" --condition=None --quiet'
        )
        yield Step(
            f"that machines of {cloud} may be {facts.policy.name(NODE)}",
            Call("", "iam", "bound", asked),
            Call("", "iam", "bind", asked),
            commands=("false", bind),
        )


def _provider(name: str, told: Mapping[str, Any], place: str, tool: tuple[str, str, str]) -> Step:
    command, pool, where = tool
    kind, what = ("aws", told["aws"]) if "aws" in told else ("oidc", told["oidc"])
    words = f"--workload-identity-pool={pool} {where}"
    if kind == "aws":
        options = f"--account-id={what['accountId']}"
    else:
        mapping = "--attribute-mapping=google.subject=assertion.sub"
        audience = shlex.quote(what["allowedAudiences"][0])
        options = f"--issuer-uri={what['issuerUri']} --allowed-audiences={audience} {mapping}"
    return Step(
        f"the provider {name} of the pool",
        _call("iam", "GET", f"{place}/{name}", answer="state != 'DELETED' && name"),
        _made("iam", f"{place}?workloadIdentityPoolProviderId={name}", told, f"{place}/{name}"),
        commands=(
            f"{command} providers describe {name} {words}",
            f"{command} providers create-{kind} {name} {words} {options}",
        ),
    )


def _made(service: str, path: str, body: Mapping[str, Any], there: str, answer: str = "") -> Call:
    """A POST that makes what is then at `there`, whose answer counts."""
    return Call("", service, "POST", {"path": path, "body": body, "then": there}, answer)


def _gcloud(project: str, thing: str, options: str) -> tuple[str, str]:
    describe, create = thing.format("describe"), thing.format("create")
    return (
        f"gcloud compute {describe} --project={project}",
        f"gcloud compute {create} --project={project} {options}",
    )


def _call(
    service: str, verb: str, path: str, body: Mapping[str, Any] | None = None, answer: str = ""
) -> Call:
    parameters: dict[str, Any] = {"path": path}
    return Call("", service, verb, parameters | ({} if body is None else {"body": body}), answer)
