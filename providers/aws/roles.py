"""Who may do what in an AWS account: roles with their policies, and the instance profiles by which
machines have them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from providers.aws.policy import policies
from providers.iam.policy import CONTROL, INTERRUPT, NODE, REAPER, REHEARSE, Document
from providers.iam.setup import Call, SetupFacts, Step

WEB = "web"  # of machines of other clouds: what machines here may do
HOME = "us-east-1"  # of IAM and STS, which have no region
# Role -> policies that it has beside its own.
_ROLES = {CONTROL: (REHEARSE,), REAPER: (), NODE: (), INTERRUPT: ()}


def role_steps(facts: SetupFacts) -> Iterator[Step]:
    """All of them."""
    yield from _issuer(facts)
    for name, (trusted, documents) in roles(facts).items():
        yield from _role(name, trusted, documents)
        if is_of_machines(name):
            yield from _profile(name)


def roles(facts: SetupFacts) -> dict[str, tuple[Document, dict[str, Document]]]:
    """Name -> (who may have it, what it may do by the names of its policies)."""
    name, documents = facts.policy.name, policies(facts.policy)
    found = {
        name(role): (_trust(role), {name(one): documents[name(one)] for one in (role, *more)})
        for role, more in _ROLES.items()
    }
    if facts.trusts:
        found[name(WEB)] = (_web_trust(facts), {name(WEB): documents[name(NODE)]})
    return found


def entra(facts: SetupFacts) -> tuple[str, str]:
    """(issuer, audience) of the tokens of Azure's machines; "" where none are trusted."""
    if "azure" not in facts.trusts:
        return "", ""
    tenant, _, audience = facts.trusts["azure"]
    return f"sts.windows.net/{tenant}/", audience


def is_of_machines(name: str) -> bool:
    """Whether machines have the role, the box being one, and not a service of AWS's."""
    return not name.startswith((f"spotd-{INTERRUPT}-", f"spotd-{WEB}-"))


def _trust(role: str) -> Document:
    """Machines of EC2; the box's roles, too, whoever in the account is allowed to take them; that
    of experiments FIS alone, for experiments of this account."""
    principal: dict[str, str] = {"Service": "ec2.amazonaws.com"}
    statement: Document = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    if role == INTERRUPT:
        principal["Service"] = "fis.amazonaws.com"
        statement["Condition"] = {"StringEquals": {"aws:SourceAccount": "$ACCOUNT"}}
    elif role != NODE:
        principal["AWS"] = "arn:aws:iam::$ACCOUNT:root"
    return {"Version": "2012-10-17", "Statement": [statement]}


def _web_trust(facts: SetupFacts) -> Document:
    """Machines of other clouds, by the tokens that these sign for them."""
    statements = []
    for cloud, words in facts.trusts.items():
        if cloud == "gcp":
            issuer, equals = "accounts.google.com", {"oaud": words[1], "sub": words[0]}
            principal = issuer
        else:
            issuer, equals = entra(facts)[0], {"aud": words[2], "sub": words[1]}
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
    """Entra is nobody to AWS before it is told; Google is known."""
    issuer, audience = entra(facts)
    if issuer:
        arn = f"arn:aws:iam::$ACCOUNT:oidc-provider/{issuer}"
        look, make = "get_open_id_connect_provider", "create_open_id_connect_provider"
        told = {"Url": f"https://{issuer}", "ClientIDList": [audience]}
        yield Step(
            f"the identity provider {issuer}",
            Call(HOME, "iam", look, {"OpenIDConnectProviderArn": arn}, "Url"),
            Call(HOME, "iam", make, told, "OpenIDConnectProviderArn"),
        )


def _role(name: str, trusted: Document, documents: Mapping[str, Document]) -> Iterator[Step]:
    def iam(operation: str, answer: str, **parameters: Any) -> Call:
        return Call(HOME, "iam", operation, parameters, answer)

    yield Step(
        f"the role {name}",
        iam("get_role", "Role.Arn", RoleName=name),
        iam("create_role", "Role.Arn", RoleName=name, AssumeRolePolicyDocument=json.dumps(trusted)),
    )
    if name.startswith(f"spotd-{WEB}-"):  # which others a set-up names may change
        as_text = json.dumps(trusted)
        yield Step(
            f"who may have the role {name}",
            iam("get_role", f"Role.AssumeRolePolicyDocument == `{as_text}`", RoleName=name),
            iam("update_assume_role_policy", "", RoleName=name, PolicyDocument=as_text),
        )
    for called, document in documents.items():
        policy, as_text = {"RoleName": name, "PolicyName": called}, json.dumps(document)
        besides = "" if called == name else f", by {called}"
        yield Step(
            f"what the role {name} may do{besides}",
            iam("get_role_policy", f"PolicyDocument == `{as_text}`", **policy),
            iam("put_role_policy", "", **policy, PolicyDocument=as_text),
        )


def _profile(name: str) -> Iterator[Step]:
    """By which machines have the role of that name."""

    def iam(operation: str, answer: str, **parameters: Any) -> Call:
        return Call(HOME, "iam", operation, parameters, answer)

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
