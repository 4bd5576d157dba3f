"""`spotctl audit`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import Client, connect
from spotd.cli.durations import duration_s
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table

_STYLES = {"refused": "yellow", "failed": "red", "unknown": "red"}
_UNKNOWN = "spotd ended, or lost its database, before this was over"


def audit(
    ctx: typer.Context,
    since: str = typer.Option("24h", "--since", metavar="DURATION", help="How far back."),
    output: Output = output_option(),
) -> None:
    """Print who did what: changes, keys and secrets handed out, and what was refused.

    \b
    Example:
      spotctl audit --since 24h
      spotctl audit --since 7d -o json
    """
    with connect(ctx) as client:
        items = merge(_read_all(client, int(duration_s(since, "--since", "24h, or 7d"))))
    data = {"apiVersion": "spotd/v1", "kind": "AuditList", "items": items}
    emit(data, output, lambda: _print(items), "action")


def _read_all(client: Client, since_s: int) -> list[dict[str, Any]]:
    page = client.get("/v1/audit", since_s=since_s)
    items = page["items"]
    while page["cursor"]:
        page = client.get("/v1/audit", since_s=since_s, after=page["cursor"])
        items += page["items"]
    return list(items)


def merge(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One item a request: how it ended, at the time when it was asked for. One that nobody knows
    the end of is "unknown"."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines):
        key = line["request"] or f"line {number}"
        first = found.get(key)
        if first is not None:
            found[key] = {**line, "at": first["at"]}
        elif line["outcome"] == "asked":
            found[key] = {**line, "outcome": "unknown", "text": _UNKNOWN}
        else:
            found[key] = line
    return list(found.values())


def _print(items: list[dict[str, Any]]) -> None:
    titles = ("AT", "USER", "ACTION", "TARGET", "OUTCOME")
    columns = [*(Column(title) for title in titles), Column("", cut=True)]
    rows = [
        [
            item["at"][:19].replace("T", " ") + "Z",
            item["user"],
            item["action"],
            item["target"][:40] or "-",
            Cell(item["outcome"], _STYLES.get(item["outcome"], "")),
            item["text"],
        ]
        for item in items
    ]
    print_table(columns, rows)
