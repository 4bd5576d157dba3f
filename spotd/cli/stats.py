"""`spotctl stats`: interruptions, notices and launches that this deployment recorded."""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.text import clean, span
from spotd.cli.durations import duration_s
from spotd.cli.offers import CAPACITY, Capacity
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_message, print_table


class StatsGroup(str, Enum):
    CLOUD = "cloud"
    REGION = "region"
    ZONE = "zone"
    POOL = "pool"
    HOUR = "hour"
    WEEKDAY = "weekday"


# An estimate stays or goes with its interval, which has its rank.
_INTERRUPTIONS = (
    *(Column(title, right=True, rank=0) for title in ("MACHINE-H", "TAKEN", "AN HOUR", "90 %")),
    Column("EACH", right=True, rank=4),
    *(Column(title, right=True, rank=2) for title in ("NO NOTICE", "90 %")),
    *(Column(title, right=True, rank=3) for title in ("NOTICE P50", "P10", "OF")),
    Column("", rank=0),
)
_LAUNCHES = (
    *(Column(title, right=True, rank=0) for title in ("REQUESTS", "REFUSED", "", "90 %")),
    *(Column(title, right=True, rank=1) for title in ("NOT UP", "", "90 %")),
    *(Column(title, right=True, rank=2) for title in ("UP AFTER P50", "P90", "OF")),
    Column("REFUSED FOR", wrap=True, rank=3),
)
_EXPECTATIONS = (
    *(Column(title, right=True, rank=0) for title in ("EXPECTED", "RATIO", "90 %")),
    Column("TAKEN AWAY", wrap=True),
    *(Column(title, right=True) for title in ("RESUMES", "TRAINED", "", "90 %")),
)
_CLAIMS = (
    Column("SOURCE", rank=0),
    Column("OF", wrap=True),
    Column("CLAIMED", wrap=True, rank=0),
    Column("AN HOUR", right=True, wrap=True, rank=0),
    Column("EACH", right=True, rank=2),
    Column("", wrap=True),
)
_COMPARED = {"more": "more often than believed", "less": "less often than believed", "open": "?"}


def stats(
    ctx: typer.Context,
    since: str = typer.Option("30d", "--since", metavar="DURATION", help="How far back."),
    by: StatsGroup = typer.Option(
        StatsGroup.CLOUD,
        "--by",
        metavar="WHAT",
        help="cloud, region, zone, pool, hour or weekday (UTC).",
    ),
    capacity: Capacity | None = CAPACITY,
    claims: bool = typer.Option(
        False, "--claims", help="Also show the claims of guides, in the same unit."
    ),
    output: Output = output_option(),
) -> None:
    """Show how often machines were preempted, with how much notice, and how many requests were
    refused.

    All data is this deployment's own record. TAKEN counts preemptions and losses of spot machines
    (or of --capacity), AN HOUR is per machine-hour, and the 90 % interval contains the true value
    nine times of ten. EACH is the mean time between. NOTICE is the time from the notice to the end
    of a machine: half had less than P50, one of ten less than P10. UP AFTER is the time from the
    request to the first message of the machine's agent. Figures from fewer than five cases are
    shown as "few". EXPECTED is the number of interruptions by published traces of each cloud, RATIO
    is TAKEN divided by it: "?" if its interval includes 1. RESUMES are machines that should
    continue a job, TRAINED those that did. --claims adds the claims of guides: "5 %" of a month and
    of a day differ, AN HOUR makes them comparable.

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
        data = client.call(routes.STATS(), query=query)
    emit(data, output, lambda: _print(data, claims=claims), "name")


def _print(data: dict[str, Any], *, claims: bool) -> None:
    rows = data["items"]
    if rows:
        _print_rows(data, rows)
    else:
        print_message(f"no {data['capacity']} machine was requested since {data['since']}")
    if claims:
        print()
        print_table(_CLAIMS, [_claim_cells(claim) for claim in data["claims"]])
        for source in {claim["name"]: claim["source"] for claim in data["claims"]}.items():
            print_message(f"{source[0]}: {source[1]}")


def _print_rows(data: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    if len(rows) > 1:
        rows = [*rows, data["total"]]
    name_column = Column(data["by"].upper(), wrap=True, rank=0)
    print_table(
        (name_column, *_INTERRUPTIONS), [[row["name"], *_interruption_cells(row)] for row in rows]
    )
    print()
    print_table((name_column, *_LAUNCHES), [[row["name"], *_launch_cells(row)] for row in rows])
    print()
    print_table(
        (name_column, *_EXPECTATIONS), [[row["name"], *_expectation_cells(row)] for row in rows]
    )
    for prior in data["priors"]:
        cloud = f"{clean(prior['cloud'])}: " if prior["cloud"] else ""
        print_message(f"prior: {cloud}one every {prior['mtti_h']:,.0f} h ({prior['source']})")
    resumes = data["total"]["resumes"]
    if untrained := resumes["tried"] - resumes["trained"]:
        print_message(
            f"{untrained} of {resumes['tried']} resumes did not train, or had no checkpoint"
        )
    if data["by"] in (StatsGroup.HOUR.value, StatsGroup.WEEKDAY.value):
        print_message("times are UTC")
    if cut_short := data["total"]["notice"]["cut_short"]:
        print_message(
            f"{cut_short} stopped reporting before the deadline of a notice, and count until "
            "their last report"
        )


def _interruption_cells(row: dict[str, Any]) -> list[Cell | str]:
    interruptions, notice = row["interruptions"], row["notice"]
    hazard, without_notice = interruptions["per_machine_hour"], notice["without"]
    few_cases = hazard is not None and hazard["few"]
    mtti_h = interruptions["mtti_h"]
    return [
        f"{row['machine_hours']:,.1f}",
        str(interruptions["count"]),
        "-" if hazard is None else f"{hazard['value']:.3g}",
        "-" if hazard is None else f"{hazard['low']:.2g} to {hazard['high']:.2g}",
        "-" if mtti_h is None else span(mtti_h * 3600),
        *_share(without_notice),
        *(_seconds(notice[key]) for key in ("median_s", "p10_s")),
        str(notice["announced"]),
        Cell("few", "yellow") if few_cases else "",
    ]


def _launch_cells(row: dict[str, Any]) -> list[Cell | str]:
    launches = row["launches"]
    hello = launches["hello"]
    return [
        str(launches["asked"]),
        str(sum(launches["refused"].values())),
        *_share(launches["refused_share"]),
        str(launches["boot_failures"]),
        *_share(launches["boot_failed_share"]),
        *(_seconds(hello[key]) for key in ("median_s", "p90_s")),
        str(hello["count"]),
        ", ".join(f"{code} {count}" for code, count in launches["refused"].items()) or "-",
    ]


def _claim_cells(claim: dict[str, Any]) -> list[Cell | str]:
    low, high = claim["per_machine_hour"]["low"], claim["per_machine_hour"]["high"]
    rate = f"{high:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    mean = span(claim["mtti_h"] * 3600)
    return [
        claim["name"],
        claim["what"],
        claim["claimed"],
        rate,
        mean,
        Cell(claim["note"], "yellow"),
    ]


def _expectation_cells(row: dict[str, Any]) -> list[Cell | str]:
    interruptions, resumes = row["interruptions"], row["resumes"]
    ratio = interruptions["ratio"]
    return [
        f"{interruptions['expected']:,.2f}",
        "-" if ratio is None else f"{ratio['value']:.2g}",
        "-" if ratio is None else f"{ratio['low']:.2g} to {ratio['high']:.2g}",
        "-" if ratio is None else _COMPARED[interruptions["often"]],
        *(str(resumes[key]) for key in ("tried", "trained")),
        *_share(resumes["share"]),
    ]


def _share(estimate: dict[str, Any] | None) -> list[str]:
    if estimate is None:
        return ["-", "-"]
    low, high = estimate["low"] * 100, estimate["high"] * 100
    return [f"{estimate['value'] * 100:.0f} %", f"{low:.0f} to {high:.0f}"]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
