"""Doctor checks of jump hosts: each connection is tried for real."""

from __future__ import annotations

from spotd.api.request.context import ApiContext
from spotd.api.request.request import Check


def check_jump_hosts(context: ApiContext) -> list[Check]:
    """Return one check for each provider with a jump host.

    A jump host passes when it answers with the pinned key, accepts the login, and forwards.
    """
    return [
        Check(f"jump host of {name}", ok, message, f"see jump in [providers.{name}] of config.toml")
        for name, (ok, message) in sorted(context.clouds.try_jump_hosts().items())
    ]
