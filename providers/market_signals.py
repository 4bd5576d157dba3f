"""What a cloud tells of its market beside prices: how likely a spot machine is to be had, and to
last. Nothing depends on it: where it is not told, offers are as good without."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from providers.base import CapacityType, Offer, ThrottledError, UnknownOutcome
from providers.warnings import ProviderWarning

log = logging.getLogger(__name__)

ROUND_S = 3600.0  # at most one round of questions in it, answered or not

Ask = Callable[[Sequence[Offer]], Mapping[str, int]]


class Scores:
    """Placement scores of spot offers, from 1 to 10, or another number that is a `field` of theirs.
    `ask` gets the offers of spot machines and answers with the score by offer key of those that the
    vendor knows; whatever it raises costs the scores of a round, and is told once."""

    def __init__(
        self,
        make: str,
        what: str,
        ask: Ask,
        monotonic_s: Callable[[], float],
        field: str = "score",
    ) -> None:
        self._field = field
        self._key = f"signal/{make}/{what}"
        self._what = what
        self._ask = ask
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._until_s = float("-inf")
        self._known: Mapping[str, int] = {}
        self._failed: tuple[str, int] = ("", 0)  # the first words, and how often

    def fill_in(self, offers: Sequence[Offer]) -> list[Offer]:
        """The same, with the scores that are known. Raises nothing."""
        spot = [offer for offer in offers if offer.capacity_type is CapacityType.SPOT]
        now_s = self._monotonic_s()
        with self._lock:
            due = bool(spot) and now_s >= self._until_s
            if due:
                self._until_s = now_s + ROUND_S
        if due:
            known = self._round(spot)
            with self._lock:
                self._known = known
        known = self._known
        return [
            replace(offer, **{self._field: known[offer.key]})  # type: ignore[arg-type]
            if known.get(offer.key)
            else offer
            for offer in offers
        ]

    def remarks(self) -> list[ProviderWarning]:
        """See Remarking.remarks."""
        words, times = self._failed
        return [ProviderWarning(self._key, words, times)] if times else []

    def _round(self, spot: Sequence[Offer]) -> Mapping[str, int]:
        try:
            return self._ask(spot)
        except (UnknownOutcome, ThrottledError) as error:  # the next round may be answered
            log.warning("%s are not told: %s", self._what, error)
        except Exception as error:  # noqa: BLE001 - an old SDK, a missing right, an odd answer
            text = (
                f"{self._what} are not told, and of offers with equal prices any is taken: "
                f"{type(error).__name__}: {error}"
            )
            log.warning("%s", text)
            with self._lock:
                self._failed = (self._failed[0] or text, self._failed[1] + 1)
        return {}
