"""The notice times and the egress price of each kind of cloud.

Notice times are documented, claimed, and observed by this fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.base import CapacityType
from providers.catalogs.egress import egress_prices
from providers.catalogs.notices import notice_times, planned_notice_s
from spotd.api.request.request import ApiRequest
from spotd.domain.units import S
from spotd.history.interruption_stats import GroupBy, Row, count
from spotd.history.intervals import quantile
from spotd.money.units import usd
from spotd.planner.core.checkpoint_interval import WITHIN_S


def providers(call: ApiRequest) -> dict[str, Any]:
    """Each make of cloud that is configured, or of which a notice time or a price of egress is
    known: its notices of the last 30 days (documented, observed, counted on) and that price."""
    infos = call.context.clouds.providers()
    observed = notices_by_cloud(call)
    kinds = {info.kind for info in infos if info.kind != "local"}
    names = sorted({*notice_times(), *egress_prices(), *observed, *kinds})
    return {
        "kind": "ProviderList",
        "items": [
            {
                "name": name,
                "providers": sorted(i.name for i in infos if i.kind == name),
                "notice_s": notice_data(name, observed.get(name, ())),
                "egress": egress_data(name),
            }
            for name in names
        ],
    }


def notices_by_cloud(call: ApiRequest) -> Mapping[str, Sequence[float]]:
    """Return the notice times in seconds of spot machines taken away in the last 30 days, by cloud.

    Clouds without such machines are left out.
    """
    since_us = call.now_us - int(WITHIN_S * S)
    lives = call.context.store.node_history.machine_lives(since_us)
    rows: list[Row] = count(lives, GroupBy.CLOUD, CapacityType.SPOT.value, since_us, call.now_us)
    return {row.name: row.warnings_s for row in rows if row.warnings_s}


def egress_data(cloud: str) -> dict[str, Any] | None:
    """Return the price in US dollars of the first GB of a month that leaves the cloud.

    `zero`: egress is free, whatever the amount. None where no price is known.
    """
    egress = egress_prices().get(cloud)
    if egress is None:
        return None
    price = usd(egress.first_microusd_per_gb)
    return {
        "zero": egress.free,
        "usd_per_gb": price,
        "source": egress.source,
        "dated": egress.dated,
    }


def notice_data(cloud: str, observed: Sequence[float]) -> dict[str, Any]:
    """Return the notice times of a cloud in seconds; null is not known.

    `planned` is the smaller of `documented` and `observed_p10`.
    """
    documented, p10 = notice_times().get(cloud), quantile(observed, 0.1)
    return {
        "documented": documented.seconds if documented else None,
        "claimed": list(documented.claimed) if documented and documented.claimed else None,
        "observed_p10": p10,
        "observed_p50": quantile(observed, 0.5),
        "count": len(observed),
        "planned": planned_notice_s(cloud, p10),
        "source": documented.source if documented else None,
        "dated": documented.dated if documented else None,
    }
