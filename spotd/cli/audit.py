"""`spotctl audit`: who did what, and what was refused."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import Client, connect
from spotd.api_routes import routes
from spotd.cli.durations import duration_s
from spotd.cli.local_time import instant
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table

_STYLES = {"refused": "yellow", "failed": "red", "unknown": "red"}
_UNKNOWN = "spotd ended, or lost its database, before this was over"


def audit(
    ctx: typer.Context,
    since: str = typer.Option("24h", "--since", metavar="DURATION", help="How far back."),
    output: Output = output_option(),
) -> None:
    """Print who did what: changes, keys and secrets that were handed out, and refused requests.

    \b
    Example:
      spotctl audit --since 24h
      spotctl audit --since 7d -o json
    """
    with connect(ctx) as client:
        items = merge_by_request(_read_all(client, int(duration_s(since, "--since", "24h, or 7d"))))
    data = {"apiVersion": "spotd/v1", "kind": "AuditList", "items": items}
    emit(data, output, lambda: _print(items), "action")


def _read_all(client: Client, since_s: int) -> list[dict[str, Any]]:
    page = client.call(routes.READ_AUDIT(), query={"since_s": since_s})
    items = page["items"]
    while page["cursor"]:
        page = client.call(routes.READ_AUDIT(), query={"since_s": since_s, "after": page["cursor"]})
        items += page["items"]
    return list(items)


def merge_by_request(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the lines of each request into one item: its outcome, at the time of the request.

    The outcome of a request without a second line is "unknown".
    """
    items: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines):
        key = line["request"] or f"line {number}"
        earlier = items.get(key)
        if earlier is not None:
            items[key] = {**line, "at": earlier["at"]}
        elif line["outcome"] == "asked":
            items[key] = {**line, "outcome": "unknown", "text": _UNKNOWN}
        else:
            items[key] = line
    return list(items.values())


def _print(items: list[dict[str, Any]]) -> None:
    columns = (
        *(Column(title, rank=0) for title in ("AT", "USER", "ACTION")),
        Column("TARGET", wrap=True),
        Column("OUTCOME", rank=0),
        Column("", wrap=True),
    )
    rows = [
        [
            instant(item["at"]),
            item["user"],
            item["action"],
            item["target"][:40] or "-",
            Cell(item["outcome"], _STYLES.get(item["outcome"], "")),
            item["text"],
        ]
        for item in items
    ]
    print_table(columns, rows)
