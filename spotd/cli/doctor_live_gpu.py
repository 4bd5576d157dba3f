"""`spotctl doctor --live --gpu`: a job of the user's, interrupted by its cloud, and a report."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from providers.dollars import format_usd
from providers.fault_injection import FaultInjector
from spotd.api_client.client import Client, connect
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.base.errors import ExitCode, UserError
from spotd.cli.doctor_live import (
    Section,
    find_section,
    interrupt_on_signals,
    report_folders,
    spending_cap,
    write_report,
)
from spotd.cli.job_file import read_job_file
from spotd.cli.render import print_message
from spotd.cli.run import upload_packages

if TYPE_CHECKING:
    from spotd.spec import ParsedJobFile
    from spotd.verify.interruption_report import Milestone

MACHINES, MACHINE_S = 2, 1200.0  # the budget must cover this many machines for this long each
_PATIENCE_S = 120.0  # how long to wait for a daemon that restarts


def run_gpu_proof(
    ctx: typer.Context,
    file: Path,
    cloud: str,
    spend: str,
    config: Path | None,
    folder: Path | None,
    unsupported: str = "",
) -> None:
    """Submit the job, have its machine interrupted, watch it recover, and write the report.

    `unsupported` holds the options that do not apply here. Raises UserError, also if the test
    fails.
    """
    if unsupported:
        message = "--type and --deployment are not for --gpu: the job and the daemon define both"
        raise UserError(message, "leave them out", ExitCode.USAGE)
    from spotd.verify.interruption_report import build_report, render_markdown
    from spotd.verify.interruption_test import InterruptionTest

    cap_usd = spending_cap(cloud, spend)
    parsed, job_text = _load_job(file, ctx)
    section = find_section(cloud, config)
    folders = report_folders(section, folder)
    with connect(ctx) as client:
        name = f"live-{cloud}-{os.urandom(3).hex()}"
        provider = _interrupter(section, str(client.call(routes.HEALTH())["deployment"]))
        fee_usd = provider.interruption_usd
        _check_fee(fee_usd, cap_usd)
        job_cap_usd = cap_usd - fee_usd
        job_text = _confine(text=job_text, parsed=parsed, section=section, cap_usd=job_cap_usd)
        _check_price(client=client, job_text=job_text, name=name, cap_usd=cap_usd, fee_usd=fee_usd)

        def print_milestone(mark: Milestone) -> None:
            line = f"{mark.name}: {mark.text}" if mark.text else mark.name
            print_message(f"{mark.seconds or 0:9.1f} s  {line}")

        with interrupt_on_signals():
            job = _submit(client=client, parsed=parsed, text=job_text, name=name)
            print_message(
                f"submitted {name} ({job['id']}); seconds of each step, then since the notice"
            )
            test = InterruptionTest(_RetryingClient(client), provider, job["id"], print_milestone)
            try:
                test.run()
            finally:
                ended_at = datetime.now(UTC)
                report = build_report(test.observations, cloud, f"{ended_at:%Y-%m-%dT%H:%M:%SZ}")
                report_path = write_report(
                    folders=folders,
                    cloud=f"{cloud}-recovery",
                    at=ended_at,
                    report=report,
                    page=render_markdown(report),
                )
    if not report["ok"]:
        message = "; ".join(report["failed"])
        raise UserError(message, f"see {report_path}.md, and `spotctl events {name}`")


class _RetryingClient:
    """A client that waits while the daemon restarts; its requests may be repeated."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(
        self, endpoint: Endpoint, *, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        return self._client.with_retry(
            lambda: self._client.call(endpoint, query=query), _PATIENCE_S
        )


def _load_job(file: Path, ctx: typer.Context) -> tuple[ParsedJobFile, str]:
    from spotd.spec import load

    if ctx.obj.host:
        message = "--live reads the configuration of this machine, and --host names another"
        raise UserError(message, "run it on that one", ExitCode.USAGE)
    job_text = read_job_file(file)
    now_us = time.time_ns() // 1000
    parsed = load(job_text, now_us=now_us, base_dir=Path.cwd(), fallback_name="live")
    return parsed, parsed.text


def _confine(text: str, parsed: ParsedJobFile, section: Section, cap_usd: float) -> str:
    from spotd.verify.interruption_job import UnsuitableJobError, restrict_job_file

    try:
        return restrict_job_file(text, section.name, section.cloud, cap_usd)
    except UnsuitableJobError as error:
        fix = "name a job file that meets the conditions in docs/doctor.md"
        raise UserError(f"{parsed.spec.name}: {error}", fix, ExitCode.USAGE) from None


def _check_fee(fee_usd: float, cap_usd: float) -> None:
    if fee_usd >= cap_usd:
        message = f"the interruption itself costs up to {format_usd(fee_usd)}, by the cloud's list"
        fix = f"--spend-up-to more than that, not {format_usd(cap_usd)}"
        raise UserError(message, fix, ExitCode.REFUSED)


def _check_price(client: Client, job_text: str, name: str, cap_usd: float, fee_usd: float) -> None:
    """Raise UserError if no offer fits, or if the cheapest costs more than the cap in time."""
    plan = client.call(routes.PLAN(), {"yaml": job_text, "fallback_name": name})
    best = next((row for row in plan["offers"] if not row["excluded"]), None)
    if best is None:
        reason = next((f" ({row['excluded']})" for row in plan["offers"]), "")
        message = f"no matching spot machine is available there{reason}"
        raise UserError(message, "spotctl offers, spotctl plan FILE", ExitCode.REFUSED)
    least_usd = MACHINES * best["price_usd_per_h"] * MACHINE_S / 3600 + fee_usd
    fee = f" and {format_usd(fee_usd)} for the interruption" if fee_usd else ""
    if least_usd > cap_usd:
        raise UserError(
            f"{best['key']} costs {format_usd(least_usd)} for {MACHINES} machines of "
            f"{MACHINE_S / 60:.0f} minutes{fee}, and {format_usd(cap_usd)} may be spent",
            f"--spend-up-to {least_usd + 0.01:.2f}usd, or a job that fits a smaller machine",
            ExitCode.REFUSED,
        )


def _interrupter(section: Section, deployment: str) -> FaultInjector:
    from spotd.config.provider_registry import build_provider

    provider = build_provider(section.cloud, section.name, deployment, section.settings)
    if not isinstance(provider, FaultInjector):
        message = f"{section.cloud} cannot preempt a machine on request"
        raise UserError(message, "without --gpu", ExitCode.USAGE)
    return provider


def _submit(client: Client, parsed: ParsedJobFile, text: str, name: str) -> dict[str, Any]:
    body = {
        "yaml": text,
        "name": name,
        "fallback_name": name,
        "secrets": dict(parsed.secrets),
        "packages": upload_packages(client, parsed),
        "request_id": secrets.token_hex(16),
    }
    job = client.with_retry(lambda: client.call(routes.SUBMIT_JOB(), body), _PATIENCE_S)
    for warning in job["warnings"]:
        print_message(f"warning: {warning}")
    return job
