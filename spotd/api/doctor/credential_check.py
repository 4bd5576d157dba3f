"""For the doctor: how long the machines of each cloud go on saving into each store when the box is
dead."""

from __future__ import annotations

from collections.abc import Iterable

from spotd.api.request.request import Check
from spotd.planner.core.credential_lease import AccessMethod, StoreReach, unattended_s

_ROLE_KEYS = {"aws": "node_role", "gcp": "node_service_account", "azure": "node_identity"}


def check_reach(reaches: Iterable[StoreReach]) -> list[Check]:
    """A line for each pair."""
    return [_check(reach) for reach in reaches]


def _check(reach: StoreReach) -> Check:
    name = f"unattended {reach.provider}"
    if reach.error:
        fix = "see docs/security.md for the rights that lending takes, and [stores] in config.toml"
        return Check(name, False, f"{reach.url}: {reach.error}", fix)
    if reach.way is AccessMethod.NONE:
        text = f"{reach.url}: its machines cannot save there, they have no right and no keys"
        return Check(name, False, text, _fix(reach))
    alone_s = unattended_s(reach.way, reach.lasts_s, reach.limit_s)
    lent = f" for {_hours(reach.lasts_s)}" if reach.way is AccessMethod.LENT else ""
    text = f"{reach.url}: saves for {_hours(alone_s)} without spotd ({reach.way.value}{lent})"
    text += _width(reach)
    if alone_s < reach.limit_s:
        text += f"; limits.unattended_h is {reach.limit_s / 3600:.3g}"
    return Check(name, True, text)


def _width(reach: StoreReach) -> str:
    """Whose folders a machine can write to: what matters once it is in somebody else's hands."""
    if reach.way is AccessMethod.FOLDER:
        return ""
    if reach.way is not AccessMethod.LENT:
        return "; each of them reaches the folders of all jobs"
    if reach.roled:
        key = _ROLE_KEYS[reach.cloud]
        return f"; by {key} each of them reaches the folders of all jobs all the same"
    return ""


def _fix(reach: StoreReach) -> str:
    lend = f"add [stores.NAME.lend] for {reach.url} to config.toml, or keys to its options"
    key = _ROLE_KEYS.get(reach.cloud, "")
    if not key or not reach.store_cloud:
        return lend
    if reach.cloud != reach.store_cloud:  # each cloud believes the two others
        return f"{lend}; or, for as long as the box is away, [stores.NAME.federate]"
    return f"set {key} in [providers.{reach.provider}], or {lend}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h"
