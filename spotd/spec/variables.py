"""Read `envs` and `secrets`: values as text, overrides, and substitution of `$NAME`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from spotd.spec.document import Document
from spotd.spec.file import JobFile
from spotd.spec.findings import Findings

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Login for a container registry, under the names that SkyPilot uses; the server is optional.
_USER, _PASSWORD = "SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD"
_RESERVED = frozenset(
    {"SKYPILOT_TASK_ID", "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"}
    | {"SKYPILOT_NUM_GPUS_PER_NODE"}
)


def read_environment(
    document: Document, overrides: Mapping[str, str], findings: Findings
) -> dict[str, str]:
    """Return the environment variables as text, as SkyPilot does: `str()` of the YAML value."""
    envs = document.data.get("envs")
    values: dict[str, str] = {}
    for name, value in envs.items() if isinstance(envs, dict) else ():
        path = ("envs", str(name))
        written = document.scalars.get(path)
        if str(name) in overrides:
            continue
        if value is None:
            findings.refuse(path, "has no value", f'pass -e {name}=VALUE, or write {name}: ""')
        elif not isinstance(value, str | int | float):
            continue  # validation of the model reports it
        else:
            values[str(name)] = str(value)
            if written is not None and str(value) != written:
                findings.warn(path, f"{written} is read as {str(value)!r}", "quote it to keep it")
    values |= overrides
    _check_names("envs", values, findings)
    return values


def _check_names(key: str, values: Mapping[str, str], findings: Findings) -> None:
    for name, value in values.items():
        if not _NAME.fullmatch(name):
            findings.refuse((key, name), "is not a name of a variable", "use letters, digits and _")
        elif name in _RESERVED or name.startswith("SPOTD_"):
            findings.refuse((key, name), "is set by spotd itself", "choose another name")
        elif "\0" in value:
            findings.refuse((key, name), "contains a zero byte", "remove it")


def read_secrets(
    file: JobFile,
    overrides: Mapping[str, str],
    environment: Mapping[str, str],
    known: Collection[str] | None,
    findings: Findings,
) -> tuple[dict[str, str], list[str]]:
    """Return the values by name, and the names whose values are stored by the daemon.

    `known` are the stored names; None if they are not known. SkyPilot's references
    ("secrets:scope.NAME") are read as NAME.
    """
    values: dict[str, str] = {}
    stored: list[str] = []
    for name, value in file.secrets.items():
        secret_name = name.removeprefix("secrets:").rsplit(".", 1)[-1]
        if value is not None and secret_name not in overrides:
            values[secret_name] = str(value)
        elif secret_name not in overrides and (known is None or secret_name in known):
            stored.append(secret_name)
        elif secret_name not in overrides:
            fix = (
                f"pass --secret {secret_name} (its value comes from your environment), "
                f"or store it for all jobs: spotctl secret set {secret_name}"
            )
            findings.refuse(("secrets", name), "the secret has no value", fix)
    values |= overrides
    _check_names("secrets", {**dict.fromkeys(stored, ""), **values}, findings)
    for name in {*values, *stored} & environment.keys():
        findings.refuse(("secrets", name), "is also in envs", "keep one of the two")
    return values, stored


def check_login(
    environment: Mapping[str, str], secrets: Collection[str], findings: Findings
) -> None:
    """Check that a registry login is complete and that its password is a secret."""
    known = {*environment, *secrets}
    if _PASSWORD in environment:
        findings.refuse(("envs", _PASSWORD), "is visible in the job", "move it under secrets")
    elif (_USER in known) != (_PASSWORD in known):
        missing = _PASSWORD if _USER in known else _USER
        fix = "name it under secrets, and pass --secret or store it: spotctl secret set"
        findings.refuse(("secrets", missing), "is missing from the registry's login", fix)


def substitute(value: Any, environment: Mapping[str, str]) -> Any:
    """Return `value` with variables of `envs` substituted; unknown variables are left as is."""
    if isinstance(value, str):
        return VARIABLE.sub(lambda match: environment.get(match[1] or match[2], match[0]), value)
    if isinstance(value, list):
        return [substitute(item, environment) for item in value]
    if isinstance(value, dict):
        return {
            substitute(key, environment): substitute(item, environment)
            for key, item in value.items()
        }
    return value
