"""`spotctl commitments`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent
from spotd.cli.durations import duration_s
from spotd.cli.render import Column, Output, emit, output_option, print_table, say

MOST_USD = 1e6  # an hour: no machine costs more, and infinity is no price
_COLUMNS = (
    Column("COMMITTED TO"),
    *(Column(t, right=True) for t in ("MACHINES", "IDLE H", "ON DEMAND H", "SPOT H")),
    *(Column(t, right=True) for t in ("COMMITTED", "ON DEMAND", "SPOT", "COST", "SAVED")),
)


def _price(name: str, text: str) -> Any:
    return typer.Option(
        None, f"--{name}-usd-per-hour", metavar="USD", min=0.0, max=MOST_USD, help=text
    )


def commitments(
    ctx: typer.Context,
    discount: str = typer.Option(
        "", "--discount", metavar="PERCENT", help="Of the commitment, off the on-demand price."
    ),
    committed: float | None = _price("committed", "What an hour costs that is committed to."),
    use: Path | None = typer.Option(
        None, "--use", metavar="FILE", help="CSV of hours instead of the ledger's."
    ),
    on_demand: float | None = _price("on-demand", "Instead of what the ledger has."),
    spot: float | None = _price("spot", "A useful hour, with interruptions; else as it was paid."),
    kind: str = typer.Option("", "--type", metavar="TYPE", help="Of machines, that one alone."),
    since: str = typer.Option("365d", "--since", metavar="DURATION", help="How far back."),
    output: Output = output_option(),
) -> None:
    """Say how many machines to commit to (reserved, savings plan), and what to leave to spot.

    From the machines that were in use in each hour: the number that costs least, never above those
    in use in every hour. A committed machine is paid for by the hour, used or not; it takes work
    that would run on demand first. It makes no spot machine cheaper. Buys nothing.

    \b
    Example:
      spotctl commitments --discount 35%
      spotctl commitments --type p5.48xlarge --committed-usd-per-hour 33.02 --since 90d
    """
    off = _discount(discount)
    if (off is None) == (committed is None):
        text = "say what a commitment costs: --discount or --committed-usd-per-hour"
        raise UserError(text, "--discount 35%", ExitCode.USAGE)
    if use is not None:
        from spotd.cli.use_file import read_use

        hours = [[one.on_demand, one.spot] for one in read_use(use)]
        found = [{"cloud": "", "region": "", "instance_type": kind or use.stem, "hours": hours}]
    else:
        with connect(ctx) as client:
            told = client.get("/v1/use", since_s=int(duration_s(since, "--since", "365d")))
        found = [one for one in told["items"] if kind in ("", one["instance_type"])]
        if not found:
            wanted = f" of type {kind}" if kind else ""
            say(f"no rented machines{wanted} are on record of the last {since}")
    items = [_advice(one, off, committed, on_demand, spot) for one in found]
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
    one: dict[str, Any],
    off: float | None,
    committed: float | None,
    on_demand: float | None,
    spot: float | None,
) -> dict[str, Any]:
    from spotd.money.commitment import HourlyUse, Pool, Prices, advice_data

    name = {key: one[key] for key in ("cloud", "region", "instance_type")}
    pool = Pool([HourlyUse(*pair) for pair in one["hours"]])
    listed = one.get("on_demand_usd_per_h") if on_demand is None else on_demand
    on_spot = one.get("spot_usd_per_h") if spot is None else spot
    if not listed:
        raise _unpriced(one, "on demand", "on-demand")
    if not on_spot:
        if any(hour.spot for hour in pool.hours):
            raise _unpriced(one, "on spot", "spot")
        on_spot = 0.0
    paid = listed * (1 - off) if off is not None else committed
    return {**name, **advice_data(pool, Prices(listed, on_spot, paid or 0.0))}


def _unpriced(one: dict[str, Any], what: str, option: str) -> UserError:
    text = f"what {clean(one['instance_type'])} costs {what} is not known"
    return UserError(text, f"--{option}-usd-per-hour", ExitCode.USAGE)


def _print(items: list[dict[str, Any]]) -> None:
    for number, one in enumerate(items):
        if number:
            print()
        _print_pool(one)


def _print_pool(one: dict[str, Any]) -> None:
    where = "/".join(filter(None, (one["cloud"], one["region"])))
    name = clean(f"{one['instance_type']}{f' in {where}' if where else ''}")
    of = one["machines"]
    print(
        f"{name}: {one['hours']:,} hours, {of['least']:.2f} to {of['most']:.2f} machines at once, "
        f"{of['mean']:.2f} on average"
    )
    print(_verdict(one))
    print_table(_COLUMNS, [_row(plan) for plan in one["plans"]])
    print(f"all of it on demand: {money(one['all_on_demand_usd'])}")
    if one["few"]:
        say(
            f"{one['hours']:,} hours are fewer than four weeks, and a commitment is for a year or "
            "three: wait, or trust it to go on like this"
        )


def _verdict(one: dict[str, Any]) -> str:
    prices = one["prices"]
    at = f"at {money(prices['committed'])} an hour, {percent(prices['discount'])} off"
    if one["worth_first"] is None:
        return f"commit to none: no machine was in use in every hour ({at})"
    worth = f"worth {money(one['worth_first'])} an hour (the first) to {money(one['worth_last'])}"
    if not one["advised"]:
        return f"commit to none {at}: {worth}"
    saved = next(plan for plan in one["plans"] if plan["name"] == "advised")["saved_usd"]
    return (
        f"commit to {one['advised']}, {percent(one['of_baseline'])} of those always in use, {at}: "
        f"{worth}; saves {money(saved)}, and leaves {percent(one['left_to_spot'])} of the hours "
        "to spot"
    )


def _row(plan: dict[str, Any]) -> list[str]:
    counts = [f"{plan[name]:,.0f}" for name in ("machines", "idle_h", "on_demand_h", "spot_h")]
    sums = [plan[name] for name in ("committed_usd", "on_demand_usd", "spot_usd", "usd")]
    return [plan["name"], *counts, *map(money, sums), money(plan["saved_usd"])]
