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
from providers.local.client import NoResponseError
from providers.local.control import Control, ControlError, start
from providers.local.scenario import PERSONALITIES
from spotd.base.errors import ExitCode, UserError
from spotd.base.paths import state_dir
from spotd.base.text import span
from spotd.cli.durations import duration_s
from spotd.cli.groups import group
from spotd.cli.render import (
    Cell,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
)

_STOP_TIMEOUT_S = 30.0
_COLUMNS = (
    Column("INSTANCE", rank=0),
    Column("WHERE", wrap=True, rank=0),
    Column("TYPE", wrap=True, rank=2),
    Column("STATE", rank=0),
    Column("AGE", right=True),
    Column("ENDED BY", wrap=True),
)

app = group()


@app.callback()
def cloud() -> None:
    """Run a simulated cloud on this machine, for trials and tests.

    Its machines are processes on this box, with real SSH servers and with metadata services like
    those of AWS, GCP and Azure. Nothing leaves the machine, and nothing costs money.

    \b
    Example:
      spotctl cloud up
      spotctl cloud status
    """


def _folder_option() -> Any:
    return typer.Option(
        None,
        "--dir",
        envvar="SPOTCTL_CLOUD_DIR",
        metavar="DIR",
        help="Folder of the cloud's state.",
    )


@dataclass(frozen=True)
class _Cloud:
    """A local cloud that was started earlier, as recorded in its folder."""

    folder: Path
    url: str
    pid: int

    @classmethod
    def find(cls, path: Path | None) -> _Cloud:
        folder = _folder(path)
        try:
            record = json.loads((folder / "spotctl.json").read_text())
        except FileNotFoundError:
            raise UserError(
                f"no local cloud was started in {folder}", "spotctl cloud up", ExitCode.NOT_FOUND
            ) from None
        return cls(folder, record["url"], record["pid"])

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


def _folder(path: Path | None) -> Path:
    return (path or state_dir(os.environ) / "cloud").absolute()


def _control(path: Path | None) -> Control:
    running = _Cloud.find(path)
    if not running.alive:
        raise UserError(
            f"the local cloud of {running.folder} is not running",
            f"spotctl cloud up --dir {running.folder}",
            ExitCode.UNREACHABLE,
        )
    return Control(running.url, token_file(running.folder))


@app.command()
def up(
    folder: Path | None = _folder_option(),
    port: int | None = typer.Option(
        None,
        min=0,
        max=65535,
        metavar="PORT",
        help="Port on 127.0.0.1; 0 takes a free one. Default: the earlier one, as in config.toml.",
    ),
    scenario: Path | None = typer.Option(None, metavar="FILE", help="TOML: prices, capacity, ..."),
    output: Output = output_option(),
) -> None:
    """Start the cloud in the background, and print the configuration to put into config.toml.

    \b
    Example:
      spotctl cloud up
      spotctl cloud up --scenario examples/scenarios/rough.toml --dir /tmp/rough
    """
    cloud_dir = _folder(folder)
    earlier = _Cloud.find(cloud_dir) if (cloud_dir / "spotctl.json").exists() else None
    if earlier and earlier.alive:
        print_message(f"it is already running: {earlier.url}")
        url = earlier.url
    else:
        url = _start(
            folder=cloud_dir, scenario=scenario, port=port, old_url=earlier.url if earlier else ""
        )
    token = str(token_file(cloud_dir))
    location = {"url": url, "dir": str(cloud_dir), "token_file": token}
    data = {"apiVersion": "spotd/v1", "kind": "LocalCloud", **location}
    emit(data, output, lambda: _print_config(url, token), "url")


def _start(folder: Path, scenario: Path | None, port: int | None, old_url: str) -> str:
    """Start the cloud and return its URL. Raises UserError.

    Without `port` it takes the port of `old_url`, which the user's config.toml names.
    """
    wanted_port = port if port is not None else urlsplit(old_url).port or 0
    try:
        running = start(folder, scenario, wanted_port)
    except ControlError as error:
        fix = f"see {folder / 'server.log'}, or give another --dir"
        if wanted_port:
            fix += (
                f"; if port {wanted_port} is taken: stop the program there, or use --port 0"
                ", and update config.toml with the configuration that is printed then"
            )
        raise UserError(str(error), fix, ExitCode.FAILURE) from None
    record = json.dumps({"url": running.url, "pid": running.process.pid})
    (folder / "spotctl.json").write_text(record)
    if old_url not in ("", running.url):
        print_message(
            f"warning: the address was {old_url} before: update config.toml, and restart spotd"
        )
    return running.url


def _print_config(url: str, token: str) -> None:
    for personality in PERSONALITIES:
        print(f'[providers.local-{personality}]\nkind = "local"\nurl = "{url}"')
        print(f'personality = "{personality}"')
        print(f"token_file = {json.dumps(token)}\n")
    print('[alerts.routes.default]\nkind = "log"')


@app.command()
def down(folder: Path | None = _folder_option(), output: Output = output_option()) -> None:
    """Stop the cloud and every machine in it. Its ledger and its disks' folder stay.

    \b
    Example:
      spotctl cloud down
    """
    running = _Cloud.find(folder)
    was_alive = running.alive
    if was_alive:
        os.kill(running.pid, signal.SIGTERM)
        if not _has_stopped(running):
            raise UserError(
                f"the local cloud (process {running.pid}) does not stop", f"kill -9 {running.pid}"
            )
    head = {"apiVersion": "spotd/v1", "kind": "LocalCloud"}
    data = {**head, "url": running.url, "dir": str(running.folder), "stopped": was_alive}
    emit(
        data, output, lambda: print_message("stopped" if was_alive else "it is not running"), "dir"
    )


def _has_stopped(running: _Cloud) -> bool:
    give_up_at = time.monotonic() + _STOP_TIMEOUT_S
    while running.alive and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return not running.alive


@app.command()
def status(
    folder: Path | None = _folder_option(),
    everything: bool = typer.Option(False, "-a", "--all", help="Include machines that have ended."),
    output: Output = output_option(),
) -> None:
    """List the cloud's machines.

    \b
    Example:
      spotctl cloud status --all
    """
    state = _call_cloud(_control(folder).state)
    alive = ("pending", "running", "stopping")
    items = [row for row in state["instances"] if everything or row["state"] in alive]
    head = {"apiVersion": "spotd/v1", "kind": "LocalInstanceList"}
    data = {**head, "items": items, "notices": state["notices"]}
    emit(data, output, lambda: _print_machines(items), "instance_id")


def _print_machines(items: list[dict[str, Any]]) -> None:
    if not items:
        print_message("no machines")
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
    zone: str = typer.Option("", metavar="ZONE", help="Every spot machine in a zone."),
    notice: str = typer.Option(
        "30s", metavar="DURATION", help="Time between the notice and the end."
    ),
    mode: str = typer.Option("notice", metavar="MODE", help="notice, reset, silent or frozen."),
    folder: Path | None = _folder_option(),
    output: Output = output_option(),
) -> None:
    """Preempt machines as a cloud does: with a notice, by a reset, or silently; or freeze them
    while the cloud still lists them.

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
    preempted = _call_cloud(lambda: control.preempt(**target, notice_s=notice_s, mode=mode))
    if not preempted:
        raise UserError("no spot machine matches", "spotctl cloud status", ExitCode.NOT_FOUND)
    data = {"apiVersion": "spotd/v1", "kind": "LocalNoticeList", "items": preempted}
    emit(data, output, lambda: _print_preempted(preempted), "instance_id")


def _print_preempted(preempted: list[dict[str, Any]]) -> None:
    for item in preempted:
        print(f"{item['instance_id']}  {item['mode']}  {item['notice_s']:.0f}s")


def _call_cloud(call: Any) -> Any:
    try:
        return call()
    except ControlError as error:
        raise UserError(str(error), "spotctl cloud status --all", ExitCode.USAGE) from None
    except NoResponseError as error:
        raise UserError(
            f"the local cloud does not answer: {error}", "spotctl cloud up", ExitCode.UNREACHABLE
        ) from None
