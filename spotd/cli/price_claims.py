"""`spotctl price claims`: GPU prices that guides claim, beside what the clouds ask now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from providers.catalogs.guides import PriceClaim, largest_discounts
from providers.catalogs.guides import claims as stored_claims
from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.base.text import clean, money, percent
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_message, print_table

_MOST_OFFERS = 5000
_COLUMNS = (
    Column("GPU", rank=0),
    Column("SELLER", rank=0),
    Column("ON-DEMAND", right=True),
    Column("SPOT", right=True),
    Column("OFF", right=True),
    Column("DATED", rank=2),
    Column("HERE", right=True),
    Column("SPOT HERE", right=True),
    Column("", wrap=True),
)


def claims(ctx: typer.Context, output: Output = output_option()) -> None:
    """List the hourly price of one GPU, as claimed by guides to spot and vendors' pages.

    OFF is computed from the prices. HERE and SPOT HERE are the cheapest current prices of this
    deployment's clouds for such a GPU, which count more than any list.

    \b
    Example:
      spotctl price claims
      spotctl price claims -o json
    """
    guide_claims = stored_claims()
    current = _current_prices(ctx)
    data = {
        "kind": "PriceClaims",
        "items": [
            {**_claim(claim), "here": current.get(claim.accelerator)} for claim in guide_claims
        ],
        "deepest": {gpu: _claim(claim) for gpu, claim in largest_discounts(guide_claims).items()},
    }
    emit(data, output, lambda: _print(data), "seller")


def _claim(claim: PriceClaim) -> dict[str, Any]:
    return {
        "seller": claim.seller,
        "accelerator": claim.accelerator,
        "on_demand_usd_per_gpu_h": claim.on_demand_usd,
        "spot_usd_per_gpu_h": claim.spot_usd,
        "discount": round(claim.discount, 4),
        "dated": claim.dated,
        "source": claim.source,
        "note": claim.note,
    }


def _current_prices(ctx: typer.Context) -> dict[str, dict[str, float | None]]:
    """Return GPU -> its cheapest on-demand and spot price; empty if no daemon answers."""
    try:
        with connect(ctx) as client:
            items = client.call(routes.LIST_OFFERS(), query={"limit": _MOST_OFFERS})["items"]
    except UserError as error:
        print_message(f"without current prices: {error}")
        return {}
    names = {item["accelerator"] for item in items if item["accelerator_count"]}
    return {
        name: {capacity: _cheapest(items, name, capacity) for capacity in ("on_demand", "spot")}
        for name in names
    }


def _cheapest(items: Iterable[Mapping[str, Any]], name: str, capacity: str) -> float | None:
    per_gpu = (
        item["price_usd_per_h"] / item["accelerator_count"]
        for item in items
        if (item["accelerator"], item["capacity_type"]) == (name, capacity) and not item["excluded"]
    )
    return min(per_gpu, default=None)


def _print(data: Mapping[str, Any]) -> None:
    print_message(
        "dollars per GPU-hour; none was measured, and current prices of the clouds count more:"
    )
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    best = (
        f"{gpu} {claim['seller']} {percent(claim['discount'])}"
        for gpu, claim in data["deepest"].items()
    )
    print_message(f"the deepest discount, by GPU: {', '.join(best)}")


def _row(item: Mapping[str, Any]) -> list[Cell | str]:
    here = item["here"] or {}
    return [
        item["accelerator"],
        item["seller"],
        money(item["on_demand_usd_per_gpu_h"]),
        money(item["spot_usd_per_gpu_h"]),
        percent(item["discount"]),
        item["dated"],
        money(here.get("on_demand")),
        money(here.get("spot")),
        Cell(clean(item["note"]) or "-", "yellow" if item["note"] else ""),
    ]
