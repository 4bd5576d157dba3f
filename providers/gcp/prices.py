"""What machines cost, from whoever tells: Google's capacity history knows the spot price of a whole
machine, the billing catalog the prices of parts, a dated file the rest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from providers.base import ProviderError, ThrottledError, UnknownOutcome
from providers.catalogs.prices import price_file
from providers.gcp.clients import Clients
from providers.gcp.operations import us_of
from providers.gcp.skus import Rates, read_skus, usd_micro
from providers.gcp.types import MachineType

log = logging.getLogger(__name__)

SPOT_S = 3600.0  # Google changes spot prices at most once a day
RATES_S = 6 * 3600.0  # the catalog has tens of thousands of rows
AGAIN_S = 300.0  # after a source that did not answer

Place = tuple[str, str]  # (region, machine type)


class Prices:
    """Kept between asking. Nothing that they are asked of is needed for a market: where one source
    does not answer, the next is believed."""

    def __init__(self, clients: Clients, monotonic_s: Callable[[], float]) -> None:
        self._clients = clients
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._rates = Rates()
        self._rates_until_s = 0.0
        self._spot: dict[Place, int] = {}
        self._spot_until_s: dict[Place, float] = {}
        self._said: set[str] = set()

    def refresh(self, places: Sequence[Place]) -> None:
        """Ask for what is too old of these."""
        self._refresh_rates()
        self._refresh_spot(places)

    def spot_now(self, machine: MachineType, region: str) -> int:
        """As `spot`, with no more calls than that takes."""
        self._refresh_spot([(region, machine.name)])
        if not self._spot.get((region, machine.name)):
            self._refresh_rates()
        return self.spot(machine, region)

    def spot(self, machine: MachineType, region: str) -> int:
        """Micro-USD per hour; 0 when nobody tells."""
        told = self._spot.get((region, machine.name), 0)
        return told or self._rates.price(machine, region, spot=True)

    def listed(self, machine: MachineType, region: str) -> int:
        """The on-demand price, micro-USD per hour; 0 when nobody tells."""
        told = self._rates.price(machine, region, spot=False)
        return told or price_file("gcp").on_demand.get(machine.name, {}).get(region, 0)

    def _refresh_rates(self) -> None:
        now_s = self._monotonic_s()
        if now_s < self._rates_until_s:
            return
        try:
            rates, again_s = read_skus(self._clients.skus()), RATES_S
        except ProviderError as error:
            self._say("the Cloud Billing Catalog", error)
            rates, again_s = self._rates, AGAIN_S
        with self._lock:
            self._rates, self._rates_until_s = rates, now_s + again_s

    def _refresh_spot(self, places: Sequence[Place]) -> None:
        now_s = self._monotonic_s()
        with self._lock:
            stale = [place for place in places if now_s >= self._spot_until_s.get(place, 0.0)]
        told = self._clients.side_by_side(stale, self._ask)
        with self._lock:
            for place, microusd, for_s in told:
                self._spot_until_s[place] = now_s + for_s
                if microusd is not None:
                    self._spot[place] = microusd

    def _ask(self, place: Place) -> tuple[Place, int | None, float]:
        """(place, its price, for how long): 0 where Google tells none, None where it may later."""
        region, kind = place
        wanted = {
            "types": ["PRICE"],
            "instance_properties": {
                "machine_type": kind,
                "scheduling": {"provisioning_model": "SPOT"},
            },
            "location_policy": {"location": f"projects/{self._clients.project}/regions/{region}"},
        }
        try:
            answer = self._clients.call(
                "Advice",
                "capacity_history",
                region=region,
                capacity_history_request_resource=wanted,
            )
        except (UnknownOutcome, ThrottledError):
            return place, None, AGAIN_S
        except ProviderError as error:  # no history of such machines, or no right to it
            self._say("Google's capacity history", error)
            return place, 0, SPOT_S
        return place, read_history(answer), SPOT_S

    def _say(self, source: str, error: ProviderError) -> None:
        """Once for each source: it is asked again and again."""
        if source not in self._said:
            self._said.add(source)
            log.warning("%s tells no prices: %s", source, error)


def read_history(answer: Any) -> int:
    """The latest price of a capacity history, micro-USD per hour; 0 for none in US dollars."""
    latest, found = -1, 0
    for record in answer.price_history:
        price, at_us = record.list_price, us_of(record.interval.start_time)
        if price.currency_code in ("", "USD") and at_us > latest:
            latest, found = at_us, usd_micro(price.units, price.nanos)
    return found
