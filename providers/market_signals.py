"""Market signals besides prices: how likely a spot machine is to be obtained, and to last.

They are optional: without them, offers stay as they are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from providers.base import CapacityType, Offer, ThrottledError, UnknownOutcome
from providers.warnings import ProviderWarning

log = logging.getLogger(__name__)

INTERVAL_S = 3600.0  # at most one fetch per interval, whether it succeeds or not

FetchSignal = Callable[[Sequence[Offer]], Mapping[str, int]]


def most_accelerators(offers: Sequence[Offer], limit: int) -> list[str]:
    """Return the `limit` machine types with the most accelerators, in a fixed order."""
    counts = {offer.instance_type: offer.accelerator_count for offer in offers}
    return sorted(counts, key=lambda name: (-counts[name], name))[:limit]


class MarketSignal:
    """One number for each spot offer, fetched at most once per INTERVAL_S: a placement score from 1
    to 10, or another number that goes into the offer's `field`.

    `fetch` gets the spot offers and returns the numbers that the vendor knows, by offer key. When
    it fails, the offers of that interval have no number, and the failure is reported once.
    """

    def __init__(
        self,
        cloud: str,
        description: str,
        fetch: FetchSignal,
        monotonic_s: Callable[[], float],
        field: str = "score",
    ) -> None:
        self._field = field
        self._key = f"signal/{cloud}/{description}"
        self._description = description
        self._fetch = fetch
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._next_fetch_s = float("-inf")
        self._values: Mapping[str, int] = {}
        self._failure: tuple[str, int] = ("", 0)  # the first message, and the number of failures

    def annotate(self, offers: Sequence[Offer]) -> list[Offer]:
        """Return the offers with the numbers that are known. Raises nothing."""
        spot = [offer for offer in offers if offer.capacity_type is CapacityType.SPOT]
        now_s = self._monotonic_s()
        with self._lock:
            due = bool(spot) and now_s >= self._next_fetch_s
            if due:
                self._next_fetch_s = now_s + INTERVAL_S
        if due:
            values = self._refresh(spot)
            with self._lock:
                self._values = values
        values = self._values
        return [
            replace(offer, **{self._field: values[offer.key]})  # type: ignore[arg-type]
            if values.get(offer.key)
            else offer
            for offer in offers
        ]

    def warnings(self) -> list[ProviderWarning]:
        """See WarningSource.warnings."""
        message, count = self._failure
        return [ProviderWarning(self._key, message, count)] if count else []

    def _refresh(self, spot: Sequence[Offer]) -> Mapping[str, int]:
        try:
            return self._fetch(spot)
        except (UnknownOutcome, ThrottledError) as error:  # the next fetch may succeed
            log.warning("%s are unavailable: %s", self._description, error)
        except Exception as error:  # noqa: BLE001 - an old SDK, a missing right, an odd answer
            message = (
                f"{self._description} are unavailable, so offers with equal prices "
                "are not ranked further: "
                f"{type(error).__name__}: {error}"
            )
            log.warning("%s", message)
            with self._lock:
                self._failure = (self._failure[0] or message, self._failure[1] + 1)
        return {}
