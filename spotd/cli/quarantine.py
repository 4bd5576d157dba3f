"""`spotctl quarantine` and `spotctl safe-mode`: show and end restrictions of the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.api_routes.operation import Operation
from spotd.base.text import clean
from spotd.cli.groups import group
from spotd.cli.render import Output, emit, output_option


@dataclass(frozen=True)
class _Restriction:
    """A restriction and its commands.

    `command` is the command group, `noun` its name in messages, `verb` the command that ends it and
    `ended` the verb's past participle. `show` and `lift` are the operations of the API. The help
    texts are those of the group, of `status` and of `verb`.
    """

    command: str
    noun: str
    verb: str
    ended: str
    show: Operation[[]]
    lift: Operation[[]]
    group_help: str
    status_help: str
    end_help: str


def _commands(restriction: _Restriction) -> typer.Typer:
    """Return the command group of a restriction."""
    app = group()

    def restriction_group() -> None:
        pass

    def status(ctx: typer.Context, output: Output = output_option()) -> None:
        with connect(ctx) as client:
            data = client.call(restriction.show())
        emit(data, output, lambda: _print(restriction, data), "reason")

    def end(ctx: typer.Context, output: Output = output_option()) -> None:
        with connect(ctx) as client:
            data = client.call(restriction.lift())
        emit(data, output, lambda: _print(restriction, data), "reason")

    app.callback(help=restriction.group_help + _example(restriction, "status"))(restriction_group)
    app.command("status", help=restriction.status_help + _example(restriction, "status"))(status)
    app.command(
        restriction.verb, help=restriction.end_help + _example(restriction, restriction.verb)
    )(end)
    return app


def _example(restriction: _Restriction, verb: str) -> str:
    return f"\n\n\b\nExample:\n  spotctl {restriction.command} {verb}"


def _print(restriction: _Restriction, data: dict[str, Any]) -> None:
    reason = clean(data["reason"])
    state = restriction.noun if data["active"] else f"{restriction.ended}; it was for"
    print(f"{state}: {reason}" if reason else f"no {restriction.noun}")


quarantine = _commands(
    _Restriction(
        command="quarantine",
        noun="quarantine",
        verb="release",
        ended="released",
        show=routes.SHOW_QUARANTINE,
        lift=routes.RELEASE_QUARANTINE,
        group_help="During a quarantine, no machine is ended because the database does not know it."
        "\n\n"
        "It starts when the database may be older than the fleet: it was restored from a backup, "
        "moved or copied; HEAD of a job is ahead of it; or another spotd had the deployment. "
        "Release it when you know which of the two is right.",
        status_help="Show whether there is a quarantine, and why.",
        end_help="End the quarantine. Machines that no job requested stay held until you run "
        "`spotctl orphans end`.",
    )
)
safe_mode = _commands(
    _Restriction(
        command="safe-mode",
        noun="safe mode",
        verb="leave",
        ended="left",
        show=routes.SHOW_SAFE_MODE,
        lift=routes.LEAVE_SAFE_MODE,
        group_help="In safe mode, the daemon observes, saves and ends machines, but launches and "
        "starts none.\n\nIt starts when the daemon crashed several times within minutes, and ends "
        "automatically when the daemon has run for a while (`[safe_mode]` in config.toml).",
        status_help="Show whether the daemon is in safe mode, and why.",
        end_help="Leave safe mode now: the daemon launches and starts machines again.",
    )
)
