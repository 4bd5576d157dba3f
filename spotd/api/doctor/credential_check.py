"""Doctor checks of unattended saving, for each pair of cloud and checkpoint store.

Each check says how long machines keep saving while the control box is down.
"""

from __future__ import annotations

from collections.abc import Iterable

from providers.clouds import CLOUDS, STORES
from spotd.api.request.request import Check
from spotd.planner.core.credential_lease import AccessMethod, StoreReach, unattended_s


def check_store_reach(reaches: Iterable[StoreReach]) -> list[Check]:
    """Return one check for each pair of provider and store."""
    return [_check(reach) for reach in reaches]


def _check(reach: StoreReach) -> Check:
    name = f"unattended {reach.provider}"
    if reach.error:
        fix = "see docs/security.md for the rights that leasing needs, and [stores] in config.toml"
        return Check(name, False, f"{reach.url}: {reach.error}", fix)
    if reach.way is AccessMethod.NONE:
        message = (
            f"{reach.url}: its machines cannot save there; they have neither permission nor keys"
        )
        return Check(name, False, message, _fix(reach))
    alone_s = unattended_s(reach.way, reach.lasts_s, reach.limit_s)
    lease = f" for {_hours(reach.lasts_s)}" if reach.way is AccessMethod.LENT else ""
    message = f"{reach.url}: saves for {_hours(alone_s)} without spotd ({reach.way.value}{lease})"
    message += _blast_radius(reach)
    if alone_s < reach.limit_s:
        message += f"; limits.unattended_h is {reach.limit_s / 3600:.3g}"
    return Check(name, True, message)


def _blast_radius(reach: StoreReach) -> str:
    """Return which jobs' folders a machine can write to, which matters once it is compromised."""
    if reach.way is AccessMethod.FOLDER:
        return ""
    if reach.way is not AccessMethod.LENT:
        return "; each of them reaches the folders of all jobs"
    if reach.roled:
        key = CLOUDS[reach.cloud].node_role_key
        return f"; by {key} each of them reaches the folders of all jobs all the same"
    return ""


def _fix(reach: StoreReach) -> str:
    lease_fix = f"add [stores.NAME.lend] for {reach.url} to config.toml, or keys to its options"
    key = CLOUDS[reach.cloud].node_role_key if reach.cloud in CLOUDS else ""
    if not key or not reach.store_cloud:
        return lease_fix
    if reach.cloud != reach.store_cloud:
        store = STORES.get(reach.store_cloud)
        if store is None or reach.cloud not in store.trusts:
            return lease_fix
        return f"{lease_fix}; or, for as long as the box is away, [stores.NAME.federate]"
    return f"set {key} in [providers.{reach.provider}], or {lease_fix}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h"
