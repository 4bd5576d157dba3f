"""Set-up of a Google Cloud project: a network of its own, three service accounts and their
permissions. `spotctl init gcp` prints or applies it.

`Call.operation` is an HTTP verb, `Call.service` the first label of the host, `parameters` have
"path" and optionally "body". Two operations are not single requests: "bound" checks an IAM policy,
and "bind" reads it, changes it and writes it back; apply.py implements them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from providers.federation import pool_provider
from providers.gcp.launch import FIREWALL_TAG
from providers.gcp.policy import policies
from providers.gcp.readiness import SERVICES
from providers.iam.policy import CONTROL, NODE, REAPER, Document
from providers.iam.setup import Call, SetupFacts, Step

NETWORK = "spotd"  # and the subnetwork of each region
JUMP_TAG = "spotd-jump"  # of the jump host, which the user starts
ROLES = (CONTROL, REAPER, NODE)
WORKLOAD_IDENTITY_USER = "roles/iam.workloadIdentityUser"
_EXCHANGE = ("sts.googleapis.com", "iamcredentials.googleapis.com")


def steps(facts: SetupFacts) -> list[Step]:
    """Return the steps in dependency order."""
    project = project_of(facts)
    result = [_service(project, name) for name in services(facts)]
    result += _network(project, facts)
    for role in ROLES:
        result += _account(project, facts, role)
    if facts.trusts:
        result += _trusts(project, facts)
    return result


def services(facts: SetupFacts) -> tuple[str, ...]:
    """Return the APIs to enable."""
    return (*SERVICES, "iam.googleapis.com", *(_EXCHANGE if facts.trusts else ()))


def pool_of(facts: SetupFacts) -> str:
    """Return the id of the workload identity pool."""
    return f"spotd-{facts.policy.deployment}"


def trusted_providers(facts: SetupFacts) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Return cloud -> (its provider in the pool, that provider's settings, the trusted
    principal)."""
    providers: dict[str, tuple[str, dict[str, Any], str]] = {}
    for cloud, arguments in facts.trusts.items():
        if cloud == "aws":
            settings: dict[str, Any] = {"aws": {"accountId": arguments[0]}}
            principal = (
                f"attribute.aws_role/arn:aws:sts::{arguments[0]}:assumed-role/{arguments[1]}"
            )
        else:
            issuer = f"https://sts.windows.net/{arguments[0]}/"
            settings = {"oidc": {"issuerUri": issuer, "allowedAudiences": [arguments[2]]}}
            settings["attributeMapping"] = {"google.subject": "assertion.sub"}
            principal = f"subject/{arguments[1]}"
        providers[cloud] = (pool_provider(cloud), settings, principal)
    return providers


def member_of(pool: str, principal: str) -> str:
    """Return the IAM member of a principal. `pool` is the full name with the project number."""
    kind = "principal" if principal.startswith("subject/") else "principalSet"
    return f"{kind}://iam.googleapis.com/{pool}/{principal}"


def node_identity_settings(facts: SetupFacts) -> dict[str, str]:
    """Return the configuration settings for the identity of machines."""
    return {"node_service_account": email_of(facts, NODE)}


def federation_settings(facts: SetupFacts) -> dict[str, Any]:
    """Return the [stores.NAME.federate] settings for the trusted clouds."""
    settings = {"kind": "gcp", "clouds": [*facts.trusts], "service_account": email_of(facts, NODE)}
    audience = {"audience": facts.trusts["azure"][2]} if "azure" in facts.trusts else {}
    return {**settings, "pool": "$POOL", **audience}


def project_of(facts: SetupFacts) -> str:
    return facts.policy.account.get("project", "PROJECT")


def blocks(regions: Sequence[str]) -> dict[str, str]:
    """Return region -> CIDR of its machines."""
    return {
        region: f"10.{213 + number // 16}.{number % 16 * 16}.0/20"
        for number, region in enumerate(regions)
    }


def rules(facts: SetupFacts) -> dict[str, dict[str, Any]]:
    """Return name -> firewall rule in the API's form."""
    ssh, anything = [{"IPProtocol": "tcp", "ports": ["22"]}], [{"IPProtocol": "all"}]
    login: dict[str, Any] = {"sourceRanges": [facts.box]}
    result: dict[str, dict[str, Any]] = {}
    if facts.network == "jump":
        result["spotd-jump"] = {**login, "targetTags": [JUMP_TAG], "allowed": ssh}
        login = {"sourceTags": [JUMP_TAG]}
    result["spotd-login"] = {**login, "targetTags": [FIREWALL_TAG], "allowed": ssh}
    internal = {"sourceTags": [FIREWALL_TAG], "targetTags": [FIREWALL_TAG]}
    result["spotd-among-themselves"] = {**internal, "allowed": anything}
    return result


def grants(facts: SetupFacts, role: str) -> dict[str, Document]:
    """Return id of a custom role -> its permissions and the condition of its binding."""
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
        _call("serviceusage", "GET", path, query="state == 'ENABLED'"),
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
        _call("compute", "GET", f"{root}/global/networks/{NETWORK}", query="name"),
        _call(
            "compute",
            "POST",
            f"{root}/global/networks",
            {"name": NETWORK, "autoCreateSubnetworks": False},
        ),
        commands=_gcloud(project, f"networks {{}} {NETWORK}", "--subnet-mode=custom"),
    )
    for region, block in blocks(facts.policy.regions).items():
        collection = f"{root}/regions/{region}/subnetworks"
        body = {
            "name": NETWORK,
            "network": link,
            "ipCidrRange": block,
            "privateIpGoogleAccess": True,  # for machines without a public address
        }
        yield Step(
            f"{region}: its subnetwork",
            _call("compute", "GET", f"{collection}/{NETWORK}", query="name"),
            _call("compute", "POST", collection, body),
            commands=_gcloud(
                project,
                f"networks subnets {{}} {NETWORK} --region={region}",
                f"--network={NETWORK} --range={block} --enable-private-ip-google-access",
            ),
        )
    for name, rule in rules(facts).items():
        collection = f"{root}/global/firewalls"
        body = {"name": name, "network": link, "direction": "INGRESS", **rule}
        yield Step(
            f"the firewall rule {name}",
            _call("compute", "GET", f"{collection}/{name}", query="name"),
            _call("compute", "POST", collection, body),
            commands=_gcloud(project, f"firewall-rules {{}} {name}", _rule_options(rule)),
        )


def _rule_options(rule: Mapping[str, Any]) -> str:
    allowed = rule["allowed"][0]
    allowed_ports = (
        ",".join(f"{allowed['IPProtocol']}:{port}" for port in allowed.get("ports", ())) or "all"
    )
    options = [f"--network={NETWORK}", f"--allow={allowed_ports}"]
    options += [
        f"--{option}={','.join(rule[key])}"
        for key, option in (
            ("sourceRanges", "source-ranges"),
            ("sourceTags", "source-tags"),
            ("targetTags", "target-tags"),
        )
        if key in rule
    ]
    return " ".join(options)


def _account(project: str, facts: SetupFacts, role: str) -> Iterator[Step]:
    name, email = facts.policy.name(role), email_of(facts, role)
    collection = f"/v1/projects/{project}/serviceAccounts"
    yield Step(
        f"the service account {name}",
        _call("iam", "GET", f"{collection}/{email}", query="email"),
        _call(
            "iam", "POST", collection, {"accountId": name, "serviceAccount": {"displayName": name}}
        ),
        commands=(
            f"gcloud iam service-accounts describe {email} --project={project}",
            f"gcloud iam service-accounts create {name} --project={project}",
        ),
    )
    for role_id, grant in grants(facts, role).items():
        yield from _role(project, role_id, grant["includedPermissions"])
        yield _binding(project, role_id, email, grant.get("condition", {}).get("expression", ""))


def _role(project: str, role_id: str, permissions: Sequence[str]) -> Iterator[Step]:
    collection = f"/v1/projects/{project}/roles"
    options = f"--project={project} --permissions={','.join(permissions)} --quiet"
    role = {"title": role_id, "includedPermissions": [*permissions], "stage": "GA"}
    describe = f"gcloud iam roles describe {role_id} --project={project}"
    undelete = f"gcloud iam roles undelete {role_id} --project={project} --quiet"
    create = f"gcloud iam roles create {role_id} --title={role_id} --stage=GA {options}"
    yield Step(
        f"the role {role_id}",
        # A deleted role is listed for a week and can be undeleted, but it grants nothing.
        _call("iam", "GET", f"{collection}/{role_id}", query="!deleted && name"),
        _call("iam", "POST", collection, {"roleId": role_id, "role": role}),
        commands=(
            f"told=$({describe} --format='value(deleted)') && [ \"$told\" != True ]",
            f"{undelete} 2>/dev/null || {create}",
        ),
    )
    as_text = json.dumps(sorted(permissions))
    list_permissions = (
        f"{describe} --format='value(includedPermissions)' | tr ';' '\\n' | sort | tr '\\n' ,"
    )
    expected = shlex.quote("".join(f"{permission}," for permission in sorted(permissions)))
    yield Step(
        f"what the role {role_id} may do",
        _call(
            "iam",
            "GET",
            f"{collection}/{role_id}",
            query=f"sort(includedPermissions) == `{as_text}`",
        ),
        _call("iam", "PATCH", f"{collection}/{role_id}?updateMask=includedPermissions", role),
        commands=(
            f'[ "$({list_permissions})" = {expected} ]',
            f"gcloud iam roles update {role_id} {options}",
        ),
    )


def _binding(project: str, role_id: str, email: str, expression: str) -> Step:
    condition = {"title": role_id, "expression": expression} if expression else {}
    role, member = f"projects/{project}/roles/{role_id}", f"serviceAccount:{email}"
    binding = {"role": role, "member": member, "condition": condition}
    parameters = {"path": f"/v3/projects/{project}", "body": binding}
    flag = f"^;^title={role_id};expression={expression}" if expression else "None"
    bind = (
        f"gcloud projects add-iam-policy-binding {project} --member={member} "
        f"--role={role} --condition={shlex.quote(flag)} --quiet"
    )
    only = shlex.join([project, member, role, role_id, expression])
    return Step(
        f"that {email.partition('@')[0]} has the role {role_id}",
        Call("", "cloudresourcemanager", "bound", parameters),
        Call("", "cloudresourcemanager", "bind", parameters),
        commands=("false", f"{bind}\nonly {only}"),  # adding an existing binding changes nothing
    )


def _trusts(project: str, facts: SetupFacts) -> Iterator[Step]:
    """Create a pool, a provider in it for each cloud, and bindings of their principals to the
    machines' account."""
    pool = pool_of(facts)
    collection = f"/v1/projects/{project}/locations/global/workloadIdentityPools"
    location_options = f"--location=global --project={project}"
    command = "gcloud iam workload-identity-pools"
    describe = f"{command} describe {pool} {location_options} --format='value(name)'"
    alive = "state != 'DELETED' && name"
    yield Step(
        f"the pool of identities {pool}",
        _call("iam", "GET", f"{collection}/{pool}", query=alive),
        _made(
            "iam", f"{collection}?workloadIdentityPoolId={pool}", {}, f"{collection}/{pool}", "name"
        ),
        name="POOL",
        commands=(describe, f"{command} create {pool} {location_options}"),
    )
    email = email_of(facts, NODE)
    for cloud, (name, settings, principal) in trusted_providers(facts).items():
        yield _provider(
            name, settings, f"{collection}/{pool}/providers", (command, pool, location_options)
        )
        parameters = {
            "path": f"/v1/projects/{project}/serviceAccounts/{email}",
            "body": {
                "role": WORKLOAD_IDENTITY_USER,
                "member": member_of("$POOL", principal),
                "condition": {},
            },
        }
        member = member_of(f"$({describe})", principal)
        bind = (
            f"gcloud iam service-accounts add-iam-policy-binding {email} --project={project} "
            f'--role={WORKLOAD_IDENTITY_USER} --member="{member}" --condition=None --quiet'
        )
        yield Step(
            f"that machines of {cloud} may be {facts.policy.name(NODE)}",
            Call("", "iam", "bound", parameters),
            Call("", "iam", "bind", parameters),
            commands=("false", bind),
        )


def _provider(
    name: str, settings: Mapping[str, Any], collection: str, command_line: tuple[str, str, str]
) -> Step:
    command, pool, location_options = command_line
    kind, details = ("aws", settings["aws"]) if "aws" in settings else ("oidc", settings["oidc"])
    pool_options = f"--workload-identity-pool={pool} {location_options}"
    if kind == "aws":
        options = f"--account-id={details['accountId']}"
    else:
        mapping = "--attribute-mapping=google.subject=assertion.sub"
        audience = shlex.quote(details["allowedAudiences"][0])
        options = f"--issuer-uri={details['issuerUri']} --allowed-audiences={audience} {mapping}"
    return Step(
        f"the provider {name} of the pool",
        _call("iam", "GET", f"{collection}/{name}", query="state != 'DELETED' && name"),
        _made(
            "iam",
            f"{collection}?workloadIdentityPoolProviderId={name}",
            settings,
            f"{collection}/{name}",
        ),
        commands=(
            f"{command} providers describe {name} {pool_options}",
            f"{command} providers create-{kind} {name} {pool_options} {options}",
        ),
    )


def _made(
    service: str, path: str, body: Mapping[str, Any], resource_path: str, query: str = ""
) -> Call:
    """A POST that creates `resource_path`, which is then read for the answer."""
    return Call("", service, "POST", {"path": path, "body": body, "then": resource_path}, query)


def _gcloud(project: str, resource: str, options: str) -> tuple[str, str]:
    describe, create = resource.format("describe"), resource.format("create")
    return (
        f"gcloud compute {describe} --project={project}",
        f"gcloud compute {create} --project={project} {options}",
    )


def _call(
    service: str, verb: str, path: str, body: Mapping[str, Any] | None = None, query: str = ""
) -> Call:
    parameters: dict[str, Any] = {"path": path}
    return Call("", service, verb, parameters | ({} if body is None else {"body": body}), query)
