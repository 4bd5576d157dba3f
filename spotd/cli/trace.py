"""`spotctl advisor trace`: write recorded spot availability as trace files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import money, percent
from spotd.cli.durations import duration_s
from spotd.cli.offers import GPUS
from spotd.cli.render import Column, Output, emit, output_option, print_message, print_table

_COLUMNS = (
    Column("FILE", rank=0),
    Column("ZONE", wrap=True, rank=0),
    *(
        Column(title, right=True)
        for title in ("SEEN", "OF H", "WAS UP", "ENDS", "SPOT", "ON-DEMAND")
    ),
)
_SHOWN = 5  # pools shown by name, of those that are left out


def trace(
    ctx: typer.Context,
    into: Path = typer.Option(..., "--into", metavar="FOLDER", help="Folder for the files."),
    gap: str = typer.Option(
        "10m", "--gap", metavar="DURATION", help="Length of a tick, which must divide a day."
    ),
    since: str = typer.Option("90d", "--since", metavar="DURATION", help="How far back."),
    stale: str = typer.Option(
        "1h", "--stale", metavar="DURATION", help="How long an observation stays valid."
    ),
    gpus: str = GPUS,
    output: Output = output_option(),
) -> None:
    """Export recorded spot availability as trace files, which can score the placement policy.

    One .npz for each GPU type and count, with all zones, in the format of recorded spot traces:
    zones, avail, spot, od, gap. `avail` is 1 while a machine was held or granted, 0 from when one
    was refused for lack of capacity, preempted or lost; between these the last value holds, and
    `seen` marks where it is younger than --stale. Zones without a request are left out. SEEN is the
    share of observed ticks; WAS UP and ENDS refer to those. See docs/placement.md for the limits of
    this data.

    \b
    Example:
      spotctl advisor trace --into traces --gpus H100:8
      spotctl advisor trace --into traces --gap 5m --since 30d -o json
    """
    from spotd.cli.trace_files import build_traces, write_traces

    gap_s, since_s, stale_s = _intervals(gap, since, stale)
    if not (into if into.exists() else into.absolute().parent).is_dir():
        message = f"--into: {into} is not a folder, and cannot be created"
        raise UserError(message, "name one in a folder that exists", ExitCode.USAGE)
    query = {"since_s": str(since_s)} | ({"gpus": gpus} if gpus else {})
    with connect(ctx) as client:
        data = client.call(routes.TRACES(), query=query)
    files = build_traces(data, gap_s, stale_s)
    if not files:
        raise UserError(*_explain_no_trace(data, gpus, since), ExitCode.NOT_FOUND)
    write_traces(files, into)
    left_out = {pool["pool"]: "never asked" for pool in data["unseen"]}
    for file in files:
        left_out |= file.left_out
    summary = {
        "apiVersion": "spotd/v1",
        "kind": "Traces",
        "folder": str(into),
        "gap_s": gap_s,
        "stale_s": stale_s,
        "items": [file.to_dict() for file in files],
        "left_out": [{"pool": pool, "why": left_out[pool]} for pool in sorted(left_out)],
    }
    emit(summary, output, lambda: _print(summary), "file")


def _intervals(gap: str, since: str, stale: str) -> tuple[int, int, int]:
    """Return --gap, --since and --stale in seconds. Raises UserError."""
    from spotd.cli.trace_files import MOST_TICKS

    gap_s = duration_s(gap, "--gap", "10m, or 195s")
    if gap_s < 1 or 86_400 % gap_s:
        message = f"--gap: a day is not a whole number of ticks of {gap}"
        raise UserError(message, "--gap 10m, 5m or 1m", ExitCode.USAGE)
    since_s = duration_s(since, "--since", "90d")
    if since_s < gap_s:
        raise UserError(f"--since: {since} is less than a tick", "--since 90d", ExitCode.USAGE)
    if since_s / gap_s > MOST_TICKS:
        message = f"--gap: {since} has more than {MOST_TICKS:,} ticks of {gap}"
        raise UserError(message, "a longer --gap or a shorter --since", ExitCode.USAGE)
    return int(gap_s), int(since_s), int(duration_s(stale, "--stale", "1h, or 0"))


def _explain_no_trace(data: dict[str, Any], gpus: str, since: str) -> tuple[str, str]:
    """Return why there is no trace, and the fix to suggest."""
    machine = f"no spot machine with {gpus}" if gpus else "no spot machine with a GPU"
    if data["items"]:
        return "no priced machine was observed for an entire tick", "wait, or use a shorter --gap"
    if unseen := len(data["unseen"]):
        more = f"; {unseen} zones sell such machines, and none was ever requested"
        return f"{machine} was requested in {since}{more}", "run a job there, or a longer --since"
    return f"{machine} was requested in {since}", "a longer --since, or other --gpus"


def _print(data: dict[str, Any]) -> None:
    rows = [
        [
            file["file"],
            zone["zone"],
            percent(zone["seen_share"]),
            f"{file['hours']:,.1f}",
            percent(zone["up_share"]),
            str(zone["ends"]),
            money(zone["spot_usd_per_h"]),
            money(zone["on_demand_usd_per_h"]),
        ]
        for file in data["items"]
        for zone in file["zones"]
    ]
    print_table(_COLUMNS, rows)
    for reason in sorted({row["why"] for row in data["left_out"]}):
        pools = [row["pool"] for row in data["left_out"] if row["why"] == reason]
        more = f" and {len(pools) - _SHOWN} more" if len(pools) > _SHOWN else ""
        print_message(f"left out, {reason}: {', '.join(pools[:_SHOWN])}{more}")
    unpriced = [
        zone["zone"] for file in data["items"] for zone in file["zones"] if zone["priced_share"] < 1
    ]
    if unpriced:
        print_message(
            f"ticks before the first recorded price use that price: {', '.join(unpriced)}"
        )
    first_file = Path(data["folder"]) / data["items"][0]["file"]
    print_message(
        f"to score the policy on it: python bench/policy.py --traces DIR --own {first_file}"
    )
