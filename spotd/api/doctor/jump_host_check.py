"""The doctor's lines about jump hosts: each is tried for real."""

from __future__ import annotations

from spotd.api.request.request import ApiContext, Check


def check_ways(backing: ApiContext) -> list[Check]:
    """Reached, with the pinned key, lets us in, and forwards; none for providers without one."""
    return [
        Check(f"jump host of {name}", good, found, f"see jump in [providers.{name}] of config.toml")
        for name, (good, found) in sorted(backing.try_ways().items())
    ]
