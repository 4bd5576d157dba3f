"""Machine prices from three sources: Google's capacity history (spot prices of whole machines), the
billing catalog (prices of components), and a dated file for the rest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from providers.base import ProviderError, ThrottledError, UnknownOutcome, parse_timestamp_us
from providers.catalogs.prices import price_file
from providers.gcp.clients import Clients
from providers.gcp.skus import Rates, read_skus, usd_micro
from providers.gcp.types import MachineType

log = logging.getLogger(__name__)

SPOT_S = 3600.0  # Google changes spot prices at most once a day
RATES_S = 6 * 3600.0  # the catalog has tens of thousands of rows
RETRY_S = 300.0  # after a failed fetch

Pool = tuple[str, str]  # (region, machine type)


class Prices:
    """Cached prices. Every source is optional: where one does not answer, the next is used."""

    def __init__(self, clients: Clients, monotonic_s: Callable[[], float]) -> None:
        self._clients = clients
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._rates = Rates()
        self._rates_until_s = 0.0
        self._spot: dict[Pool, int] = {}
        self._spot_until_s: dict[Pool, float] = {}
        self._reported: set[str] = set()

    def refresh(self, pools: Sequence[Pool]) -> None:
        """Fetch expired prices of these pools."""
        self._refresh_rates()
        self._refresh_spot(pools)

    def spot_now(self, machine: MachineType, region: str) -> int:
        """Like `spot`, after refreshing only this pool."""
        self._refresh_spot([(region, machine.name)])
        if not self._spot.get((region, machine.name)):
            self._refresh_rates()
        return self.spot(machine, region)

    def spot(self, machine: MachineType, region: str) -> int:
        """Return micro-USD per hour; 0 when it is unknown."""
        microusd = self._spot.get((region, machine.name), 0)
        return microusd or self._rates.price(machine, region, spot=True)

    def list_price(self, machine: MachineType, region: str) -> int:
        """Return the on-demand price in micro-USD per hour; 0 when it is unknown."""
        microusd = self._rates.price(machine, region, spot=False)
        return microusd or price_file("gcp").on_demand.get(machine.name, {}).get(region, 0)

    def _refresh_rates(self) -> None:
        now_s = self._monotonic_s()
        if now_s < self._rates_until_s:
            return
        try:
            rates, valid_s = read_skus(self._clients.skus()), RATES_S
        except ProviderError as error:
            self._warn_once("the Cloud Billing Catalog", error)
            rates, valid_s = self._rates, RETRY_S
        with self._lock:
            self._rates, self._rates_until_s = rates, now_s + valid_s

    def _refresh_spot(self, pools: Sequence[Pool]) -> None:
        now_s = self._monotonic_s()
        with self._lock:
            stale = [pool for pool in pools if now_s >= self._spot_until_s.get(pool, 0.0)]
        results = self._clients.map_parallel(stale, self._fetch_spot)
        with self._lock:
            for pool, microusd, valid_s in results:
                self._spot_until_s[pool] = now_s + valid_s
                if microusd is not None:
                    self._spot[pool] = microusd

    def _fetch_spot(self, pool: Pool) -> tuple[Pool, int | None, float]:
        """Return (pool, price, validity in seconds). The price is 0 where Google has none, None
        after a transient failure."""
        region, instance_type = pool
        request = {
            "types": ["PRICE"],
            "instance_properties": {
                "machine_type": instance_type,
                "scheduling": {"provisioning_model": "SPOT"},
            },
            "location_policy": {"location": f"projects/{self._clients.project}/regions/{region}"},
        }
        try:
            answer = self._clients.call(
                "Advice",
                "capacity_history",
                region=region,
                capacity_history_request_resource=request,
            )
        except (UnknownOutcome, ThrottledError):
            return pool, None, RETRY_S
        except ProviderError as error:  # no history for this type, or no permission
            self._warn_once("Google's capacity history", error)
            return pool, 0, SPOT_S
        return pool, read_history(answer), SPOT_S

    def _warn_once(self, source: str, error: ProviderError) -> None:
        """Log a failing source once: it is queried again and again."""
        if source not in self._reported:
            self._reported.add(source)
            log.warning("%s returns no prices: %s", source, error)


def read_history(answer: Any) -> int:
    """Return the latest price of a capacity history in micro-USD per hour; 0 without one in US
    dollars."""
    latest, microusd = -1, 0
    for record in answer.price_history:
        price, at_us = record.list_price, parse_timestamp_us(record.interval.start_time)
        if price.currency_code in ("", "USD") and at_us > latest:
            latest, microusd = at_us, usd_micro(price.units, price.nanos)
    return microusd
