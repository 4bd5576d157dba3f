"""`spotctl orphans`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.text import age, money
from spotd.cli.confirm import YES, confirm_many
from spotd.cli.render import HELP, Column, Output, emit, output_option, print_table, say

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    context_settings=HELP,
    invoke_without_command=True,
)
_COLUMNS = (
    Column("WHAT"),
    Column("ID"),
    Column("WHERE"),
    Column("JOB"),
    Column("$/H", right=True),
    Column("AGE", right=True),
    Column("HELD BECAUSE", cut=True),
)


@app.callback()
def orphans(ctx: typer.Context, output: Output = output_option()) -> None:
    """List machines with our tag that no job wants, and disks, addresses and cards that hang on no
    machine, which spotd does not end by itself: because its database never asked for them, or
    because they are too many at once. Of several control boxes each knows those of the clouds that
    it sweeps.

    \b
    Example:
      spotctl orphans
      spotctl orphans end
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect(ctx) as client:
        data = client.get("/v1/orphans")
    emit(data, output, lambda: _print(data), "id")


@app.command("end")
def end(ctx: typer.Context, yes: bool = YES, output: Output = output_option()) -> None:
    """End all machines that are held now, and delete what machines left. Look at the list first:
    machines may train, disks may have what somebody wants.

    What belongs to another deployment stays as it is. Several are ended once their number was typed
    in, or with --yes.

    \b
    Example:
      spotctl orphans end
    """
    with connect(ctx) as client:
        held = [item["id"] for item in client.get("/v1/orphans")["items"] if item["ours"]]
        confirm_many("end", "orphans", held, yes=yes)
        data = client.post("/v1/orphans/end", {"ids": held})
    many = "nothing is held" if not data["count"] else f"released: {', '.join(data['items'])}"
    emit(data, output, lambda: say(f"{many}; the next sweep ends what was released"), "kind")


def _print(data: dict[str, Any]) -> None:
    unswept = ", ".join(data["unswept"])
    if unswept:
        say(f"not known here of {unswept}: ask the other control box, or spotctl doctor")
    if not data["items"]:
        if not unswept:
            say("everything with our tag belongs to a job")
        return
    rows = [
        [
            item["what"],
            item["id"],
            f"{item['provider']}/{item['zone'] or item['region']}",
            f"{item['job'] or '-'} g{item['generation'] or '?'}",
            "?" if item["price_usd_per_h"] is None else money(item["price_usd_per_h"]),
            age(item.get("launched_at") or item.get("left_at")),
            item["why"],
        ]
        for item in data["items"]
    ]
    print_table(_COLUMNS, rows)
    left = sum(item["what"] != "machine" for item in data["items"])
    costs = f"{money(data['usd_per_h'])}/h"
    costs += f" and {data['unpriced']} of unknown price" if data["unpriced"] else ""
    costs += f", and what {left} leftover{'s' if left > 1 else ''} cost" if left else ""
    say(f"in no job's bill: {costs}")
