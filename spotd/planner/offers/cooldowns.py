"""Cooldowns of offers, computed from earlier refusals: a pure function.

Nothing here is stored: cooldowns follow from the recorded refusals, survive restarts, and are the
same on every replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from providers.base import Offer, Scope
from spotd.domain.container import container_of
from spotd.domain.market import Market, Refusal
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.wire import EXIT_HUNG, EXIT_UNFIT

OUTBID = "Outbid"  # left for a better one
NOT_LENT = "NotLentError"  # its machines could not save: nobody lends credentials of the store
OWN_IMAGE = "OwnImage"  # an UnpreparedError of a job that names a machine's image itself
# What says nothing to other jobs, which have caps, paces, stores and images of their own.
OF_ONE_JOB = frozenset({OUTBID, NOT_LENT, OWN_IMAGE})

# First cooldown by kind of refusal, in seconds; doubled for each repeat, up to the cap. Karpenter
# blocks a refused pool for 3 minutes; quota comes back when our own dying machine is counted out.
BASE_S = {
    "CapacityError": 60.0,
    "PriceError": 300.0,
    "QuotaError": 600.0,
    "NoQuotaError": 3600.0,  # until somebody has asked for one; to look costs nothing
    "UnpreparedError": 900.0,
    "AuthError": 300.0,
    "RejectedError": 3600.0,
    "Preempted": 120.0,
    "Lost": 120.0,
    "Hung": 600.0,
    "Unfit": 600.0,
    OUTBID: 3600.0,
    NOT_LENT: 60.0,
    OWN_IMAGE: 900.0,
}
CAP_S = 3600.0
# What says that nothing is to be had there now; the policy has a record of the same.
NO_ROOM = frozenset({"CapacityError", "Preempted", "Lost"})
# The cap of those for a job that the policy steers, which reckons itself when to ask where again:
# as far apart as the looks of the traces by which it is judged.
STEERED_CAP_S = 600.0
BOOT_TIMEOUTS = 2.0  # of the job that asks: another offer has its turn before this one is back

# The reasons that say something about an offer, and the code under which it is remembered.
_CODES = {
    LeaveReason.PREEMPTED: "Preempted",
    LeaveReason.LOST: "Lost",
    LeaveReason.BOOT_TIMEOUT: "BootTimeout",
    LeaveReason.OUTBID: OUTBID,
}
_EXITS = {EXIT_HUNG: "Hung", EXIT_UNFIT: "Unfit"}  # of a program that was not the only culprit

_PARTS = {Scope.PROVIDER: 1, Scope.REGION: 2, Scope.ZONE: 3, Scope.OFFER: 5}  # of an offer's key

Spoiled = Mapping[str, Sequence[Refusal]]


def refusal_code(error: str, image_id: str) -> str:
    """Return the code under which a failed launch is remembered: its error class and the job's
    image.

    Whether the image was the cause is unknown; another job's launch finds out.
    """
    own = error == "UnpreparedError" and image_id and not container_of(image_id)
    return OWN_IMAGE if own else error


def refusal_of(node: Node) -> Refusal | None:
    """Return a leaving node's refusal of its offer, or None.

    It counts from the decision that the node leaves, and again from when it is gone.
    """
    if node.departure.leave_reason is None:
        return None
    code = _EXITS.get(node.training.exit_code or 0) or _CODES.get(node.departure.leave_reason)
    if code is None:
        return None
    gone_at_us = node.machine.gone_at_us if node.state is NodeState.GONE else 0
    return Refusal(
        node.offer.key, Scope.OFFER, code, max(node.departure.left_at_us, gone_at_us), node.id
    )


def told_by(nodes: Iterable[Node], market: Market) -> Market:
    """Return the market with the refusals of the job's own ending machines.

    Those decided in this pass are recorded only after it.
    """
    ours = [refusal for node in nodes if (refusal := refusal_of(node)) is not None]
    if not ours:
        return market
    known = {(refusal.node_id, refusal.code) for refusal in ours}
    others = [r for r in market.refusals if (r.node_id, r.code) not in known]
    return replace(market, refusals=(*others, *ours))


def spoiled_places(refusals: Iterable[Refusal], job_id: str) -> Spoiled:
    """Return the refusals by the part of an offer's key that each spoiled for the job.

    Computed once for many offers: when a zone is reclaimed there are hundreds of refusals.
    """
    spoiled: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        if refusal.code in OF_ONE_JOB and not refusal.node_id.startswith(f"{job_id}-g"):
            continue
        place = _beginning(refusal.offer_key, _PARTS[refusal.scope])
        spoiled.setdefault(place, []).append(refusal)
    return spoiled


def _beginning(offer_key: str, parts: int) -> str:
    return "/".join(offer_key.split("/")[:parts])


@lru_cache(maxsize=4096)  # every offer is looked at whenever one is chosen
def _places(offer_key: str) -> tuple[str, ...]:
    """Return the key prefixes whose refusal affects the offer."""
    return tuple(_beginning(offer_key, parts) for parts in _PARTS.values())


def touches(offer: Offer, spoiled: Spoiled) -> bool:
    """Return whether any refusal affects the offer."""
    return any(place in spoiled for place in _places(offer.key))


def spoiled_at(offer: Offer, spoiled: Spoiled) -> list[Refusal]:
    """The refusals that spoil it, or did."""
    return [refusal for place in _places(offer.key) for refusal in spoiled.get(place, ())]


def cooldown_until_us(
    offer: Offer, spoiled: Spoiled, boot_timeout_s: float, no_room_cap_s: float = CAP_S
) -> tuple[int, str]:
    """Return when `offer` may be tried again and why not before; (0, "") if it was never refused.

    Repeats within an hour of each other double the time: n waves give base * 2^(n-1), capped. An
    offer that did not boot cools for `boot_timeout_s`, the time that the requesting job would wait
    for it again. One without capacity cools for `no_room_cap_s` at most.
    """
    until_us, why = 0, ""
    by_code: dict[str, list[int]] = {}
    for refusal in spoiled_at(offer, spoiled):
        by_code.setdefault(refusal.code, []).append(refusal.at_us)
    for code, times in sorted(by_code.items()):
        last_us = max(times)
        base_s = BASE_S.get(code, 60.0)
        if code == "BootTimeout":
            base_s = max(base_s, BOOT_TIMEOUTS * boot_timeout_s)
        # The next refusal can come no earlier than a cooldown, and a boot, after the last one.
        within_s = max(CAP_S, 3 * base_s)
        waves = _waves([at_us for at_us in times if last_us - at_us < within_s * S], base_s)
        cap_s = no_room_cap_s if code in NO_ROOM else max(CAP_S, base_s)
        pause_s = min(base_s * 2 ** min(waves - 1, 10), cap_s)
        if last_us + int(pause_s * S) > until_us:
            until_us, why = last_us + int(pause_s * S), code
    return until_us, why


def _waves(times_us: Iterable[int], base_s: float) -> int:
    """Return the number of independent refusals.

    A refusal within the first cooldown of another is not independent: the ranks of a gang, or the
    jobs of a zone, are refused or lost together.
    """
    waves, began_us = 0, 0
    for at_us in sorted(times_us):
        if waves == 0 or at_us - began_us >= base_s * S:
            waves, began_us = waves + 1, at_us
    return waves
