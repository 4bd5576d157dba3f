"""`spotctl doctor`: this machine first, then what the daemon finds."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any
from urllib.parse import quote

import typer

from spotd.cli.client import Target, connect
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say
from spotd.errors import ExitCode, UserError


def doctor(
    ctx: typer.Context,
    policy: str = typer.Option(
        "", "--policy", metavar="CLOUD", help="Print the roles for aws, gcp or azure instead."
    ),
    types: str = typer.Option(
        "", "--types", metavar="TYPES", help="With --policy aws: only these, like p5.*,g6e.*"
    ),
    spot_only: bool = typer.Option(False, "--spot-only", help="With --policy aws: spot alone."),
    output: Output = output_option(),
) -> None:
    """Check everything that spotd needs, and say what to do about what is missing; or print what
    the cloud's own access control should allow the control box, the reaper and the machines.

    \b
    Example:
      spotctl doctor
      spotctl doctor --policy aws --types p5.48xlarge --spot-only
    """
    if policy:
        _print_policy(ctx, policy, types, output, spot=spot_only)
        return
    checks = _local_checks(ctx.obj)
    code = ExitCode.OK
    try:
        with connect(ctx) as client:
            checks.append(_check("daemon", True, f"spotd {client.get('/v1/health')['version']}"))
            checks += client.get("/v1/doctor")["checks"]
    except UserError as error:
        checks.append(_check("daemon", False, error.text, error.try_))
        code = error.exit_code
    good = all(check["ok"] for check in checks)
    data = {"apiVersion": "spotd/v1", "kind": "Doctor", "ok": good, "checks": checks}
    emit(data, output, lambda: _print(checks), "kind")
    if not good:
        raise typer.Exit(code or ExitCode.FAILURE)


def _print_policy(
    ctx: typer.Context, cloud: str, types: str, output: Output, *, spot: bool
) -> None:
    """The documents by their names; they are JSON, whatever form is asked for."""
    with connect(ctx) as client:
        path = f"/v1/policy/{quote(cloud, safe='')}"
        data = client.get(path, types=types, spot="1" if spot else "")
    emit(data, output, lambda: print(json.dumps(data["documents"], indent=2)), "cloud")


def _check(name: str, ok: bool, text: str, try_: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "text": text, "try": try_}


def _local_checks(target: Target) -> list[dict[str, Any]]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    ssh = shutil.which("ssh")
    needed = "spotctl ssh" + (" and --host" if target.host else "")
    return [
        _check("python", sys.version_info >= (3, 11), version, "Python 3.11 or newer"),
        _check("ssh", ssh is not None, ssh or f"not found; {needed} need it", "install OpenSSH"),
    ]


def _print(checks: list[dict[str, Any]]) -> None:
    rows = [
        [
            Cell("ok", "green") if check["ok"] else Cell("PROBLEM", "red"),
            check["name"],
            check["text"],
        ]
        for check in checks
    ]
    print_table((Column(""), Column("CHECK"), Column("FINDING")), rows)
    for check in checks:
        if not check["ok"]:
            say(f"{check['name']}: try: {check['try']}")
