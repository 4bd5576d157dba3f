"""`spotctl orphans`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.cli.client import connect
from spotd.cli.confirm import YES, confirm_many
from spotd.cli.render import HELP, Column, Output, emit, output_option, print_table, say
from spotd.cli.text import age, money

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    context_settings=HELP,
    invoke_without_command=True,
)
_COLUMNS = (
    Column("MACHINE"),
    Column("WHERE"),
    Column("JOB"),
    Column("$/H", right=True),
    Column("AGE", right=True),
    Column("HELD BECAUSE", cut=True),
)


@app.callback()
def orphans(ctx: typer.Context, output: Output = output_option()) -> None:
    """List machines with our tag that no job wants and that spotd does not end by itself: because
    its database never asked for them, or because they are too many at once. Of several control
    boxes each knows those of the clouds that it sweeps.

    \b
    Example:
      spotctl orphans
      spotctl orphans end
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect(ctx) as client:
        data = client.get("/v1/orphans")
    emit(data, output, lambda: _print(data), "instance")


@app.command("end")
def end(ctx: typer.Context, yes: bool = YES, output: Output = output_option()) -> None:
    """End all machines that are held now. Look at the list first: they may train.

    Machines of another deployment stay as they are. Several are ended once their number was typed
    in, or with --yes.

    \b
    Example:
      spotctl orphans end
    """
    with connect(ctx) as client:
        items = client.get("/v1/orphans")["items"]
        held = [item["instance"] for item in items if item["ours"]]
        confirm_many("end", "machines", held, yes=yes)
        data = client.post("/v1/orphans/end", {"instances": held})
    many = "nothing is held" if not data["count"] else f"released: {', '.join(data['items'])}"
    emit(data, output, lambda: say(f"{many}; the next sweep ends what was released"), "kind")


def _print(data: dict[str, Any]) -> None:
    unswept = ", ".join(data["unswept"])
    if unswept:
        say(f"not known here of {unswept}: ask the other control box, or spotctl doctor")
    if not data["items"]:
        if not unswept:
            say("every machine with our tag belongs to a job")
        return
    rows = [
        [
            item["instance"],
            f"{item['provider']}/{item['zone']}",
            f"{item['job'] or '-'} g{item['generation'] or '?'}",
            "?" if item["price_usd_per_h"] is None else money(item["price_usd_per_h"]),
            age(item["launched_at"]),
            item["why"],
        ]
        for item in data["items"]
    ]
    print_table(_COLUMNS, rows)
    unpriced = f" and {data['unpriced']} of unknown price" if data["unpriced"] else ""
    say(f"in no job's bill: {money(data['usd_per_h'])}/h{unpriced}")
