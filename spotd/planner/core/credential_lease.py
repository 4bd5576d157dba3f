"""Choose a machine's access to its job's checkpoint store, and the times of credential renewals.

Roles and keys last for ever; leases expire. A lease is renewed after a third of its time, so a box
that dies leaves at least two thirds of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.domain.units import S

RENEW_SHARE = 1 / 3  # of the time that they last
LATE_SHARE = 1 / 2  # of it is over: then a person has to know
_USES = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


class AccessMethod(str, Enum):
    """How a machine gets its right to the store."""

    FOLDER = "a folder of this box"
    LENT = "credentials of the job's folder alone, lent by spotd"
    KEYS = "the keys of [stores]"
    ROLE = "the machines' own role"
    PROOF = "their own identity, exchanged for a right there"
    NONE = "none"


@dataclass(frozen=True)
class StoreAccess:
    """The configured access to the store at `url`.

    `cloud` is the store's cloud, "" for a folder or another server. `lends` says which machines get
    leases: "all", "others" (than that cloud's) or "". `roles` are the clouds whose machines have a
    role, `proves` those whose machines exchange their identity, with the options in `proof`. A
    `shared` folder exists on rented machines, too.
    """

    url: str
    cloud: str = ""
    keys: bool = False
    lends: str = ""
    roles: frozenset[str] = frozenset()
    proof: Mapping[str, str] = field(default_factory=dict)
    proves: frozenset[str] = frozenset()
    shared: bool = False


@dataclass(frozen=True)
class StoreReach:
    """How machines of one provider reach one store.

    `lasts_s` is the duration of a lease that was just tried, `error` the reason why none can be
    made. `cloud` and `store_cloud` are kinds of clouds. `roled` says that its machines have a role
    of that cloud in any case.
    """

    provider: str
    cloud: str
    url: str
    store_cloud: str
    way: AccessMethod
    limit_s: float
    lasts_s: float = 0.0
    error: str = ""
    roled: bool = False


def way_to(store: StoreAccess, cloud: str) -> AccessMethod:
    """Return the access method of a machine of `cloud`."""
    if store.url.startswith("file:"):
        return AccessMethod.FOLDER
    if store.lends == "all":
        return AccessMethod.LENT
    if cloud in store.proves:
        return AccessMethod.PROOF
    if store.lends and cloud != store.cloud:
        return AccessMethod.LENT
    if store.keys:
        return AccessMethod.KEYS
    return AccessMethod.ROLE if cloud == store.cloud and cloud in store.roles else AccessMethod.NONE


def unattended_s(way: AccessMethod, lasts_s: float, limit_s: float) -> float:
    """Return how long a machine can save at least after the box has died, in seconds.

    `lasts_s` is the duration of a lease, `limit_s` is limits.unattended_h, after which the machine
    ends itself.
    """
    if way is AccessMethod.NONE:
        return 0.0
    return min(limit_s, lasts_s * (1 - RENEW_SHARE)) if way is AccessMethod.LENT else limit_s


def renew_us(node: Node) -> int:
    """Return when the node's lease is due for renewal; 0 if it has none or no longer needs it."""
    done = (
        node.training.exit_code is not None
        or node.training.setup_failed
        or node.training.released_at_us
    )
    if not node.lease.lent_until_us or done or node.state not in _USES:
        return 0
    return node.lease.lent_at_us + int(
        RENEW_SHARE * (node.lease.lent_until_us - node.lease.lent_at_us)
    )


def lent_late(node: Node, now_us: int) -> bool:
    """Return whether a renewal is so late that a person has to know."""
    half_us = int(LATE_SHARE * (node.lease.lent_until_us - node.lease.lent_at_us))
    return renew_us(node) > 0 and now_us >= node.lease.lent_at_us + half_us


def left_h(node: Node, now_us: int) -> float:
    """Hours for which the node can still save."""
    return max(0.0, (node.lease.lent_until_us - now_us) / S / 3600)
