"""`spotctl init --trust`: let machines of another cloud act as machines of this one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from providers.clouds import CLOUDS, STORES
from spotd.base.errors import ExitCode, UserError, suggest

if TYPE_CHECKING:
    from providers.iam.policy import PolicyFacts
    from providers.iam.setup import SetupFacts

# Field -> pattern. No value may contain a character that is special in a script or a document.
_FORMS = {"AUDIENCE": r"[^\s,\"'`$\\]+"} | {
    field: pattern
    for cloud in CLOUDS.values()
    if cloud.identity
    for field, pattern in cloud.identity.arguments.items()
}


def trust_help() -> str:
    """Return the arguments of --trust, by the cloud that trusts."""
    return "For " + "; for ".join(
        f"{cloud}: {' '.join(_arguments(other, fields) for other, fields in trusts.items())}"
        for cloud, store in STORES.items()
        if (trusts := store.trusts)
    )


def _arguments(cloud: str, fields: Sequence[str]) -> str:
    return f"{cloud}={','.join(fields)}"


def read_trusts(
    options: Sequence[str], forms: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Parse options like aws=123456789012,spotd-node-d0 into cloud -> values.

    `forms` has the fields of each cloud that can be trusted. Raises UserError.
    """
    trusts: dict[str, tuple[str, ...]] = {}
    for option in options:
        cloud, _, rest = option.partition("=")
        if cloud not in forms:
            raise _usage_error(f"{cloud[:40]!r} is not another cloud", suggest(cloud, forms))
        values, fields = tuple(rest.split(",", len(forms[cloud]) - 1)), forms[cloud]
        example = f"--trust {_arguments(cloud, fields)}"
        if len(values) != len(fields):
            raise _usage_error(f"{cloud} needs {' and '.join(fields)}", example)
        for field, value in zip(fields, values, strict=True):
            if not re.fullmatch(_FORMS[field], value):
                raise _usage_error(f"{cloud}: {value[:60]!r} is not a valid {field}", example)
        if cloud in trusts:
            raise _usage_error(f"{cloud} is given twice", "once for each cloud")
        trusts[cloud] = values
    return trusts


def federate_section(cloud: str, facts: SetupFacts) -> dict[str, Any]:
    """Return the [stores.NAME.federate] section; empty where no cloud is trusted.

    Raises UserError if no store of this cloud is known, because the trust would grant nothing, and
    for values that one section cannot hold.
    """
    from providers.federated_stores import store_of

    if not facts.trusts:
        return {}
    if not store_of(facts.policy, cloud):
        scheme = CLOUDS[cloud].scheme
        message = f"no checkpoint store is a {scheme}:// one, so the trust would have no effect"
        raise _usage_error(
            message, f"[stores.NAME] with such a url, or --checkpoints {scheme}://BUCKET"
        )
    try:
        section: dict[str, Any] = import_module(f"providers.{cloud}.setup").federation_settings(
            facts
        )
    except ValueError as error:
        text, _, fix = str(error).partition("; ")
        raise _usage_error(text, fix) from None
    return section


def federate_commands(facts: PolicyFacts, section: Mapping[str, Any]) -> list[str]:
    """Return shell lines that print the section.

    They run at the end of the script, when its variables hold the names that the steps found.
    """
    from providers.federated_stores import toml_lines
    from providers.iam.script import quoted
    from providers.iam.setup import placeholders_in

    known = {name: f"${name}" for value in section.values() for name in placeholders_in(str(value))}
    return [
        "# for config.toml",
        *(f"echo {quoted(line)}" for line in toml_lines(facts, section, known)),
    ]


def _usage_error(message: str, fix: str) -> UserError:
    return UserError(f"--trust: {message}", fix, ExitCode.USAGE)
