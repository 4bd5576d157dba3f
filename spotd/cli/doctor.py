"""`spotctl doctor`: checks of this machine, then those of the daemon."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from providers.cloud_facts import alternatives
from providers.clouds import CLOUDS
from spotd.api_client.client import Client, Target, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.doctor_live import run_live_proof
from spotd.cli.doctor_live_gpu import run_gpu_proof
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_message, print_table

_LIMITING = alternatives([name for name, cloud in CLOUDS.items() if cloud.setup.limits_launches])
_POLICY = typer.Option(
    "", "--policy", metavar="CLOUD", help=f"Print the roles for {alternatives([*CLOUDS])} instead."
)
_TYPES = typer.Option(
    "", "--types", metavar="TYPES", help=f"With --policy {_LIMITING}: only these, like p5.*,g6e.*"
)
_LIVE = typer.Option(
    False, "--live", help="Launch one small machine, log in and end it. Costs money."
)
_CLOUD = typer.Option("", "--cloud", metavar="CLOUD", help="With --live: cloud to test.")
_SPEND = typer.Option(
    "", "--spend-up-to", metavar="USD", help="With --live: spending limit, like 2usd."
)
_KIND = typer.Option(
    "", "--type", metavar="TYPE", help="With --live: instance type. Default: the smallest."
)
_CONFIG = typer.Option(
    None, "--config", metavar="FILE", help="With --live: the daemon's config.toml."
)
_DEPLOYMENT = typer.Option(
    "", "--deployment", metavar="ID", help="With --live: deployment id, to run without a daemon."
)
_REPORT = typer.Option(
    None, "--report", metavar="FOLDER", help="With --live: folder for a copy of the report."
)
_GPU = typer.Option(
    None, "--gpu", metavar="FILE", help="With --live: run this job and have its machine preempted."
)


def doctor(
    ctx: typer.Context,
    policy: str = _POLICY,
    types: str = _TYPES,
    spot_only: bool = typer.Option(
        False, "--spot-only", help=f"With --policy {_LIMITING}: allow spot only."
    ),
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
    """Check everything that spotd needs, and show how to fix each problem; or print the access
    policy that the cloud should grant the control box, the reaper and the machines.

    The last part rates how well the deployment saves money, and never fails: checkpoints, spot,
    scaling, budgets, right-sizing.

    For each cloud it checks identity, permissions (by dry runs that create nothing), quotas against
    the needs of unfinished jobs, image, network and clock. A line that begins with "look" is not a
    failure. An offer that was refused for a quota of zero is tried again once there is quota.

    With --live, run as the user of spotd, it takes one machine from launch to end and writes a
    report. With --gpu as well, it runs your job on its own machine type: the cloud preempts the
    machine once it trains, and the report says how the job recovered and what that cost.

    \b
    Example:
      spotctl doctor
      spotctl doctor --send
      spotctl doctor --policy aws --types p5.48xlarge --spot-only
      spotctl doctor --live --cloud aws --spend-up-to 2usd
      spotctl doctor --live --gpu job.yaml --cloud aws --spend-up-to 60usd
    """
    if live:
        _prove(
            ctx,
            file=gpu,
            cloud=cloud,
            spend=spend,
            kind=kind,
            deployment=deployment,
            config=config,
            folder=report,
        )
        return
    if cloud or spend or kind or deployment or gpu:
        message = "--gpu, --cloud, --spend-up-to, --type and --deployment are for --live"
        raise UserError(message, "the same with --live, which costs money", ExitCode.USAGE)
    if policy:
        _print_policy(ctx=ctx, cloud=policy, types=types, output=output, spot=spot_only)
        return
    _run_checks(ctx, output, send=send)


def _prove(
    ctx: typer.Context,
    *,
    file: Path | None,
    cloud: str,
    spend: str,
    kind: str,
    deployment: str,
    config: Path | None,
    folder: Path | None,
) -> None:
    """Run the GPU proof for a job file, else the proof with a small machine."""
    if file:
        run_gpu_proof(
            ctx,
            file=file,
            cloud=cloud,
            spend=spend,
            config=config,
            folder=folder,
            unsupported=kind or deployment,
        )
    else:
        run_live_proof(
            ctx,
            cloud=cloud,
            spend=spend,
            kind=kind,
            deployment=deployment,
            config=config,
            folder=folder,
        )


def _run_checks(ctx: typer.Context, output: Output, *, send: bool) -> None:
    """Run the checks on this machine and those of the daemon."""
    checks = _local_checks(ctx.obj)
    exit_code, score = ExitCode.OK, []
    try:
        with connect(ctx) as client:
            checks.append(
                _check("daemon", True, f"spotd {client.call(routes.HEALTH())['version']}")
            )
            alert_checks = _test_alerts(client) if send else []
            reply = client.call(routes.DOCTOR())
            checks += [*reply["checks"], *alert_checks]
            score = reply.get("score", [])
    except UserError as error:
        checks.append(_check(name="daemon", ok=False, text=error.text, try_=error.try_))
        exit_code = error.exit_code
    all_ok = all(check["ok"] for check in checks)
    data = {"apiVersion": "spotd/v1", "kind": "Doctor", "ok": all_ok, "checks": checks}
    data["score"] = score
    emit(data, output, lambda: _print(checks, score), "kind")
    if not all_ok:
        raise typer.Exit(exit_code or ExitCode.FAILURE)


def _print_policy(
    ctx: typer.Context, cloud: str, types: str, output: Output, *, spot: bool
) -> None:
    """Print the policy documents by name, as JSON in every output form but `name`."""
    with connect(ctx) as client:
        policy = routes.CLOUD_POLICY(cloud=cloud)
        data = client.call(policy, query={"types": types, "spot": "1" if spot else ""})
    emit(data, output, lambda: print(json.dumps(data["documents"], indent=2)), "cloud")


def _test_alerts(client: Client) -> list[dict[str, Any]]:
    """Send a test message by every alert route, and return the results as checks."""
    return [
        _check(
            name=f"message to {item['route']}",
            ok=item["ok"],
            text=item["error"] or "delivered",
            try_=f"spotctl alerts test {item['route']}",
        )
        for item in client.call(routes.TEST_ALERT(), {"route": ""})["items"]
    ]


def _check(name: str, ok: bool, text: str, try_: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "doubtful": False, "text": text, "try": try_}


def _local_checks(target: Target) -> list[dict[str, Any]]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    ssh = shutil.which("ssh")
    needed = "spotctl ssh" + (" and --host" if target.host else "")
    return [
        _check(
            name="python", ok=sys.version_info >= (3, 11), text=version, try_="Python 3.11 or newer"
        ),
        _check(
            name="ssh",
            ok=ssh is not None,
            text=ssh or f"not found; {needed} need it",
            try_="install OpenSSH",
        ),
    ]


def _grade(check: dict[str, Any]) -> Cell:
    if not check["ok"]:
        return Cell("PROBLEM", "red")
    return Cell("look", "yellow") if check["doubtful"] else Cell("ok", "green")


def _columns(name: str, text: str) -> tuple[Column, ...]:
    return Column("", rank=0), Column(name, rank=0), Column(text, wrap=True, rank=0)


def _print(checks: list[dict[str, Any]], score: list[dict[str, Any]]) -> None:
    rows = [[_grade(check), check["name"], check["text"]] for check in checks]
    print_table(_columns("CHECK", "FINDING"), rows)
    if score:
        print()
        marks = {True: Cell("good", "green"), False: Cell("look", "yellow"), None: Cell("-")}
        score_rows = [[marks[pillar["good"]], pillar["pillar"], pillar["text"]] for pillar in score]
        print_table(_columns("SAVES MONEY", "FINDING"), score_rows)
    for check in checks:
        if not check["ok"] or check["doubtful"]:
            print_message(f"{check['name']}: try: {check['try']}")
    for pillar in score:
        if pillar["good"] is False and pillar["try"]:
            print_message(f"{pillar['pillar']}: try: {pillar['try']}")
