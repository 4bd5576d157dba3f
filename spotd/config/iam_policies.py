"""Collect what a cloud's policy documents need from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from providers.base import Provider
from providers.iam.policy import PolicyFacts
from spotd.api.request.context import ProviderInfo
from spotd.base.clock import Clock
from spotd.base.errors import ExitCode, UserError
from spotd.config.clouds import AwsProvider, AzureProvider, GcpProvider, LocalProvider
from spotd.config.config import Config
from spotd.config.stores import AwsLend, AzureFederate
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
    for name, entry in config.file.providers.items():
        local = isinstance(entry, LocalProvider)
        if (entry.personality if isinstance(entry, LocalProvider) else entry.kind) != cloud:
            continue
        configured = True
        regions |= dict.fromkeys(regions_of(name) if local else getattr(entry, "regions", ()))
        facts: dict[str, str] = {}
        if isinstance(entry, GcpProvider):
            facts = {"project": entry.project}
        elif isinstance(entry, AwsProvider):
            facts = {"queue": entry.queue, "lend": " ".join(_lend_roles(config))}
            facts["prove"] = " ".join(_audiences(config))
        elif isinstance(entry, AzureProvider):
            facts = entry.model_dump(include={"subscription_id", "resource_group"})
        for key, value in facts.items():
            if value and account.setdefault(key, value) != value:
                raise _two_accounts(cloud, key, whose[key], name, account[key], value)
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


def _two_accounts(cloud: str, key: str, one: str, other: str, ours: str, theirs: str) -> UserError:
    text = (
        f"the documents of {cloud} are for one account, and the configuration names two: "
        f"providers.{one}.{key} is {ours!r}, providers.{other}.{key} is {theirs!r}"
    )
    fix = (
        f"`spotctl init {cloud} --deployment ID`, once for each, with its own account and regions "
        "(`spotctl init --help`)"
    )
    if cloud == "aws":
        fix = f"the same {key} in both: a queue of that name in each region"
    return UserError(text, fix, ExitCode.USAGE)


def _lend_roles(config: Config) -> list[str]:
    """Return the roles that the box assumes to issue leases."""
    lends = [entry.lend for entry in config.file.stores.values()]
    return sorted({lend.role for lend in lends if isinstance(lend, AwsLend) and lend.role})


def _audiences(config: Config) -> list[str]:
    """Return the audiences for which machines of AWS need tokens elsewhere."""
    made = [entry.federate for entry in config.file.stores.values()]
    return sorted({m.audience for m in made if isinstance(m, AzureFederate) and "aws" in m.clouds})
