"""`envs` and `secrets`: values as text, overrides, and the places where `$NAME` is filled in."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from spotd.spec.document import Document
from spotd.spec.file import JobFile
from spotd.spec.findings import Findings

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The login to a registry of container images, as SkyPilot names it; the server is optional.
_USER, _PASSWORD = "SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD"
_OURS = frozenset(
    {"SKYPILOT_TASK_ID", "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"}
    | {"SKYPILOT_NUM_GPUS_PER_NODE"}
)


def read_environment(
    document: Document, overrides: Mapping[str, str], found: Findings
) -> dict[str, str]:
    """Values as text, by SkyPilot's rule: what YAML makes of them, as Python prints it."""
    given = document.data.get("envs")
    values: dict[str, str] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        path = ("envs", str(name))
        written = document.scalars.get(path)
        if str(name) in overrides:
            continue
        if value is None:
            found.refuse(path, "has no value", f'pass -e {name}=VALUE, or write {name}: ""')
        elif not isinstance(value, str | int | float):
            continue  # the model says what is wrong
        else:
            values[str(name)] = str(value)
            if written is not None and str(value) != written:
                found.warn(path, f"{written} is read as {str(value)!r}", "quote it to keep it")
    values |= overrides
    _check_names("envs", values, found)
    return values


def _check_names(key: str, values: Mapping[str, str], found: Findings) -> None:
    for name, value in values.items():
        if not _NAME.fullmatch(name):
            found.refuse((key, name), "is no name of a variable", "use letters, digits and _")
        elif name in _OURS or name.startswith("SPOTD_"):
            found.refuse((key, name), "is set by spotd itself", "choose another name")
        elif "\0" in value:
            found.refuse((key, name), "contains a zero byte", "remove it")


def read_secrets(
    file: JobFile,
    overrides: Mapping[str, str],
    environment: Mapping[str, str],
    known: Collection[str] | None,
    found: Findings,
) -> tuple[dict[str, str], list[str]]:
    """Name to value, and the names whose value the deployment keeps (`known`; None where that is
    not known). SkyPilot's references ("secrets:scope.NAME") are names like any other."""
    values: dict[str, str] = {}
    kept: list[str] = []
    for name, value in file.secrets.items():
        plain = name.removeprefix("secrets:").rsplit(".", 1)[-1]
        if value is not None and plain not in overrides:
            values[plain] = str(value)
        elif plain not in overrides and (known is None or plain in known):
            kept.append(plain)
        elif plain not in overrides:
            fix = (
                f"pass --secret {plain} (its value comes from your environment), "
                f"or have it kept for all jobs: spotctl secret set {plain}"
            )
            found.refuse(("secrets", name), "the secret has no value", fix)
    values |= overrides
    _check_names("secrets", {**dict.fromkeys(kept, ""), **values}, found)
    for name in {*values, *kept} & environment.keys():
        found.refuse(("secrets", name), "is in envs as well", "keep one of the two")
    return values, kept


def check_login(environment: Mapping[str, str], secrets: Collection[str], found: Findings) -> None:
    """A registry's login is whole, and its password is a secret."""
    known = {*environment, *secrets}
    if _PASSWORD in environment:
        found.refuse(("envs", _PASSWORD), "is shown with the job", "move it under secrets")
    elif (_USER in known) != (_PASSWORD in known):
        missing = _PASSWORD if _USER in known else _USER
        fix = "name it under secrets, and pass --secret or have it kept: spotctl secret set"
        found.refuse(("secrets", missing), "is missing from the registry's login", fix)


def fill(value: Any, environment: Mapping[str, str]) -> Any:
    """`value` with the variables of `envs`; what is no variable stays as it is."""
    if isinstance(value, str):
        return VARIABLE.sub(lambda hit: environment.get(hit[1] or hit[2], hit[0]), value)
    if isinstance(value, list):
        return [fill(item, environment) for item in value]
    if isinstance(value, dict):
        return {fill(key, environment): fill(item, environment) for key, item in value.items()}
    return value
