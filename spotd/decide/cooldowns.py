"""Which offers are not to be tried, and until when: a pure function of what was refused before.

Nothing here is stored; a cooldown follows from the refusals on record, so that it survives restarts
and is the same on every replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from providers.base import Offer, Scope
from spotd.model import Refusal, S

# First cooldown by what was said, in seconds; doubled for each repeat, up to the cap. Karpenter
# blocks a refused pool for 3 minutes; quota comes back when our own dying machine is counted out.
BASE_S = {
    "CapacityError": 60.0,
    "PriceError": 300.0,
    "QuotaError": 600.0,
    "AuthError": 300.0,
    "RejectedError": 3600.0,
    "Preempted": 120.0,
    "Lost": 120.0,
    "BootTimeout": 600.0,
}
CAP_S = 3600.0


_PARTS = {Scope.PROVIDER: 1, Scope.REGION: 2, Scope.ZONE: 3, Scope.OFFER: 5}  # of an offer's key

Spoiled = Mapping[str, Sequence[Refusal]]


def spoiled_places(refusals: Iterable[Refusal]) -> Spoiled:
    """The refusals by what each spoiled: the beginning of the offer's key that its scope says.

    Made once for many offers: hundreds of refusals are met when a whole zone is taken away.
    """
    found: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        place = _beginning(refusal.offer_key, _PARTS[refusal.scope])
        found.setdefault(place, []).append(refusal)
    return found


def _beginning(offer_key: str, parts: int) -> str:
    return "/".join(offer_key.split("/")[:parts])


def cooldown_until_us(offer: Offer, spoiled: Spoiled) -> tuple[int, str]:
    """When `offer` may be tried again and why not before; (0, "") when it was never refused.

    Repeats within an hour of each other double the time: n refusals give base * 2^(n-1), capped.
    """
    until_us, why = 0, ""
    by_code: dict[str, list[int]] = {}
    key = offer.key
    for parts in _PARTS.values():
        for refusal in spoiled.get(_beginning(key, parts), ()):
            by_code.setdefault(refusal.code, []).append(refusal.at_us)
    for code, times in sorted(by_code.items()):
        last_us = max(times)
        repeats = sum(1 for at_us in times if last_us - at_us < CAP_S * S)
        pause_s = min(BASE_S.get(code, 60.0) * 2 ** min(repeats - 1, 10), CAP_S)
        if last_us + int(pause_s * S) > until_us:
            until_us, why = last_us + int(pause_s * S), code
    return until_us, why
