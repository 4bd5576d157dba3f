"""Which kinds of provider there are. CONTRIBUTING.md says what else a new one needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from providers.base import Provider
from spotd.errors import ExitCode, UserError

# kind -> "module:factory"; the factory takes (name, deployment, **settings). Imported when used,
# so that a cloud's SDK costs nothing where it is not configured.
KINDS = {
    "local": "providers.local.cloud:LocalCloud",
}


def build_provider(kind: str, name: str, deployment: str, settings: dict[str, Any]) -> Provider:
    """The provider called `name`. Raises UserError for a kind that is not in the table."""
    if kind not in KINDS:
        known = ", ".join(f'"{known}"' for known in sorted(KINDS))
        raise UserError(
            f'providers.{name}: this version of spotd has no provider of kind "{kind}"',
            f"use one of the kinds {known}, or remove [providers.{name}]",
            ExitCode.USAGE,
        )
    module, factory = KINDS[kind].split(":")
    build = getattr(import_module(module), factory)
    return cast("Provider", build(name=name, deployment=deployment, **settings))
