"""`spotctl doctor`: this machine first, then what the daemon finds."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from spotd.api_client.client import Client, Target, connect
from spotd.base.errors import ExitCode, UserError
from spotd.cli.doctor_live import prove
from spotd.cli.doctor_live_gpu import rehearse
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say

_LIVE = typer.Option(
    False, "--live", help="Launch one small machine, log in to it, end it: this costs money."
)
_CLOUD = typer.Option("", "--cloud", metavar="CLOUD", help="With --live: where.")
_SPEND = typer.Option(
    "", "--spend-up-to", metavar="USD", help="With --live: at most; 2usd is plenty."
)
_KIND = typer.Option(
    "", "--type", metavar="TYPE", help="With --live: another machine than the smallest."
)
_CONFIG = typer.Option(
    None, "--config", metavar="FILE", help="With --live: the daemon's config.toml."
)
_DEPLOYMENT = typer.Option(
    "", "--deployment", metavar="ID", help="With --live: asks no daemon for it."
)
_REPORT = typer.Option(
    None, "--report", metavar="FOLDER", help="With --live: where the report goes as well."
)
_GPU = typer.Option(
    None, "--gpu", metavar="FILE", help="With --live: run this job, and have its machine taken."
)


def doctor(
    ctx: typer.Context,
    policy: str = typer.Option(
        "", "--policy", metavar="CLOUD", help="Print the roles for aws, gcp or azure instead."
    ),
    types: str = typer.Option(
        "", "--types", metavar="TYPES", help="With --policy aws: only these, like p5.*,g6e.*"
    ),
    spot_only: bool = typer.Option(False, "--spot-only", help="With --policy aws: spot alone."),
    send: bool = typer.Option(False, "--send", help="Send a test message by every alert route."),
    live: bool = _LIVE,
    cloud: str = _CLOUD,
    spend: str = _SPEND,
    kind: str = _KIND,
    config: Path | None = _CONFIG,
    deployment: str = _DEPLOYMENT,
    report: Path | None = _REPORT,
    gpu: Path | None = _GPU,
    output: Output = output_option(),
) -> None:
    """Check everything that spotd needs, and say what to do about what is missing; or print what
    the cloud's own access control should allow the control box, the reaper and the machines.

    It ends with what pays, in that order, and no reason to fail: checkpoints, spot, scaling,
    budgets, right-sizing.

    Of a cloud that is who we are there, what we may do (by dry runs: nothing is made), quotas
    against what the unfinished jobs need, image, network and clock. What needs a look is no
    failure; an offer that was refused for a quota of zero is tried again where there is one now.

    With --live, as the user that runs spotd, one machine from the API to its end, and a report.
    With --gpu as well, a job of yours on the machine that it is for: the cloud itself takes that
    away once it trains, and the report says how the job went on, and what that cost.

    \b
    Example:
      spotctl doctor
      spotctl doctor --send
      spotctl doctor --policy aws --types p5.48xlarge --spot-only
      spotctl doctor --live --cloud aws --spend-up-to 2usd
      spotctl doctor --live --gpu job.yaml --cloud aws --spend-up-to 60usd
    """
    if live and gpu:
        rehearse(ctx, gpu, cloud, spend, config, report, kind or deployment)
        return
    if live:
        prove(ctx, cloud, spend, kind, deployment, config, report)
        return
    if cloud or spend or kind or deployment or gpu:
        raise UserError(
            "--gpu, --cloud, --spend-up-to, --type and --deployment are for --live",
            "the same with --live, which costs money",
            ExitCode.USAGE,
        )
    if policy:
        _print_policy(ctx, policy, types, output, spot=spot_only)
        return
    _look(ctx, output, send=send)


def _look(ctx: typer.Context, output: Output, *, send: bool) -> None:
    """What is found here, and what the daemon finds."""
    checks = _local_checks(ctx.obj)
    code, score = ExitCode.OK, []
    try:
        with connect(ctx) as client:
            checks.append(_check("daemon", True, f"spotd {client.get('/v1/health')['version']}"))
            sent = _send(client) if send else []
            found = client.get("/v1/doctor")
            checks += [*found["checks"], *sent]
            score = found.get("score", [])
    except UserError as error:
        checks.append(_check("daemon", False, error.text, error.try_))
        code = error.exit_code
    good = all(check["ok"] for check in checks)
    data = {"apiVersion": "spotd/v1", "kind": "Doctor", "ok": good, "checks": checks}
    data["score"] = score
    emit(data, output, lambda: _print(checks, score), "kind")
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


def _send(client: Client) -> list[dict[str, Any]]:
    """A test message by every route, and what became of it."""
    return [
        _check(
            f"message to {item['route']}",
            item["ok"],
            item["error"] or "delivered",
            f"spotctl alerts test {item['route']}",
        )
        for item in client.post("/v1/alerts/test", {"route": ""})["items"]
    ]


def _check(name: str, ok: bool, text: str, try_: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "doubtful": False, "text": text, "try": try_}


def _local_checks(target: Target) -> list[dict[str, Any]]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    ssh = shutil.which("ssh")
    needed = "spotctl ssh" + (" and --host" if target.host else "")
    return [
        _check("python", sys.version_info >= (3, 11), version, "Python 3.11 or newer"),
        _check("ssh", ssh is not None, ssh or f"not found; {needed} need it", "install OpenSSH"),
    ]


def _grade(check: dict[str, Any]) -> Cell:
    if not check["ok"]:
        return Cell("PROBLEM", "red")
    return Cell("look", "yellow") if check["doubtful"] else Cell("ok", "green")


def _print(checks: list[dict[str, Any]], score: list[dict[str, Any]]) -> None:
    rows = [[_grade(check), check["name"], check["text"]] for check in checks]
    print_table((Column(""), Column("CHECK"), Column("FINDING")), rows)
    if score:
        print()
        marks = {True: Cell("good", "green"), False: Cell("look", "yellow"), None: Cell("-")}
        lines = [[marks[one["good"]], one["pillar"], one["text"]] for one in score]
        print_table((Column(""), Column("WHAT PAYS"), Column("AS IT IS")), lines)
    for check in checks:
        if not check["ok"] or check["doubtful"]:
            say(f"{check['name']}: try: {check['try']}")
    for one in score:
        if one["good"] is False and one["try"]:
            say(f"{one['pillar']}: try: {one['try']}")
