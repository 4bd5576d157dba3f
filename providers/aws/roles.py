"""IAM roles in an AWS account with their policies, and the instance profiles that give them to
machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from providers.aws.policy import policies
from providers.iam.policy import CONTROL, INTERRUPT, NODE, REAPER, REHEARSE, Document
from providers.iam.setup import Call, SetupFacts, Step

WEB_IDENTITY = "web"  # the role of other clouds' machines, with the permissions of nodes
HOME_REGION = "us-east-1"  # for IAM and STS, which are global
# Role -> policies that it has in addition to its own.
_ROLES = {CONTROL: (REHEARSE,), REAPER: (), NODE: (), INTERRUPT: ()}


def role_steps(facts: SetupFacts) -> Iterator[Step]:
    """Yield the steps of all roles."""
    yield from _issuer(facts)
    for name, (trusted, documents) in roles(facts).items():
        yield from _role(name, trusted, documents)
        if has_instance_profile(name):
            yield from _profile(name)


def roles(facts: SetupFacts) -> dict[str, tuple[Document, dict[str, Document]]]:
    """Return role name -> (trust policy, permission policies by name)."""
    name, documents = facts.policy.name, policies(facts.policy)
    result = {
        name(role): (
            _trust(role),
            {name(policy_name): documents[name(policy_name)] for policy_name in (role, *extra)},
        )
        for role, extra in _ROLES.items()
    }
    if facts.trusts:
        result[name(WEB_IDENTITY)] = (
            _web_trust(facts),
            {name(WEB_IDENTITY): documents[name(NODE)]},
        )
    return result


def entra_issuer(facts: SetupFacts) -> tuple[str, str]:
    """Return (issuer, audience) of the tokens of Azure's machines; "" where they are not
    trusted."""
    if "azure" not in facts.trusts:
        return "", ""
    tenant, _, audience = facts.trusts["azure"]
    return f"sts.windows.net/{tenant}/", audience


def has_instance_profile(name: str) -> bool:
    """Whether EC2 machines have the role, the box included; others are for AWS services or other
    clouds."""
    return not name.startswith((f"spotd-{INTERRUPT}-", f"spotd-{WEB_IDENTITY}-"))


def _trust(role: str) -> Document:
    """Trust EC2 machines; for the box's roles also principals of the account that are allowed to
    assume them; for experiments only FIS, for experiments of this account."""
    principal: dict[str, str] = {"Service": "ec2.amazonaws.com"}
    statement: Document = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    if role == INTERRUPT:
        principal["Service"] = "fis.amazonaws.com"
        statement["Condition"] = {"StringEquals": {"aws:SourceAccount": "$ACCOUNT"}}
    elif role != NODE:
        principal["AWS"] = "arn:aws:iam::$ACCOUNT:root"
    return {"Version": "2012-10-17", "Statement": [statement]}


def _web_trust(facts: SetupFacts) -> Document:
    """Trust machines of other clouds, by their identity tokens."""
    statements = []
    for cloud, arguments in facts.trusts.items():
        if cloud == "gcp":
            issuer, equals = "accounts.google.com", {"oaud": arguments[1], "sub": arguments[0]}
            principal = issuer
        else:
            issuer, equals = entra_issuer(facts)[0], {"aud": arguments[2], "sub": arguments[1]}
            principal = f"arn:aws:iam::$ACCOUNT:oidc-provider/{issuer}"
        condition = {f"{issuer}:{key}": value for key, value in equals.items()}
        statements.append(
            {
                "Effect": "Allow",
                "Principal": {"Federated": principal},
                "Action": "sts:AssumeRoleWithWebIdentity",
                "Condition": {"StringEquals": condition},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def _issuer(facts: SetupFacts) -> Iterator[Step]:
    """Register Entra as an identity provider; AWS already knows Google."""
    issuer, audience = entra_issuer(facts)
    if issuer:
        arn = f"arn:aws:iam::$ACCOUNT:oidc-provider/{issuer}"
        get, create = "get_open_id_connect_provider", "create_open_id_connect_provider"
        parameters = {"Url": f"https://{issuer}", "ClientIDList": [audience]}
        yield Step(
            f"the identity provider {issuer}",
            Call(HOME_REGION, "iam", get, {"OpenIDConnectProviderArn": arn}, "Url"),
            Call(HOME_REGION, "iam", create, parameters, "OpenIDConnectProviderArn"),
        )


def _role(name: str, trusted: Document, documents: Mapping[str, Document]) -> Iterator[Step]:
    def iam(operation: str, query: str, **parameters: Any) -> Call:
        return Call(HOME_REGION, "iam", operation, parameters, query)

    yield Step(
        f"the role {name}",
        iam("get_role", "Role.Arn", RoleName=name),
        iam("create_role", "Role.Arn", RoleName=name, AssumeRolePolicyDocument=json.dumps(trusted)),
    )
    if name.startswith(f"spotd-{WEB_IDENTITY}-"):  # the trusted clouds may change between runs
        as_text = json.dumps(trusted)
        yield Step(
            f"who may have the role {name}",
            iam("get_role", f"Role.AssumeRolePolicyDocument == `{as_text}`", RoleName=name),
            iam("update_assume_role_policy", "", RoleName=name, PolicyDocument=as_text),
        )
    for policy_name, document in documents.items():
        policy, as_text = {"RoleName": name, "PolicyName": policy_name}, json.dumps(document)
        suffix = "" if policy_name == name else f", by {policy_name}"
        yield Step(
            f"what the role {name} may do{suffix}",
            iam("get_role_policy", f"PolicyDocument == `{as_text}`", **policy),
            iam("put_role_policy", "", **policy, PolicyDocument=as_text),
        )


def _profile(name: str) -> Iterator[Step]:
    """Create the instance profile that gives machines the role of that name."""

    def iam(operation: str, query: str, **parameters: Any) -> Call:
        return Call(HOME_REGION, "iam", operation, parameters, query)

    profile = {"InstanceProfileName": name}
    yield Step(
        f"the instance profile {name}",
        iam("get_instance_profile", "InstanceProfile.Arn", **profile),
        iam("create_instance_profile", "InstanceProfile.Arn", **profile),
    )
    yield Step(
        f"the role of the instance profile {name}",
        iam("get_instance_profile", "InstanceProfile.Roles[0].RoleName", **profile),
        iam("add_role_to_instance_profile", "", **profile, RoleName=name),
    )
