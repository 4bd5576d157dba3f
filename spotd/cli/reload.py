"""`spotctl reload`: the daemon reads its configuration file again."""

from __future__ import annotations

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.cli.render import Output, emit, output_option, print_message


def reload(ctx: typer.Context, output: Output = output_option()) -> None:
    """Have the daemon read its configuration file again: budgets, limits and all other settings.

    All of the file takes effect, or nothing. A change that needs a restart is refused by name.
    Training is not interrupted. SIGHUP and `systemctl reload spotd` do the same.

    \b
    Example:
      spotctl reload
    """
    with connect(ctx) as client:
        data = client.call(routes.RELOAD_CONFIG())
    changed = ", ".join(data["changed"]) or "nothing changed"
    emit(
        {**data, "name": changed},
        output,
        lambda: print_message(f"the configuration was read again: {changed}"),
        "name",
    )
