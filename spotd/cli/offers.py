"""`spotctl offers` and `spotctl price`: what the clouds sell, and how its price moved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import typer

from providers.clouds import CLOUDS
from providers.dollars import format_usd
from spotd.api_client.client import Client, connect
from spotd.api_routes import routes
from spotd.base.text import age, money, percent, place, seconds_since, span
from spotd.cli.durations import duration_s
from spotd.cli.groups import group
from spotd.cli.local_time import instant
from spotd.cli.machine_value import machines
from spotd.cli.price_claims import claims
from spotd.cli.render import (
    Cell,
    Column,
    Output,
    emit,
    emit_line,
    output_option,
    print_message,
    print_table,
)

app = group()

_COLUMNS = (
    Column("WHERE", wrap=True, rank=0),
    Column("TYPE", wrap=True, rank=1),
    Column("GPUS", rank=1),
    Column("AS", rank=1),
    Column("$/H", right=True, rank=0),
    Column("$/GPU", right=True, rank=3),
    Column("PRICE OFF", right=True, rank=2),
    Column("NOT NOW", wrap=True, rank=1),
)
_HISTORY_COLUMNS = (
    Column("WHERE", wrap=True, rank=0),
    Column("TYPE", wrap=True, rank=1),
    Column("AS", rank=3),
    Column("PRICE", rank=2),
    Column("LOW", right=True, rank=2),
    Column("HIGH", right=True, rank=2),
    Column("NOW", right=True, rank=0),
    Column("24 H", right=True, rank=4),
    Column("Z", right=True, rank=5),
    Column("ON-DEMAND", right=True, rank=3),
    Column("MOVED", right=True, rank=5),
)
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24  # characters of a sparkline


class Sort(str, Enum):
    PRICE = "price"
    GPU = "gpu"
    DISCOUNT = "discount"


class Capacity(str, Enum):
    SPOT = "spot"
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    BLOCK = "block"


GPUS = typer.Option("", "--gpus", metavar="GPUS", help="Type and minimum number, like H100:8.")
CLOUD = typer.Option(
    "", "--cloud", metavar="CLOUD", help=f"{', '.join(CLOUDS)} or a provider's name."
)
REGION = typer.Option("", "--region", metavar="REGION", help="One region.")
ZONE = typer.Option("", "--zone", metavar="ZONE", help="One zone.")
TYPE = typer.Option("", "--type", metavar="TYPE", help="One type of machine.")
CAPACITY = typer.Option(None, "--capacity", metavar="HOW", help="spot, on_demand, reserved, block.")


@dataclass(frozen=True)
class _Filter:
    gpus: str
    cloud: str
    region: str
    zone: str
    type: str
    capacity: Capacity | None

    def query(self) -> dict[str, str]:
        fields = {**vars(self), "capacity": self.capacity.value if self.capacity else ""}
        return {key: value for key, value in fields.items() if value}


def offers(
    ctx: typer.Context,
    gpus: str = GPUS,
    cloud: str = CLOUD,
    region: str = REGION,
    zone: str = ZONE,
    kind: str = TYPE,
    capacity: Capacity | None = CAPACITY,
    sort: Sort = typer.Option(Sort.PRICE, "--sort", metavar="BY", help="price, gpu or discount."),
    limit: int = typer.Option(40, min=1, metavar="N", help="Show at most N offers."),
    watch: str = typer.Option("", "--watch", metavar="EVERY", help="Refresh interval, like 30s."),
    output: Output = output_option(),
) -> None:
    """List current offers, cheapest first.

    PRICE OFF is the discount against on-demand; spot at 95 % of it or more is "no discount". NOT
    NOW shows why spotd requests nothing there at present. $/GPU is for one accelerator. Capacity
    from a reservation in the configuration is "prepaid" unless its price per hour is configured;
    ENDS IN is when reserved time ends. SCORE is the cloud's own estimate, from 1 to 10, of how
    likely a spot machine is available; it decides between equal prices.

    \b
    Example:
      spotctl offers --gpus H100:8 --capacity spot
      spotctl offers --cloud aws --sort gpu --watch 60s
    """
    query = _Filter(
        gpus=gpus, cloud=cloud, region=region, zone=zone, type=kind, capacity=capacity
    ).query()
    query |= {"sort": sort.value, "limit": str(limit)}
    every_s = duration_s(watch, "--watch", "30s") if watch else 0.0
    with connect(ctx) as client:
        _show(client, query, output, lines=bool(every_s))
        while every_s:
            time.sleep(every_s)
            _show(client, query, output, lines=True)


def _show(client: Client, query: dict[str, str], output: Output, *, lines: bool) -> None:
    data = client.call(routes.LIST_OFFERS(), query=query)
    if lines and output is Output.JSON:
        emit_line(data)
        return
    if lines and output.is_table:
        print(instant(datetime.now(UTC).isoformat()))
    emit(data, output, lambda: _print_offers(data), "key")


def _print_offers(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message("no current offer fits; `spotctl doctor` shows which clouds answer")
        return
    ends = any(item["ends_at"] for item in data["items"])
    scored = any(item.get("placement_score") for item in data["items"])
    evicted = any(item.get("evicted_pct") for item in data["items"])
    extra = [*(["SCORE"] if scored else []), *(["TAKEN"] if evicted else [])]
    extra += ["ENDS IN"] if ends else []
    columns = (*_COLUMNS[:-1], *(Column(name, right=True) for name in extra), _COLUMNS[-1])
    rows = [offer_row(item, ends=ends, scored=scored, evicted=evicted) for item in data["items"]]
    print_table(columns, rows)
    for label, key in (
        ("egress per GB", "egress_usd_per_gb"),
        ("storage per GB and month", "storage_usd_per_gb_month"),
    ):
        priced = (item for item in data["items"] if item.get(key) is not None)
        if prices := sorted({f"{item['provider']} {format_usd(item[key])}" for item in priced}):
            print_message(f"{label}, by list: {', '.join(prices)}")
    if data["total"] > len(data["items"]):
        print_message(f"{data['total'] - len(data['items'])} more: --limit {data['total']}")


def offer_row(
    item: dict[str, Any], *, ends: bool, scored: bool = False, evicted: bool = False
) -> list[Cell | str]:
    """Return one row of the table.

    `scored` adds the placement score, `evicted` the share of such machines that were evicted,
    `ends` the end of reserved time.
    """
    count = item["accelerator_count"]
    per_gpu = item["price_usd_per_h"] / count if count else None
    not_now = item["excluded"] or item["silent"]
    prepaid = item["price_source"] == "prepaid"
    return [
        place(item),
        item["instance_type"],
        f"{count} {item['accelerator']}" if count else "-",
        item["capacity_type"],
        "prepaid" if prepaid else money(item["price_usd_per_h"]),
        "-" if prepaid else money(per_gpu),
        _discount(item),
        *([str(item.get("placement_score") or "-")] if scored else []),
        *([_share(item.get("evicted_pct"))] if evicted else []),
        *([_time_left(item["ends_at"])] if ends else []),
        Cell(not_now or "-", "yellow" if not_now else ""),
    ]


def _time_left(ends_at: str | None) -> str:
    """Return the time until reserved capacity ends."""
    return span(max(0.0, -(seconds_since(ends_at) or 0.0))) if ends_at else "-"


def _discount(item: dict[str, Any]) -> Cell | str:
    if item["no_discount"]:
        return Cell("no discount", "yellow")
    return percent(item["discount"]) if item["capacity_type"] == "spot" else "-"


@app.callback()
def price() -> None:
    """Show price history, and GPU prices that guides claim.

    \b
    Example:
      spotctl price history --gpus H100:8
      spotctl price claims
      spotctl price machines
    """


@app.command("history")
def history(
    ctx: typer.Context,
    gpus: str = GPUS,
    cloud: str = CLOUD,
    region: str = REGION,
    zone: str = ZONE,
    kind: str = TYPE,
    capacity: Capacity | None = CAPACITY,
    since: str = typer.Option("7d", "--since", metavar="DURATION", help="How far back."),
    output: Output = output_option(),
) -> None:
    """Show the price history of current offers, as recorded by this deployment.

    Each line is scaled between its own LOW and HIGH; time without a record is blank. MOVED is the
    time since the last change, 24 H the change within a day, and Z its distance from the day's mean
    in standard deviations. Spot at 95 % of on-demand or more is "no discount".

    \b
    Example:
      spotctl price history --gpus H100:8 --since 7d
      spotctl price history --type p5.48xlarge --capacity spot -o json
    """
    query = _Filter(
        gpus=gpus, cloud=cloud, region=region, zone=zone, type=kind, capacity=capacity
    ).query()
    since_s = int(duration_s(since, "--since", "24h, or 7d"))
    with connect(ctx) as client:
        data = client.call(routes.PRICE_HISTORY(), query={"since_s": since_s, **query})
    emit(data, output, lambda: _print_history(data), "key")


app.command("claims")(claims)
app.command("machines")(machines)


def _print_history(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message("no current offer fits; `spotctl offers` lists them")
        return
    start, end = (datetime.fromisoformat(data[key]).timestamp() for key in ("since", "now"))
    print_table(_HISTORY_COLUMNS, [_history_row(item, start, end) for item in data["items"]])


def _history_row(item: dict[str, Any], start_s: float, end_s: float) -> list[Cell | str]:
    points = [
        (datetime.fromisoformat(point["at"]).timestamp(), point["price_usd_per_h"])
        for point in item["points"]
    ]
    prices = [usd for _, usd in points] or [item["price_usd_per_h"]]
    return [
        place(item),
        item["instance_type"],
        item["capacity_type"],
        sparkline(points, start_s, end_s),
        money(min(prices)),
        money(max(prices)),
        money(item["price_usd_per_h"]),
        _signed(item["change_24h"], "{:+.1%}"),
        _signed(item["z_score_24h"], "{:+.1f}"),
        _on_demand_price(item),
        age(item["points"][-1]["at"]) if item["points"] else "-",
    ]


def _on_demand_price(item: dict[str, Any]) -> Cell | str:
    """Return the on-demand price, or "no discount" where spot costs about as much."""
    if item["no_discount"]:
        return Cell("no discount", "yellow")
    return money(item["list_usd_per_h"] or None)


def _signed(value: float | None, form: str) -> str:
    """Format a signed value; a share as +4.0 %."""
    return "-" if value is None else form.format(value).replace("%", " %")


def sparkline(
    points: list[tuple[float, float]], start_s: float, end_s: float, width: int = _WIDTH
) -> str:
    """Draw (time, value) points, which are in order, as a line of `width` characters.

    Each character is the value in force at the end of its part of the time; blank before the first
    point.
    """
    values = [value for _, value in points]
    low, high = min(values, default=0.0), max(values, default=0.0)
    bars = []
    for part in range(1, width + 1):
        at_s = start_s + (end_s - start_s) * part / width
        known = [value for moved_s, value in points if moved_s <= at_s]
        if not known:
            bars.append(" ")
            continue
        height = (known[-1] - low) / (high - low) if high > low else 0.0
        bars.append(_BARS[round(height * (len(_BARS) - 1))])
    return "".join(bars)


def _share(upper_pct: int | None) -> str:
    """Return the upper bound of an eviction band; Azure's last band is open."""
    if not upper_pct:
        return "-"
    return "20%+" if upper_pct == 100 else f"<{upper_pct}%"
