"""`spotctl advisor commitments`: how many machines to commit to, and what to leave to spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent
from spotd.cli.durations import duration_s
from spotd.cli.render import (
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
    print_text,
)

MAX_USD = 1e6  # per hour; no machine costs more, and infinity is not a price
_COLUMNS = (
    Column("COMMITTED TO", rank=0),
    Column("MACHINES", right=True, rank=0),
    *(Column(t, right=True, rank=3) for t in ("IDLE H", "ON DEMAND H", "SPOT H")),
    *(Column(t, right=True, rank=2) for t in ("COMMITTED", "ON DEMAND", "SPOT")),
    *(Column(t, right=True, rank=0) for t in ("COST", "SAVED")),
)


def _price(name: str, text: str) -> Any:
    return typer.Option(
        None, f"--{name}-usd-per-hour", metavar="USD", min=0.0, max=MAX_USD, help=text
    )


def commitments(
    ctx: typer.Context,
    discount: str = typer.Option(
        "", "--discount", metavar="PERCENT", help="Discount of the commitment against on-demand."
    ),
    committed: float | None = _price("committed", "Price of a committed hour."),
    use: Path | None = typer.Option(
        None, "--use", metavar="FILE", help="CSV file of machines in use, instead of the ledger."
    ),
    on_demand: float | None = _price("on-demand", "On-demand price, instead of the ledger's."),
    spot: float | None = _price("spot", "Price of a useful spot hour; default: as paid."),
    kind: str = typer.Option("", "--type", metavar="TYPE", help="Only this instance type."),
    since: str = typer.Option("365d", "--since", metavar="DURATION", help="How far back."),
    output: Output = output_option(),
) -> None:
    """Advise how many machines to commit to (reserved, savings plan), and what to leave to spot.

    From the machines in use in each hour: the number that costs least, never above those in use in
    every hour. A committed machine is paid by the hour, used or not; it takes work that would run
    on demand first. It makes no spot machine cheaper. Buys nothing.

    \b
    Example:
      spotctl advisor commitments --discount 35%
      spotctl advisor commitments --type p5.48xlarge --committed-usd-per-hour 33.02 --since 90d
    """
    discount_share = _discount(discount)
    if (discount_share is None) == (committed is None):
        message = (
            "the price of a commitment is missing: give --discount or --committed-usd-per-hour"
        )
        raise UserError(message, "--discount 35%", ExitCode.USAGE)
    if use is not None:
        from spotd.cli.use_file import read_use

        hours = [[pool.on_demand, pool.spot] for pool in read_use(use)]
        pools = [{"cloud": "", "region": "", "instance_type": kind or use.stem, "hours": hours}]
    else:
        with connect(ctx) as client:
            reply = client.call(
                routes.MACHINE_USE(), query={"since_s": int(duration_s(since, "--since", "365d"))}
            )
        pools = [pool for pool in reply["items"] if kind in ("", pool["instance_type"])]
        if not pools:
            of_type = f" of type {kind}" if kind else ""
            print_message(f"no rented machines{of_type} are on record of the last {since}")
    items = [
        _advice(
            pool_data=pool,
            discount_share=discount_share,
            committed=committed,
            on_demand=on_demand,
            spot=spot,
        )
        for pool in pools
    ]
    data = {"apiVersion": "spotd/v1", "kind": "CommitmentAdvice", "items": items}
    emit(data, output, lambda: _print(items), "instance_type")


def _discount(text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text.removesuffix("%").strip())
    except ValueError:
        value = -1.0
    if not 0 < value < 100:
        text = f"--discount {text!r} is not above 0 % and below 100 %"
        raise UserError(text, "--discount 35%", ExitCode.USAGE)
    return value / 100


def _advice(
    pool_data: dict[str, Any],
    discount_share: float | None,
    committed: float | None,
    on_demand: float | None,
    spot: float | None,
) -> dict[str, Any]:
    from spotd.money.commitment import HourlyUse, Pool, Prices, advice_data

    name = {key: pool_data[key] for key in ("cloud", "region", "instance_type")}
    pool = Pool([HourlyUse(*pair) for pair in pool_data["hours"]])
    on_demand_usd = pool_data.get("on_demand_usd_per_h") if on_demand is None else on_demand
    spot_usd = pool_data.get("spot_usd_per_h") if spot is None else spot
    if not on_demand_usd:
        raise _unpriced(pool_data, "on-demand")
    if not spot_usd:
        if any(hour.spot for hour in pool.hours):
            raise _unpriced(pool_data, "spot")
        spot_usd = 0.0
    committed_usd = (
        on_demand_usd * (1 - discount_share) if discount_share is not None else committed
    )
    return {**name, **advice_data(pool, Prices(on_demand_usd, spot_usd, committed_usd or 0.0))}


def _unpriced(pool_data: dict[str, Any], capacity: str) -> UserError:
    message = f"the {capacity} price of {clean(pool_data['instance_type'])} is not known"
    return UserError(message, f"--{capacity}-usd-per-hour", ExitCode.USAGE)


def _print(items: list[dict[str, Any]]) -> None:
    for number, pool in enumerate(items):
        if number:
            print()
        _print_pool(pool)


def _print_pool(pool: dict[str, Any]) -> None:
    where = "/".join(filter(None, (pool["cloud"], pool["region"])))
    name = clean(f"{pool['instance_type']}{f' in {where}' if where else ''}")
    machines = pool["machines"]
    print_text(
        f"{name}: {pool['hours']:,} hours, {machines['least']:.2f} to {machines['most']:.2f} "
        f"machines at once, {machines['mean']:.2f} on average"
    )
    print_text(_verdict(pool))
    print_table(_COLUMNS, [_row(plan) for plan in pool["plans"]])
    print_text(f"everything on demand: {money(pool['all_on_demand_usd'])}")
    if pool["few"]:
        print_message(
            f"{pool['hours']:,} hours are fewer than four weeks, and a commitment is for a year or "
            "three: wait, unless use will continue like this"
        )


def _verdict(pool: dict[str, Any]) -> str:
    prices = pool["prices"]
    terms = f"at {money(prices['committed'])} an hour, {percent(prices['discount'])} off"
    if pool["worth_first"] is None:
        return f"commit to none: no machine was in use in every hour ({terms})"
    value_range = (
        f"worth {money(pool['worth_first'])} an hour (the first) to {money(pool['worth_last'])}"
    )
    if not pool["advised"]:
        return f"commit to none {terms}: {value_range}"
    saved = next(plan for plan in pool["plans"] if plan["name"] == "advised")["saved_usd"]
    return (
        f"commit to {pool['advised']}, {percent(pool['of_baseline'])} of those always in use, "
        f"{terms}: {value_range}; saves {money(saved)}, and leaves "
        f"{percent(pool['left_to_spot'])} of the hours to spot"
    )


def _row(plan: dict[str, Any]) -> list[str]:
    counts = [f"{plan[name]:,.0f}" for name in ("machines", "idle_h", "on_demand_h", "spot_h")]
    sums = [plan[name] for name in ("committed_usd", "on_demand_usd", "spot_usd", "usd")]
    return [plan["name"], *counts, *map(money, sums), money(plan["saved_usd"])]
