"""The doctor's lines about jump hosts: each is tried for real."""

from __future__ import annotations

from spotd.serve.call import Backing, Check


def check_ways(backing: Backing) -> list[Check]:
    """Reached, with the pinned key, lets us in, and forwards; none for providers without one."""
    return [
        Check(f"jump host of {name}", good, found, f"see jump in [providers.{name}] of config.toml")
        for name, (good, found) in sorted(backing.try_ways().items())
    ]
