"""`spotctl cloud`: a small cloud on this machine, with real processes as its instances."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from providers.local.access import token_file
from providers.local.client import NoAnswer
from providers.local.control import Control, ControlError, start
from spotd.base.errors import ExitCode, UserError
from spotd.base.paths import state_dir
from spotd.base.text import span
from spotd.cli.durations import duration_s
from spotd.cli.render import HELP, Cell, Column, Output, emit, output_option, print_table, say

_STOP_TIMEOUT_S = 30.0
_COLUMNS = (
    Column("INSTANCE"),
    Column("WHERE", cut=True),
    Column("TYPE", cut=True),
    Column("STATE"),
    Column("AGE", right=True),
    Column("ENDED BY", cut=True),
)

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)


@app.callback()
def cloud() -> None:
    """Run a small cloud on this machine, for trying and tests.

    Its machines are processes on this box, with real SSH servers and metadata services that speak
    like those of AWS, GCP and Azure. Nothing leaves the machine, and nothing costs money.

    \b
    Example:
      spotctl cloud up
      spotctl cloud status
    """


def _folder_option() -> Any:
    return typer.Option(
        None, "--dir", envvar="SPOTCTL_CLOUD_DIR", metavar="DIR", help="Where it keeps its things."
    )


@dataclass(frozen=True)
class _Cloud:
    """A local cloud that was started earlier, as noted in its folder."""

    folder: Path
    url: str
    pid: int

    @classmethod
    def find(cls, given: Path | None) -> _Cloud:
        folder = _folder(given)
        try:
            noted = json.loads((folder / "spotctl.json").read_text())
        except FileNotFoundError:
            raise UserError(
                f"no local cloud was started in {folder}", "spotctl cloud up", ExitCode.NOT_FOUND
            ) from None
        return cls(folder, noted["url"], noted["pid"])

    @property
    def alive(self) -> bool:
        """Whether a server holds the folder's lock."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _folder(given: Path | None) -> Path:
    return (given or state_dir(os.environ) / "cloud").absolute()


def _control(given: Path | None) -> Control:
    found = _Cloud.find(given)
    if not found.alive:
        raise UserError(
            f"the local cloud of {found.folder} does not run",
            f"spotctl cloud up --dir {found.folder}",
            ExitCode.UNREACHABLE,
        )
    return Control(found.url, token_file(found.folder))


@app.command()
def up(
    folder: Path | None = _folder_option(),
    port: int | None = typer.Option(
        None,
        min=0,
        max=65535,
        metavar="PORT",
        help="Of 127.0.0.1; 0 takes a free one. Default: the one it had, as config.toml has it.",
    ),
    scenario: Path | None = typer.Option(None, metavar="FILE", help="TOML: prices, capacity, ..."),
    output: Output = output_option(),
) -> None:
    """Start it, detached. Prints its address and what to put into config.toml.

    \b
    Example:
      spotctl cloud up
      spotctl cloud up --scenario examples/scenarios/rough.toml --dir /tmp/rough
    """
    where = _folder(folder)
    old = _Cloud.find(where) if (where / "spotctl.json").exists() else None
    if old and old.alive:
        say(f"it runs already: {old.url}")
        url = old.url
    else:
        url = _start(where, scenario, port, old.url if old else "")
    token = str(token_file(where))
    about = {"url": url, "dir": str(where), "token_file": token}
    data = {"apiVersion": "spotd/v1", "kind": "LocalCloud", **about}
    emit(data, output, lambda: _print_config(url, token), "url")


def _start(where: Path, scenario: Path | None, port: int | None, old_url: str) -> str:
    """Start it on `port`, or else on the one of `old_url`, which stands in somebody's config.toml;
    returns its URL. Raises UserError."""
    wanted = port if port is not None else urlsplit(old_url).port or 0
    try:
        running = start(where, scenario, wanted)
    except ControlError as error:
        advice = f"see {where / 'server.log'}, or give another --dir"
        if wanted:
            advice += (
                f"; if port {wanted} is taken: end what listens there, or --port 0 for another, "
                "and write config.toml anew from what is then printed"
            )
        raise UserError(str(error), advice, ExitCode.FAILURE) from None
    noted = json.dumps({"url": running.url, "pid": running.process.pid})
    (where / "spotctl.json").write_text(noted)
    if old_url not in ("", running.url):
        say(f"warning: it was {old_url} before: write config.toml anew, and restart spotd")
    return running.url


def _print_config(url: str, token: str) -> None:
    for make in ("aws", "gcp", "azure"):
        print(f'[providers.local-{make}]\nkind = "local"\nurl = "{url}"\npersonality = "{make}"')
        print(f"token_file = {json.dumps(token)}\n")
    print('[alerts.routes.default]\nkind = "log"')


@app.command()
def down(folder: Path | None = _folder_option(), output: Output = output_option()) -> None:
    """Stop it, and every machine in it. Its meter and its disks' folder stay.

    \b
    Example:
      spotctl cloud down
    """
    found = _Cloud.find(folder)
    was_alive = found.alive
    if was_alive:
        os.kill(found.pid, signal.SIGTERM)
        if not _ends(found):
            raise UserError(
                f"the local cloud (process {found.pid}) does not stop", f"kill -9 {found.pid}"
            )
    head = {"apiVersion": "spotd/v1", "kind": "LocalCloud"}
    data = {**head, "url": found.url, "dir": str(found.folder), "stopped": was_alive}
    emit(data, output, lambda: say("stopped" if was_alive else "it does not run"), "dir")


def _ends(running: _Cloud) -> bool:
    end = time.monotonic() + _STOP_TIMEOUT_S
    while running.alive and time.monotonic() < end:
        time.sleep(0.05)
    return not running.alive


@app.command()
def status(
    folder: Path | None = _folder_option(),
    everything: bool = typer.Option(False, "-a", "--all", help="Machines that ended as well."),
    output: Output = output_option(),
) -> None:
    """List its machines.

    \b
    Example:
      spotctl cloud status --all
    """
    state = _ask(_control(folder).state)
    alive = ("pending", "running", "stopping")
    items = [row for row in state["instances"] if everything or row["state"] in alive]
    head = {"apiVersion": "spotd/v1", "kind": "LocalInstanceList"}
    data = {**head, "items": items, "notices": state["notices"]}
    emit(data, output, lambda: _print_machines(items), "instance_id")


def _print_machines(items: list[dict[str, Any]]) -> None:
    if not items:
        say("no machines")
        return
    rows: list[list[Cell | str]] = [
        [
            row["instance_id"],
            f"{row['personality']}/{row['zone']} (local)",
            f"{row['instance_type']} {row['capacity_type']}",
            Cell(row["state"], "green" if row["state"] == "running" else ""),
            span(time.time() - row["launched_at_us"] / 1e6),
            row["error"] or row["end_reason"] or "-",
        ]
        for row in items
    ]
    print_table(_COLUMNS, rows)


@app.command()
def preempt(
    instance: str = typer.Argument("", metavar="INSTANCE", help="One machine."),
    zone: str = typer.Option("", metavar="ZONE", help="Every spot machine of a zone."),
    notice: str = typer.Option("30s", metavar="DURATION", help="How long it is warned before."),
    mode: str = typer.Option("notice", metavar="MODE", help="notice, reset, silent or frozen."),
    folder: Path | None = _folder_option(),
    output: Output = output_option(),
) -> None:
    """Take machines away, as a cloud does: with a notice, by a reset, or in silence; or freeze
    them while the cloud goes on listing them.

    \b
    Example:
      spotctl cloud preempt --zone us-east-2a
      spotctl cloud preempt i-0123456789abcdef0 --mode silent
    """
    if bool(instance) == bool(zone):
        raise UserError(
            "name one machine, or a zone", "spotctl cloud status lists them", ExitCode.USAGE
        )
    notice_s = duration_s(notice, "--notice") if mode == "notice" else 0.0
    target = {"instance": instance} if instance else {"zone": zone}
    control = _control(folder)
    taken = _ask(lambda: control.preempt(**target, notice_s=notice_s, mode=mode))
    if not taken:
        raise UserError(
            "no spot machine was there to be taken", "spotctl cloud status", ExitCode.NOT_FOUND
        )
    data = {"apiVersion": "spotd/v1", "kind": "LocalNoticeList", "items": taken}
    emit(data, output, lambda: _print_taken(taken), "instance_id")


def _print_taken(taken: list[dict[str, Any]]) -> None:
    for item in taken:
        print(f"{item['instance_id']}  {item['mode']}  {item['notice_s']:.0f}s")


def _ask(call: Any) -> Any:
    try:
        return call()
    except ControlError as error:
        raise UserError(str(error), "spotctl cloud status --all", ExitCode.USAGE) from None
    except NoAnswer as error:
        raise UserError(
            f"the local cloud does not answer: {error}", "spotctl cloud up", ExitCode.UNREACHABLE
        ) from None
