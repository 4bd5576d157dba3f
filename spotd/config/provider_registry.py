"""The kinds of providers, and the configured ones. docs/clouds/adding.md: what a new one needs."""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterator, Mapping
from typing import Any, cast

from providers.base import Provider
from providers.cloud_facts import load
from providers.clouds import CLOUDS, STORES
from providers.credential_leases import CredentialIssuer
from providers.split_credentials import split_provider
from spotd.base.errors import ExitCode, UserError

# kind -> "module:factory"; the factory takes (name, deployment, **settings). Imported when used,
# so that a cloud's SDK costs nothing where it is not configured.
KINDS = {"local": "providers.local.cloud:LocalCloud"} | {
    name: cloud.adapter for name, cloud in CLOUDS.items()
}

END = "end_"  # before a setting: the one with which machines are ended


class Clouds(Mapping[str, Provider]):
    """The configured providers by name. `change` replaces the set at once for every reader."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = dict(providers)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """Use new providers."""
        self._providers = dict(providers)

    def __getitem__(self, name: str) -> Provider:
        return self._providers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._providers)

    def __len__(self) -> int:
        return len(self._providers)

    def items(self) -> ItemsView[str, Provider]:
        """Return the items of one set, however long the caller iterates."""
        return self._providers.items()


class CredentialIssuers:
    """Credential issuers, created at first use and when settings change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, CredentialIssuer] = {}

    def of(self, lend: tuple[str, dict[str, Any]] | None) -> CredentialIssuer | None:
        """Return the issuer of that kind and settings; None for None."""
        if lend is None:
            return None
        kind, settings = lend
        key = f"{kind} {sorted(settings.items())}"
        with self._lock:
            if key not in self._made:
                self._made[key] = load(STORES[kind].issuer)(**settings)
            return self._made[key]


def build_provider(kind: str, name: str, deployment: str, settings: dict[str, Any]) -> Provider:
    """Return the provider called `name`. Raises UserError for an unknown kind.

    With separate settings for terminating machines, it uses those for that.
    """
    if kind not in KINDS:
        known = ", ".join(f'"{known}"' for known in sorted(KINDS))
        raise UserError(
            f'providers.{name}: this version of spotd has no provider of kind "{kind}"',
            f"use one of the kinds {known}, or remove [providers.{name}]",
            ExitCode.USAGE,
        )
    build = load(KINDS[kind])
    ends = {key[len(END) :]: value for key, value in settings.items() if key.startswith(END)}
    own = {key: value for key, value in settings.items() if not key.startswith(END)}
    makes = cast("Provider", build(name=name, deployment=deployment, **own))
    if not any(ends.values()):
        return makes
    return split_provider(makes, build(name=name, deployment=deployment, **(own | ends)))
