"""`spot-reaper`: the command line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Exit

from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean
from spotd.cli.main import run_app
from spotd.reaper.clock_trust import ClockTrust
from spotd.reaper.config import DEFAULT, load
from spotd.reaper.notify import NotificationState, Notifier
from spotd.reaper.sweep import Reaper, SweepReport

app = typer.Typer(
    name="spot-reaper", pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None
)


class Form(str, Enum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"


@app.command()
def reap(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help=f"Path of reaper.toml; default {DEFAULT}.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One round, as from a timer.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report: end no machine and send no alert.")
    ] = False,
    end_untagged: Annotated[
        bool,
        typer.Option("--end-untagged", help="Also end machines without an expiry, immediately."),
    ] = False,
    output: Annotated[Form, typer.Option("-o", "--output", metavar="FORM")] = Form.TABLE,
) -> None:
    """End machines whose expiry has passed because no daemon renewed it, and alert at half of the
    time. Needs neither spotd nor its database. The exit code is 1 if something could not be done.

    \b
    Example:
      spot-reaper --once --dry-run
      spot-reaper --once --config /etc/spotd/reaper.toml -o json
    """
    loaded = load(config)
    if once and loaded.state_dir is None:
        text = "without state_dir, separate runs never trust the clock"
        raise UserError(
            text, f'write state_dir = "FOLDER" into {config or DEFAULT}', ExitCode.USAGE
        )
    pager = Notifier(loaded.sinks)
    reaper = Reaper(
        loaded.file.deployment,
        loaded.providers,
        pager,
        loaded.unattended_s,
        dry_run=dry_run,
        end_untagged=end_untagged,
    )
    notified, trust = NotificationState(loaded.state_dir), ClockTrust(loaded.state_dir)
    code = _rounds(reaper, notified, trust, output, None if once else loaded.file.every_s)
    raise Exit(code)


def _rounds(
    reaper: Reaper,
    notified: NotificationState,
    trust: ClockTrust,
    output: Form,
    every_s: float | None,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Rounds until the end of time, or one; the exit code of the last."""
    while True:
        now_us, wait_s = trust.look()
        report = reaper.go_round(notified, now_us, wait_s)
        if not reaper.dry_run and (trouble := trust.keep()):
            report.errors.append(trouble)
        if output is Form.JSON:
            print(json.dumps(report.to_data(dry_run=reaper.dry_run)), flush=True)
        else:
            _print(report)
        if every_s is None:
            return ExitCode.FAILURE if report.errors else ExitCode.OK
        pause(every_s)


def _print(report: SweepReport) -> None:
    for item in report.items:
        until = f", expires {item['expires_at']}" if item["expires_at"] else ""
        where = f"{item['provider']}/{item['zone']}"
        line = f"{item['instance']} in {where} (job {item['job'] or '-'}): {item['found']}{until}"
        print(clean(f"{line}: {item['done']}"), flush=True)
    if not report.items and not report.errors:
        print("every machine was renewed in time", flush=True)
    for error in report.errors:
        print(clean(f"error: {error}"), file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Exit code of one command line."""
    # Without arguments `run_app` shows help; this program then goes round for ever.
    return run_app(app, "spot-reaper", arguments or ["--output", Form.TABLE.value])


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
