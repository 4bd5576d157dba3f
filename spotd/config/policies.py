"""What the policy documents of a cloud are made of, as the configuration has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from providers.policy import PolicyFacts
from spotd.config.config import Config
from spotd.config.file import AwsProvider, AzureProvider, GcpProvider, LocalProvider


def policy_facts(
    config: Config, deployment: str, cloud: str, regions_of: Callable[[str], Sequence[str]]
) -> PolicyFacts | None:
    """None when no provider of that cloud is configured. `regions_of(provider)` are those that a
    local cloud, which may play any, has on sale."""
    regions: dict[str, None] = {}
    account: dict[str, str] = {}
    found = False
    for name, entry in config.file.providers.items():
        local = isinstance(entry, LocalProvider)
        if (entry.personality if isinstance(entry, LocalProvider) else entry.kind) != cloud:
            continue
        found = True
        regions |= dict.fromkeys(regions_of(name) if local else getattr(entry, "regions", ()))
        if isinstance(entry, GcpProvider):
            account = {"project": entry.project}
        elif isinstance(entry, AwsProvider) and entry.queue:
            account = {"queue": entry.queue}
        elif isinstance(entry, AzureProvider):
            account = entry.model_dump(include={"subscription_id", "resource_group"})
    if not found:
        return None
    return PolicyFacts(
        deployment=deployment,
        regions=tuple(regions),
        own_store=config.deployment_store,
        checkpoint_store=config.checkpoint_defaults.store,
        account=account,
        job_stores=[entry.url for entry in config.file.stores.values()],
    )
