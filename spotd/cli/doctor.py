"""`spotctl doctor`: this machine first, then what the daemon finds."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import typer

from spotd.cli.client import Target, connect
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say
from spotd.errors import ExitCode, UserError


def doctor(ctx: typer.Context, output: Output = output_option()) -> None:
    """Check everything that spotd needs, and say what to do about what is missing.

    \b
    Example:
      spotctl doctor
    """
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
