"""`spotctl demo`."""

from __future__ import annotations

import importlib

import typer


def demo(ctx: typer.Context) -> None:
    """Watch a real job survive three preemptions on a small cloud on this machine.

    Options after `--` go to the demo; `spotctl demo -- --help` lists them.

    \b
    Example:
      spotctl demo
    """
    # The demo drives the whole system, this command line included: it stands above us, and is
    # therefore found by name.
    main = importlib.import_module("spotd.demo").main
    raise typer.Exit(main(ctx.args) or 0)


demo.context_settings = {"allow_extra_args": True}  # type: ignore[attr-defined]
