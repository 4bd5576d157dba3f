"""`spotctl doctor --live --gpu`: a job of one's own, interrupted by its cloud, and a report."""

from __future__ import annotations

import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from providers.fault_injection import Interrupter
from spotd.api_client.client import Client, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.cli.doctor_live import Section, check, ends_on_signals, folders_of, section_of, write
from spotd.cli.job_file import read_job_file
from spotd.cli.render import say
from spotd.cli.run import upload_all

if TYPE_CHECKING:
    from spotd.spec import ParsedJobFile
    from spotd.verify.interruption_report import Milestone

MACHINES, MACHINE_S = 2, 1200.0  # what is to be affordable, at least: so many, for so long each
_PATIENCE_S = 120.0  # with a daemon that restarts


def rehearse(
    ctx: typer.Context,
    file: Path,
    cloud: str,
    spend: str,
    config: Path | None,
    folder: Path | None,
    foreign: str = "",
) -> None:
    """Submit, interrupt, watch, cancel; raises UserError, also where something failed. `foreign` is
    what was given that a job and the daemon say themselves."""
    if foreign:
        text = "--type and --deployment are not for --gpu: the job and the daemon say both"
        raise UserError(text, "leave them out", ExitCode.USAGE)
    from spotd.verify.interruption_report import page_of, report_of
    from spotd.verify.interruption_test import InterruptionTest

    cap_usd = check(cloud, spend)
    parsed, text = _job(file, ctx)
    found = section_of(cloud, config)
    folders = folders_of(found, folder)
    with connect(ctx) as client:
        name = f"live-{cloud}-{os.urandom(3).hex()}"
        provider = _interrupter(found, str(client.get("/v1/health")["deployment"]))
        fee_usd = provider.interruption_usd
        _check_fee(fee_usd, cap_usd)
        text = _confined(text, parsed, found, cap_usd - fee_usd)
        _check_price(client, text, name, cap_usd, fee_usd)

        def tell(mark: Milestone) -> None:
            told = f"{mark.name}: {mark.text}" if mark.text else mark.name
            say(f"{mark.seconds or 0:9.1f} s  {told}")

        with ends_on_signals():
            job = _submit(client, parsed, text, name)
            say(f"submitted {name} ({job['id']}); seconds of each step, then since the notice")
            rehearsal = InterruptionTest(
                _RetryingClient(client), provider, job_path(job["id"]), tell
            )
            try:
                rehearsal.run()
            finally:
                at = datetime.now(UTC)
                report = report_of(rehearsal.seen, cloud, f"{at:%Y-%m-%dT%H:%M:%SZ}")
                place = write(folders, f"{cloud}-recovery", at, report, page_of(report))
    if not report["ok"]:
        said = "; ".join(report["failed"])
        raise UserError(said, f"see {place}.md, and `spotctl events {name}`")


class _RetryingClient:
    """The daemon, waited for while it restarts; what is asked for may be asked for again."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, path: str, **query: object) -> dict[str, Any]:
        return self._client.patiently(lambda: self._client.get(path, **query), _PATIENCE_S)

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        return self._client.patiently(lambda: self._client.post(path, body), _PATIENCE_S)


def _job(file: Path, ctx: typer.Context) -> tuple[ParsedJobFile, str]:
    from spotd.spec import load

    if ctx.obj.host:
        text = "--live reads the configuration of this machine, and --host names another"
        raise UserError(text, "run it on that one", ExitCode.USAGE)
    text = read_job_file(file)
    now_us = time.time_ns() // 1000
    parsed = load(text, now_us=now_us, base_dir=Path.cwd(), fallback_name="live")
    return parsed, parsed.text


def _confined(text: str, parsed: ParsedJobFile, found: Section, cap_usd: float) -> str:
    from spotd.verify.interruption_job import UnsuitableJobError, confined

    try:
        return confined(text, found.name, found.cloud, cap_usd)
    except UnsuitableJobError as error:
        fix = "name a job file that can be rehearsed: docs/doctor.md"
        raise UserError(f"{parsed.spec.name}: {error}", fix, ExitCode.USAGE) from None


def _check_fee(fee_usd: float, cap_usd: float) -> None:
    if fee_usd >= cap_usd:
        text = f"the interruption alone costs up to {fee_usd:.2f} USD, by the cloud's list"
        more = f"--spend-up-to more than that, not {cap_usd:.2f}usd"
        raise UserError(text, more, ExitCode.REFUSED)


def _check_price(client: Client, text: str, name: str, cap_usd: float, fee_usd: float) -> None:
    """Whether the cheapest that fits is to be had, and can be paid for long enough."""
    plan = client.post("/v1/plan", {"yaml": text, "fallback_name": name})
    best = next((row for row in plan["offers"] if not row["excluded"]), None)
    if best is None:
        why = next((f" ({row['excluded']})" for row in plan["offers"]), "")
        text = f"no spot machine that fits is on sale there{why}"
        raise UserError(text, "spotctl offers, spotctl plan FILE", ExitCode.REFUSED)
    least_usd = MACHINES * best["price_usd_per_h"] * MACHINE_S / 3600 + fee_usd
    fee = f" and {fee_usd:.2f} for the interruption" if fee_usd else ""
    if least_usd > cap_usd:
        raise UserError(
            f"{best['key']} costs {least_usd:.2f} USD for {MACHINES} machines of "
            f"{MACHINE_S / 60:.0f} minutes{fee}, and {cap_usd:.2f} may be spent",
            f"--spend-up-to {least_usd + 0.01:.2f}usd, or a job that fits a smaller machine",
            ExitCode.REFUSED,
        )


def _interrupter(found: Section, deployment: str) -> Interrupter:
    from spotd.config.provider_registry import build_provider

    provider = build_provider(found.cloud, found.name, deployment, found.settings)
    if not isinstance(provider, Interrupter):
        text = f"nobody can have {found.cloud} take a machine back on request"
        raise UserError(text, "without --gpu", ExitCode.USAGE)
    return provider


def _submit(client: Client, parsed: ParsedJobFile, text: str, name: str) -> dict[str, Any]:
    body = {
        "yaml": text,
        "name": name,
        "fallback_name": name,
        "secrets": dict(parsed.secrets),
        "packages": upload_all(client, parsed),
        "request_id": secrets.token_hex(16),
    }
    job = client.patiently(lambda: client.post("/v1/jobs", body), _PATIENCE_S)
    for warning in job["warnings"]:
        say(f"warning: {warning}")
    return job
