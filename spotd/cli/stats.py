"""`spotctl stats`."""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.text import clean, span
from spotd.cli.durations import duration_s
from spotd.cli.offers import CAPACITY, Capacity
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say


class By(str, Enum):
    CLOUD = "cloud"
    REGION = "region"
    ZONE = "zone"
    POOL = "pool"
    HOUR = "hour"
    WEEKDAY = "weekday"


_INTERRUPTIONS = (
    *(Column(title, right=True) for title in ("MACHINE-H", "TAKEN", "AN HOUR", "90 %", "EACH")),
    *(Column(title, right=True) for title in ("NO NOTICE", "90 %", "NOTICE P50", "P10", "OF")),
    Column(""),
)
_LAUNCHES = (
    *(
        Column(title, right=True)
        for title in ("ASKED", "REFUSED", "", "90 %", "NOT UP", "", "90 %")
    ),
    *(Column(title, right=True) for title in ("UP AFTER P50", "P90", "OF")),
    Column("REFUSED FOR", cut=True),
)
_BESIDE = (
    *(Column(title, right=True) for title in ("EXPECTED", "RATIO", "90 %")),
    Column("TAKEN AWAY"),
    *(Column(title, right=True) for title in ("RESUMES", "TRAINED", "", "90 %")),
)
_CLAIMS = (
    *(Column(title) for title in ("SOURCE", "OF", "CLAIMED")),
    *(Column(title, right=True) for title in ("AN HOUR", "EACH")),
    Column("", cut=True),
)
_OFTEN = {"more": "more often than believed", "less": "less often than believed", "open": "?"}


def stats(
    ctx: typer.Context,
    since: str = typer.Option("30d", "--since", metavar="DURATION", help="How far back."),
    by: By = typer.Option(
        By.CLOUD, "--by", metavar="WHAT", help="cloud, region, zone, pool, hour or weekday (UTC)."
    ),
    capacity: Capacity | None = CAPACITY,
    claims: bool = typer.Option(False, "--claims", help="What guides say, in the same unit."),
    output: Output = output_option(),
) -> None:
    """Show how often machines were taken away, with how much notice, and which were to be had.

    All of it is this deployment's own record. TAKEN counts preemptions and losses of spot machines
    (or of --capacity), AN HOUR is per machine-hour, and the truth lies in the 90 % interval nine
    times of ten. EACH is the mean time between. NOTICE is how long machines lived on after they
    heard: half had less than P50, one of ten less than P10. UP AFTER is from the request until the
    machine's agent spoke. What rests on fewer than five cases says "few". EXPECTED is how many
    would have been taken away by published traces of each cloud, RATIO is TAKEN by it: "?" where
    its interval has 1. RESUMES are machines that were to go on with a job, TRAINED those that did.
    --claims adds what guides say: "5 %" of a month and of a day are not the same, AN HOUR is.

    \b
    Example:
      spotctl stats
      spotctl stats --since 90d --by zone --claims
      spotctl stats --by hour --capacity on_demand -o json
    """
    query = {"since_s": int(duration_s(since, "--since", "30d, or 24h")), "by": by.value}
    if capacity is not None:
        query["capacity"] = capacity.value
    with connect(ctx) as client:
        data = client.get("/v1/stats", **query)
    emit(data, output, lambda: _print(data, claims=claims), "name")


def _print(data: dict[str, Any], *, claims: bool) -> None:
    rows = data["items"]
    if rows:
        _print_rows(data, rows)
    else:
        say(f"no {data['capacity']} machine was asked for since {data['since'][:16]}Z")
    if claims:
        print()
        print_table(_CLAIMS, [_claim_cells(one) for one in data["claims"]])
        for source in {one["name"]: one["source"] for one in data["claims"]}.items():
            say(f"{source[0]}: {source[1]}")


def _print_rows(data: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    if len(rows) > 1:
        rows = [*rows, data["total"]]
    first = Column(data["by"].upper(), cut=True, tail=8)
    print_table((first, *_INTERRUPTIONS), [[row["name"], *_taken_cells(row)] for row in rows])
    print()
    print_table((first, *_LAUNCHES), [[row["name"], *_launch_cells(row)] for row in rows])
    print()
    print_table((first, *_BESIDE), [[row["name"], *_beside_cells(row)] for row in rows])
    for one in data["priors"]:
        cloud = f"{clean(one['cloud'])}: " if one["cloud"] else ""
        say(f"believed before: {cloud}one each {one['mtti_h']:,.0f} h ({one['source']})")
    resumes = data["total"]["resumes"]
    if failed := resumes["tried"] - resumes["trained"]:
        say(f"{failed} of {resumes['tried']} resumes did not train, and none should be so")
    if data["by"] in (By.HOUR.value, By.WEEKDAY.value):
        say("times are UTC")
    if cut := data["total"]["notice"]["cut_short"]:
        say(f"{cut} fell silent before the deadline of a notice, and count as long as they spoke")


def _taken_cells(row: dict[str, Any]) -> list[Cell | str]:
    found, notice = row["interruptions"], row["notice"]
    hazard, without = found["per_machine_hour"], notice["without"]
    few = hazard is not None and hazard["few"]
    each = found["mtti_h"]
    return [
        f"{row['machine_hours']:,.1f}",
        str(found["count"]),
        "-" if hazard is None else f"{hazard['value']:.3g}",
        "-" if hazard is None else f"{hazard['low']:.2g} to {hazard['high']:.2g}",
        "-" if each is None else span(each * 3600),
        *_share(without),
        *(_seconds(notice[key]) for key in ("median_s", "p10_s")),
        str(notice["announced"]),
        Cell("few", "yellow") if few else "",
    ]


def _launch_cells(row: dict[str, Any]) -> list[Cell | str]:
    found = row["launches"]
    hello = found["hello"]
    return [
        str(found["asked"]),
        str(sum(found["refused"].values())),
        *_share(found["refused_share"]),
        str(found["boot_failures"]),
        *_share(found["boot_failed_share"]),
        *(_seconds(hello[key]) for key in ("median_s", "p90_s")),
        str(hello["count"]),
        ", ".join(f"{code} {count}" for code, count in found["refused"].items()) or "-",
    ]


def _claim_cells(one: dict[str, Any]) -> list[Cell | str]:
    low, high = one["per_machine_hour"]["low"], one["per_machine_hour"]["high"]
    rate = f"{high:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    mean = span(one["mtti_h"] * 3600)
    return [one["name"], one["what"], one["claimed"], rate, mean, Cell(one["note"], "yellow")]


def _beside_cells(row: dict[str, Any]) -> list[Cell | str]:
    found, resumes = row["interruptions"], row["resumes"]
    ratio = found["ratio"]
    return [
        f"{found['expected']:,.2f}",
        "-" if ratio is None else f"{ratio['value']:.2g}",
        "-" if ratio is None else f"{ratio['low']:.2g} to {ratio['high']:.2g}",
        "-" if ratio is None else _OFTEN[found["often"]],
        *(str(resumes[key]) for key in ("tried", "trained")),
        *_share(resumes["share"]),
    ]


def _share(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["-", "-"]
    low, high = found["low"] * 100, found["high"] * 100
    return [f"{found['value'] * 100:.0f} %", f"{low:.0f} to {high:.0f}"]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
