"""`spotctl orphans`: resources of spotd that no job wants."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.text import age, money
from spotd.cli.confirm import YES, confirm_many
from spotd.cli.groups import group
from spotd.cli.render import Column, Output, emit, output_option, print_message, print_table

app = group(invoke_without_command=True)
_COLUMNS = (
    Column("KIND"),
    Column("ID", rank=0),
    Column("WHERE", wrap=True, rank=0),
    Column("JOB"),
    Column("$/H", right=True, rank=0),
    Column("AGE", right=True, rank=2),
    Column("HELD BECAUSE", wrap=True),
)


@app.callback()
def orphans(ctx: typer.Context, output: Output = output_option()) -> None:
    """List resources with spotd's tag that belong to no job and that spotd does not end by itself.

    These are machines, and disks, addresses and network cards without a machine. spotd does not end
    them because its database never requested them, or because there are too many at once. With
    several control boxes, each lists those of the clouds that it sweeps.

    \b
    Example:
      spotctl orphans
      spotctl orphans end
    """
    if ctx.invoked_subcommand is None:
        _show(ctx, output)


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List them, as `spotctl orphans` alone does.

    \b
    Example:
      spotctl orphans ls
    """
    _show(ctx, output)


def _show(ctx: typer.Context, output: Output) -> None:
    with connect(ctx) as client:
        data = client.call(routes.LIST_ORPHANS())
    emit(data, output, lambda: _print(data), "id")


@app.command("end")
def end(ctx: typer.Context, yes: bool = YES, output: Output = output_option()) -> None:
    """End all machines that are held now, and delete what machines left behind. Check the list
    first: machines may be training, and disks may contain data that is needed.

    Resources of other deployments are not touched. For several, you confirm by typing their number,
    or with --yes.

    \b
    Example:
      spotctl orphans end
    """
    with connect(ctx) as client:
        orphan_ids = [
            item["id"] for item in client.call(routes.LIST_ORPHANS())["items"] if item["ours"]
        ]
        confirm_many("end", "orphans", orphan_ids, yes=yes)
        data = client.call(routes.END_ORPHANS(), {"ids": orphan_ids})
    released = "nothing is held" if not data["count"] else f"released: {', '.join(data['items'])}"
    emit(
        data,
        output,
        lambda: print_message(f"{released}; the next sweep ends the released machines"),
        "kind",
    )


def _print(data: dict[str, Any]) -> None:
    unswept = ", ".join(data["unswept"])
    if unswept:
        print_message(f"unknown here for {unswept}: check the other control box, or spotctl doctor")
    if not data["items"]:
        if not unswept:
            print_message("everything with spotd's tag belongs to a job")
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
    leftovers = sum(item["what"] != "machine" for item in data["items"])
    costs = f"{money(data['usd_per_h'])}/h"
    costs += f" and {data['unpriced']} of unknown price" if data["unpriced"] else ""
    costs += (
        f", and the cost of {leftovers} leftover{'s' if leftovers > 1 else ''}" if leftovers else ""
    )
    print_message(f"not in any job's bill: {costs}")
