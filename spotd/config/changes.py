"""Compare two configurations, and refuse changes that a running daemon cannot apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spotd.base.errors import Problem
from spotd.config.config import Config, ConfigError

RESTART = "systemctl restart spotd: no training is touched by that"


def changed_keys(old: Config, new: Config) -> list[str]:
    """The dotted keys that differ, in order; never their values, which may be secrets."""
    return list(_different(old.file.model_dump(), new.file.model_dump()))


def check_change(old: Config, new: Config, own_options: Mapping[str, str]) -> None:
    """Raise ConfigError if a daemon that runs with `old` cannot continue with `new`.

    The error names every such key. `own_options` are those with which it opened the deployment's
    store.
    """
    fixed = {
        "state_dir": (old.state_dir, new.state_dir),
        "socket": (old.socket, new.socket),
        "database.url": (old.database_url, new.database_url),
        "deployment.id": (old.file.deployment.id, new.file.deployment.id),
        "deployment.store": (old.deployment_store, new.deployment_store),
        "metrics": (old.file.metrics, new.file.metrics),
        "dashboard": (old.file.dashboard, new.file.dashboard),
        "safe_mode": (old.file.safe_mode, new.file.safe_mode),
        "timing.claim_every_s": (
            old.file.timing.claim_every_s,
            new.file.timing.claim_every_s,
        ),
    }
    keys = [key for key, (before, after) in fixed.items() if before != after]
    if "deployment.store" not in keys and new.store_options(new.deployment_store) != own_options:
        keys.append("stores")
    text = "cannot change while spotd runs"
    problems = [Problem(key, text, f"put it back, or restart: {RESTART}") for key in keys]
    problems += _strangers(old, new)
    if problems:
        title = f"the configuration {new.path} cannot be taken over:"
        raise ConfigError(title, problems, f"correct {new.path}, then reload again")


def _strangers(old: Config, new: Config) -> Iterator[Problem]:
    """Yield accounts that were given the name of another one.

    Machines would be looked for in the wrong account, and given up.
    """
    for name, section in new.file.providers.items():
        before = old.file.providers.get(name)
        if before is not None and before.identity() != section.identity():
            text = "is not the account that spotd knows by this name"
            yield Problem(f"providers.{name}", text, "use a different name")


def _different(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _different(before, after, f"{above}{key}.")
        else:
            yield f"{above}{key}"
