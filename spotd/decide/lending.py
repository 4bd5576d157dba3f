"""Which way a machine gets at the store of its job's checkpoints, how long that lasts without us,
and when credentials that it was lent are renewed.

A role of the machine, and keys, last for ever; what we lend ends by itself. It is renewed when a
third of it is over: a box that dies leaves two thirds at least, and what was lent last, half of the
time later, is still good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spotd.model import Node, S
from spotd.states import NodeState

RENEW_SHARE = 1 / 3  # of the time that they last
LATE_SHARE = 1 / 2  # of it is over: then a person has to know
_USES = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


class Way(str, Enum):
    """How a machine comes by its right to the store."""

    FOLDER = "a folder of this box"
    LENT = "credentials of the job's folder alone, lent by spotd"
    KEYS = "the keys of [stores]"
    ROLE = "the machines' own role"
    PROOF = "their own identity, exchanged for a right there"
    NONE = "none"


@dataclass(frozen=True)
class StoreAccess:
    """What the configuration says of the store at `url`. `cloud` is whose it is ("" of a folder,
    and of a server that is nobody's of ours); `lends` to whose machines we lend: "all", "others"
    (than that cloud's), or "" to none; `roles` are the clouds whose machines have a role, `proves`
    those whose machines exchange what they are for another, with the options in `proof`; a `shared`
    folder is one that rented machines have too."""

    url: str
    cloud: str = ""
    keys: bool = False
    lends: str = ""
    roles: frozenset[str] = frozenset()
    proof: Mapping[str, str] = field(default_factory=dict)
    proves: frozenset[str] = frozenset()
    shared: bool = False


@dataclass(frozen=True)
class Reach:
    """Machines of a provider, and a store. `lasts_s` is how long what they are lent lasts, tried
    just now, `error` why nothing can be lent; `cloud` and `store_cloud` are the makes of cloud;
    `roled` says that its machines have a role of that cloud, whatever they are lent."""

    provider: str
    cloud: str
    url: str
    store_cloud: str
    way: Way
    limit_s: float
    lasts_s: float = 0.0
    error: str = ""
    roled: bool = False


def way_to(store: StoreAccess, cloud: str) -> Way:
    """The way of a machine of `cloud`."""
    if store.url.startswith("file:"):
        return Way.FOLDER
    if store.lends == "all":
        return Way.LENT
    if cloud in store.proves:
        return Way.PROOF
    if store.lends and cloud != store.cloud:
        return Way.LENT
    if store.keys:
        return Way.KEYS
    return Way.ROLE if cloud == store.cloud and cloud in store.roles else Way.NONE


def unattended_s(way: Way, lasts_s: float, limit_s: float) -> float:
    """How long a machine goes on saving, at least, after the box has died. `lasts_s` is how long
    what is lent lasts, `limit_s` is limits.unattended_h, after which the machine ends itself."""
    if way is Way.NONE:
        return 0.0
    return min(limit_s, lasts_s * (1 - RENEW_SHARE)) if way is Way.LENT else limit_s


def renew_us(node: Node) -> int:
    """When what the node was lent is to be renewed; 0 for one that was lent nothing, or whose
    program needs it no more."""
    done = node.exit_code is not None or node.setup_failed or node.released_at_us
    if not node.lent_until_us or done or node.state not in _USES:
        return 0
    return node.lent_at_us + int(RENEW_SHARE * (node.lent_until_us - node.lent_at_us))


def lent_late(node: Node, now_us: int) -> bool:
    """So much of the time is over without a renewal that a person has to know."""
    half_us = int(LATE_SHARE * (node.lent_until_us - node.lent_at_us))
    return renew_us(node) > 0 and now_us >= node.lent_at_us + half_us


def left_h(node: Node, now_us: int) -> float:
    """Hours for which the node can still save."""
    return max(0.0, (node.lent_until_us - now_us) / S / 3600)
