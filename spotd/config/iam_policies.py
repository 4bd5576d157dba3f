"""Collect what a cloud's policy documents need from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from providers.base import Provider
from providers.iam.policy import PolicyFacts
from spotd.api.request.context import ProviderInfo
from spotd.base.clock import Clock
from spotd.base.errors import ExitCode, UserError
from spotd.config.clouds import LocalProvider
from spotd.config.config import Config
from spotd.store.interface import Store


def infos_of(config: Config, providers: Mapping[str, Provider]) -> list[ProviderInfo]:
    """Return the configured providers."""
    kinds = config.file.providers
    known = [(name, one) for name, one in providers.items() if name in kinds]
    return [ProviderInfo(name, kinds[name].kind, one.local) for name, one in known]


def facts_of(config: Config, store: Store, clock: Clock, cloud: str) -> PolicyFacts | None:
    """Return the facts for a cloud; a local cloud's regions come from the store's offers."""
    offers = store.market.load(clock.now_us()).offers

    def regions_of(provider: str) -> list[str]:
        return sorted({offer.region for offer in offers if offer.provider == provider})

    return policy_facts(config, store.deployment.id(), cloud, regions_of)


def policy_facts(
    config: Config, deployment: str, cloud: str, regions_of: Callable[[str], Sequence[str]]
) -> PolicyFacts | None:
    """Return the facts for a cloud's policies, or None if no provider of it is configured.

    `regions_of(provider)` are the regions on sale at a local cloud, which may play any cloud.
    Raises UserError for providers in several accounts (projects, subscriptions): the documents are
    for one.
    """
    regions: dict[str, None] = {}
    account: dict[str, str] = {}
    whose: dict[str, str] = {}  # name of a provider, by what it says of the account
    configured = False
    stores = config.file.stores.values()
    lends = [entry.lend for entry in stores if entry.lend]
    federates = [entry.federate for entry in stores if entry.federate]
    for name, entry in config.file.providers.items():
        if (entry.personality if isinstance(entry, LocalProvider) else entry.kind) != cloud:
            continue
        configured = True
        if isinstance(entry, LocalProvider):
            regions |= dict.fromkeys(regions_of(name))
            continue
        regions |= dict.fromkeys(entry.regions)
        for key, value in entry.policy_account(lends, federates).items():
            if value and account.setdefault(key, value) != value:
                text = (
                    f"the documents of {cloud} are for one account, and the configuration names "
                    f"two: providers.{whose[key]}.{key} is {account[key]!r}, "
                    f"providers.{name}.{key} is {value!r}"
                )
                raise UserError(text, entry.two_accounts_fix(cloud, key), ExitCode.USAGE)
            whose.setdefault(key, name)
    if not configured:
        return None
    return PolicyFacts(
        deployment=deployment,
        regions=tuple(regions),
        own_store=config.deployment_store,
        checkpoint_store=config.checkpoint_defaults.store,
        account=account,
        job_stores=[entry.url for entry in config.file.stores.values()],
    )
