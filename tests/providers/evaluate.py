"""Evaluate policy documents by the clouds' own rules, as far as spotd uses them.

An unknown element raises: a document may not use anything that no test understands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

Document = Mapping[str, Any]


# --- AWS: an explicit deny wins, then an allow, else no


def aws_allows(document: Document, action: str, resource: str = "*", **context: str) -> bool:
    """`context` has condition keys, written with "__" for ":" and "___" for "/"."""
    keys = {k.replace("___", "/").replace("__", ":").lower(): v for k, v in context.items()}
    effects = {
        statement["Effect"]
        for statement in document["Statement"]
        if _statement_fits(statement, action, resource, keys)
    }
    assert effects <= {"Allow", "Deny"}
    return effects == {"Allow"}


def _statement_fits(
    statement: Document, action: str, resource: str, keys: Mapping[str, Any]
) -> bool:
    known = {"Sid", "Effect", "Action", "Resource", "NotResource", "Condition"}
    assert set(statement) <= known, statement
    assert ("Resource" in statement) != ("NotResource" in statement), statement
    if not any(_like(action.lower(), pattern.lower()) for pattern in statement["Action"]):
        return False
    patterns = statement.get("Resource", statement.get("NotResource"))
    if any(_like(resource, pattern) for pattern in patterns) == ("NotResource" in statement):
        return False
    return all(
        _condition_fits(operator, keys.get(key.lower()), wanted)
        for operator, tests in statement.get("Condition", {}).items()
        for key, wanted in tests.items()
    )


def _condition_fits(operator: str, value: Any, wanted: str | Sequence[str]) -> bool:
    """A missing key matches nothing, except every "ForAllValues". Multi-valued keys are
    comma-separated."""
    values = [wanted] if isinstance(wanted, str) else wanted
    if operator == "Null":
        return str(value is None).lower() in values
    if operator == "ForAllValues:StringEquals":
        return value is None or set(value.split(",")) <= set(values)
    assert operator in ("StringEquals", "StringLike", "NumericLessThanEquals"), operator
    if value is None:
        return False
    if operator == "NumericLessThanEquals":
        return any(int(value) <= int(v) for v in values)
    return any(value == v if operator == "StringEquals" else _like(value, v) for v in values)


def _like(value: str, pattern: str) -> bool:
    return fnmatchcase(value, re.sub(r"([\[\]])", r"[\1]", pattern))


# --- Google Cloud: any grant whose condition holds, unless denied


def gcp_allows(document: Document, permission: str, name: str = "", listing: str = "") -> bool:
    """Evaluate on the resource called `name`, or for listing a prefix."""
    assert set(document) <= {"grants", "deny"}
    service, rest = permission.split(".", 1)
    full = f"{service}.googleapis.com/{rest}"
    if any(full in rule["deniedPermissions"] for rule in document.get("deny", ())):
        return False
    return any(
        permission in grant["includedPermissions"]
        and ("condition" not in grant or _cel(grant["condition"]["expression"], name, listing))
        for grant in document["grants"]
    )


_LISTED = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
_CEL = (
    (re.compile(re.escape(_LISTED) + r'\.startsWith\("([^"]*)"\)'), "listing"),
    (re.compile(r'resource\.name\.extract\("([^"]*)"\)\.startsWith\("([^"]*)"\)'), "extract"),
    (re.compile(r'resource\.name\.startsWith\("([^"]*)"\)'), "name"),
    (re.compile(r'resource\.name == "([^"]*)"'), "equal"),
)


def _cel(expression: str, name: str, listing: str) -> bool:
    """Evaluate the CEL expressions that spotd uses, with "&&", "||" and parentheses."""

    def judge(kind: str, found: re.Match[str]) -> str:
        if kind == "listing":
            return str(listing.startswith(found[1]))  # "" is what CEL has where nothing is listed
        if kind == "extract":
            return str(_extract(found[1], name).startswith(found[2]))
        if kind == "name":
            return str(bool(name) and name.startswith(found[1]))
        return str(name == found[1])

    for pattern, kind in _CEL:
        expression = pattern.sub(lambda found, kind=kind: judge(kind, found), expression)
    plain = expression.replace("&&", "and").replace("||", "or")
    assert re.fullmatch(r"(True|False|and|or|[() ])+", plain), f"not understood: {expression}"
    return bool(eval(plain))


def _extract(template: str, name: str) -> str:
    """CEL's extract: the text between the literals before and after {x}."""
    before, behind = re.split(r"\{\w+\}", template)
    _, result, rest = name.partition(before)
    if not result:
        return ""
    return rest.partition(behind)[0] if behind and behind in rest else ("" if behind else rest)


# --- Azure: an action of the role within its scope, with the condition of its assignment


def azure_allows(
    document: Document, action: str, scope: str, container: str = "", path: str = ""
) -> bool:
    """`scope` is the scope of the resource; data actions name `container` and `path`."""
    assert document["NotActions"] == document["NotDataActions"] == []
    assert not any("*" in known for known in document["Actions"] + document["DataActions"])
    if not any(scope.startswith(f"{own}/") for own in document["AssignableScopes"]):
        return False
    if not path:
        return action in document["Actions"]
    if action not in document["DataActions"]:
        return False
    places = re.findall(
        r"\(@Resource\[[^\]]*containers:name\] StringEquals '([^']*)' "
        r"AND @Resource\[[^\]]*blobs:path\] StringLike '([^']*)\*'\)",
        document["AssignmentCondition"],
    )
    assert len(places) == document["AssignmentCondition"].count("(")
    return any(container == name and path.startswith(prefix) for name, prefix in places)
