"""`spotctl price claims`: what guides say that GPUs cost, beside what the clouds ask now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from providers.catalogs.guides import Claim, deepest
from providers.catalogs.guides import claims as on_file
from spotd.api_client.client import connect
from spotd.base.errors import UserError
from spotd.base.text import clean, money, percent
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say

_MOST_OFFERS = 5000
_COLUMNS = (
    Column("GPU"),
    Column("SELLER"),
    Column("ON-DEMAND", right=True),
    Column("SPOT", right=True),
    Column("OFF", right=True),
    Column("DATED"),
    Column("HERE", right=True),
    Column("SPOT HERE", right=True),
    Column("", cut=True),
)


def claims(ctx: typer.Context, output: Output = output_option()) -> None:
    """List what guides to spot and vendors' pages say that one GPU costs an hour.

    OFF is computed from the prices. HERE and SPOT HERE are the cheapest of what the clouds of this
    deployment ask now for such a GPU, which counts more than any list.

    \b
    Example:
      spotctl price claims
      spotctl price claims -o json
    """
    found = on_file()
    now = _now(ctx)
    data = {
        "kind": "PriceClaims",
        "items": [{**_claim(one), "here": now.get(one.accelerator)} for one in found],
        "deepest": {gpu: _claim(one) for gpu, one in deepest(found).items()},
    }
    emit(data, output, lambda: _print(data), "seller")


def _claim(one: Claim) -> dict[str, Any]:
    return {
        "seller": one.seller,
        "accelerator": one.accelerator,
        "on_demand_usd_per_gpu_h": one.on_demand_usd,
        "spot_usd_per_gpu_h": one.spot_usd,
        "discount": round(one.discount, 4),
        "dated": one.dated,
        "source": one.source,
        "note": one.note,
    }


def _now(ctx: typer.Context) -> dict[str, dict[str, float | None]]:
    """By GPU, the cheapest on demand and as spot; nothing where no daemon answers."""
    try:
        with connect(ctx) as client:
            items = client.get("/v1/offers", limit=_MOST_OFFERS)["items"]
    except UserError as error:
        say(f"without what the clouds ask now: {error}")
        return {}
    names = {item["accelerator"] for item in items if item["accelerator_count"]}
    return {
        name: {how: _cheapest(items, name, how) for how in ("on_demand", "spot")} for name in names
    }


def _cheapest(items: Iterable[Mapping[str, Any]], name: str, capacity: str) -> float | None:
    each = (
        item["price_usd_per_h"] / item["accelerator_count"]
        for item in items
        if (item["accelerator"], item["capacity_type"]) == (name, capacity) and not item["excluded"]
    )
    return min(each, default=None)


def _print(data: Mapping[str, Any]) -> None:
    say("dollars of one GPU and hour; none of it was measured, and the clouds' own prices count:")
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    best = (
        f"{gpu} {one['seller']} {percent(one['discount'])}" for gpu, one in data["deepest"].items()
    )
    say(f"the deepest discount, by GPU: {', '.join(best)}")


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
