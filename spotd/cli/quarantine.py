"""`spotctl quarantine` and `spotctl safe-mode`: what holds the daemon back, shown and ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.text import clean
from spotd.cli.render import HELP, Output, emit, output_option


@dataclass(frozen=True)
class _Restriction:
    """`word` is the command, `noun` what people call it, `verb` what ends it and `ended` its past.
    The last three are help texts: of the command, of `status` and of `verb`."""

    word: str
    noun: str
    verb: str
    ended: str
    about: str
    asks: str
    ends: str


def _commands(of: _Restriction) -> typer.Typer:
    """Its group of commands."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

    def group() -> None:
        pass

    def status(ctx: typer.Context, output: Output = output_option()) -> None:
        with connect(ctx) as client:
            data = client.get(f"/v1/{of.word}")
        emit(data, output, lambda: _print(of, data), "reason")

    def end(ctx: typer.Context, output: Output = output_option()) -> None:
        with connect(ctx) as client:
            data = client.post(f"/v1/{of.word}/{of.verb}")
        emit(data, output, lambda: _print(of, data), "reason")

    app.callback(help=of.about + _example(of, "status"))(group)
    app.command("status", help=of.asks + _example(of, "status"))(status)
    app.command(of.verb, help=of.ends + _example(of, of.verb))(end)
    return app


def _example(of: _Restriction, verb: str) -> str:
    return f"\n\n\b\nExample:\n  spotctl {of.word} {verb}"


def _print(of: _Restriction, data: dict[str, Any]) -> None:
    reason = clean(data["reason"])
    word = of.noun if data["active"] else f"{of.ended}; it was for"
    print(f"{word}: {reason}" if reason else f"no {of.noun}")


quarantine = _commands(
    _Restriction(
        word="quarantine",
        noun="quarantine",
        verb="release",
        ended="released",
        about="While it lasts, no machine is ended for being unknown to the database.\n\n"
        "It begins when the database may be older than the fleet: it was restored from a backup, "
        "moved or copied; HEAD of a job is ahead of it; or another spotd had the deployment. "
        "Release it when you know which of the two is right.",
        asks="Say whether there is a quarantine, and why.",
        ends="End the quarantine. Machines that no job ever asked for stay held, until you say "
        "`spotctl orphans end`.",
    )
)
safe_mode = _commands(
    _Restriction(
        word="safe-mode",
        noun="safe mode",
        verb="leave",
        ended="left",
        about="While it lasts, the daemon observes, saves and ends machines, and launches and "
        "starts none.\n\nIt begins when the daemon crashed several times within minutes, and ends "
        "by itself when it has lived for a while (`[safe_mode]` in config.toml).",
        asks="Say whether the daemon is in safe mode, and why.",
        ends="End it now: the daemon launches and starts again.",
    )
)
