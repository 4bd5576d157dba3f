"""`spotctl trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import money, percent
from spotd.cli.durations import duration_s
from spotd.cli.offers import GPUS
from spotd.cli.render import Column, Output, emit, output_option, print_table, say

_COLUMNS = (
    Column("FILE"),
    Column("ZONE", cut=True, tail=8),
    *(
        Column(title, right=True)
        for title in ("SEEN", "OF H", "WAS UP", "ENDS", "SPOT", "ON-DEMAND")
    ),
)
_SAID = 5  # pools by name, of those that are left out


def trace(
    ctx: typer.Context,
    out: Path = typer.Option(..., "--out", metavar="FOLDER", help="Where the files go."),
    gap: str = typer.Option("10m", "--gap", metavar="DURATION", help="Of a tick; a part of a day."),
    since: str = typer.Option("90d", "--since", metavar="DURATION", help="How far back."),
    stale: str = typer.Option(
        "1h", "--stale", metavar="DURATION", help="For so long what was seen counts as seen."
    ),
    gpus: str = GPUS,
    output: Output = output_option(),
) -> None:
    """Write what was seen of spot as traces, on which the placement policy can be scored.

    One .npz for each kind and number of GPUs, all zones in it, in the format of recorded spot
    traces: zones, avail, spot, od, gap. `avail` is 1 where a machine was held or granted, 0 from
    when one was refused for want of room, taken away or lost; between these the last one holds, and
    `seen` says where that is younger than --stale. Zones that were never asked are left out. SEEN
    is the share of ticks; WAS UP and ENDS are of those. What this cannot tell is in
    docs/placement.md.

    \b
    Example:
      spotctl trace --out traces --gpus H100:8
      spotctl trace --out traces --gap 5m --since 30d -o json
    """
    from spotd.cli.trace_files import made, write

    gap_s, since_s, stale_s = _terms(gap, since, stale)
    if not (out if out.exists() else out.absolute().parent).is_dir():
        text = f"--out: {out} is no folder, and cannot be made"
        raise UserError(text, "name one in a folder that exists", ExitCode.USAGE)
    query = {"since_s": str(since_s)} | ({"gpus": gpus} if gpus else {})
    with connect(ctx) as client:
        data = client.get("/v1/traces", **query)
    files = made(data, gap_s, stale_s)
    if not files:
        raise UserError(*_nothing(data, gpus, since), ExitCode.NOT_FOUND)
    write(files, out)
    left = {one["pool"]: "never asked" for one in data["unseen"]}
    for file in files:
        left |= file.left_out
    told = {
        "apiVersion": "spotd/v1",
        "kind": "Traces",
        "folder": str(out),
        "gap_s": gap_s,
        "stale_s": stale_s,
        "items": [file.described() for file in files],
        "left_out": [{"pool": pool, "why": left[pool]} for pool in sorted(left)],
    }
    emit(told, output, lambda: _print(told), "file")


def _terms(gap: str, since: str, stale: str) -> tuple[int, int, int]:
    """Seconds of each. Raises UserError."""
    from spotd.cli.trace_files import MOST_TICKS

    gap_s = duration_s(gap, "--gap", "10m, or 195s")
    if gap_s < 1 or 86_400 % gap_s:
        text = f"--gap: a day is no whole number of ticks of {gap}"
        raise UserError(text, "--gap 10m, 5m or 1m", ExitCode.USAGE)
    since_s = duration_s(since, "--since", "90d")
    if since_s < gap_s:
        raise UserError(f"--since: {since} is less than a tick", "--since 90d", ExitCode.USAGE)
    if since_s / gap_s > MOST_TICKS:
        text = f"--gap: {since} has more than {MOST_TICKS:,} ticks of {gap}"
        raise UserError(text, "a longer --gap or a shorter --since", ExitCode.USAGE)
    return int(gap_s), int(since_s), int(duration_s(stale, "--stale", "1h, or 0"))


def _nothing(data: dict[str, Any], gpus: str, since: str) -> tuple[str, str]:
    """What to say, and what to try."""
    what = f"no spot machine with {gpus}" if gpus else "no spot machine with a GPU"
    if data["items"]:
        return "nothing was seen for a whole tick, with a price", "wait, or take a shorter --gap"
    if sold := len(data["unseen"]):
        more = f"; {sold} zones sell such, and none was ever asked"
        return f"{what} was asked for in {since}{more}", "run a job there, or a longer --since"
    return f"{what} was asked for in {since}", "a longer --since, or other --gpus"


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
    for why in sorted({one["why"] for one in data["left_out"]}):
        left = [one["pool"] for one in data["left_out"] if one["why"] == why]
        more = f" and {len(left) - _SAID} more" if len(left) > _SAID else ""
        say(f"left out, {why}: {', '.join(left[:_SAID])}{more}")
    late = [
        zone["zone"] for file in data["items"] for zone in file["zones"] if zone["priced_share"] < 1
    ]
    if late:
        say(f"before the first price on record that one is taken: {', '.join(late)}")
    first = Path(data["folder"]) / data["items"][0]["file"]
    say(f"to score the policy on it: python bench/policy.py --traces DIR --own {first}")
