"""`spotctl doctor --live`: one machine of a real cloud, from launch to end, and a report."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from providers.base import OfferRequest, Provider, ProviderError
from providers.cloud_facts import alternatives
from providers.clouds import CLOUDS
from providers.dollars import format_microusd
from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError, suggest
from spotd.base.live_reports import FOLDER
from spotd.cli.render import print_message
from spotd.spec.quantities import parse_usd

if TYPE_CHECKING:
    from spotd.act.link import SshLink
    from spotd.config.config import Config
    from spotd.verify.live_proof import Proof

_USD = re.compile(r"\s*\$?([0-9.]+)\s*(usd)?\s*", re.IGNORECASE)


def run_live_proof(
    ctx: typer.Context,
    cloud: str,
    spend: str,
    kind: str,
    deployment: str,
    config: Path | None,
    folder: Path | None,
) -> None:
    """Launch a machine, log in, wait for its agent, end it, and write the report.

    Raises UserError, also if the proof fails.
    """
    cap_usd = spending_cap(cloud, spend)
    deployment = deployment or _deployment(ctx)
    section = find_section(cloud, config)
    folders = report_folders(section, folder)
    provider, link = _provider_and_link(section, deployment, kind)
    proof = _prepare_proof(
        provider=provider, link=link, deployment=deployment, cap_usd=cap_usd, kind=kind
    )
    print_message(
        f"{proof.offer.key} at {format_microusd(proof.offer.price_microusd_per_h)}/h, as "
        f"{proof.token}"
    )
    from spotd.verify.live_proof import LiveError, build_report, render_markdown

    failure = ""
    with interrupt_on_signals():
        try:
            proof.run()
        except LiveError as error:
            failure = str(error)
        finally:
            ended_at = datetime.now(UTC)
            report = build_report(proof, cloud, f"{ended_at:%Y-%m-%dT%H:%M:%SZ}")
            name = write_report(
                folders=folders,
                cloud=cloud,
                at=ended_at,
                report=report,
                page=render_markdown(report),
            )
    if failure or not proof.ok:
        message = failure or "the machine is still there"
        raise UserError(message, f"see {name}.md, and `spotctl orphans` for what is left")


def spending_cap(cloud: str, spend: str) -> float:
    """Check the cloud and return the spending cap in US dollars. Raises UserError."""
    if cloud not in CLOUDS:
        fix = suggest(cloud, CLOUDS) if cloud else f"--cloud {alternatives([*CLOUDS])}"
        raise UserError(
            f"--cloud: {cloud!r} is not a cloud that can be tested live", fix, ExitCode.USAGE
        )
    amount = _USD.fullmatch(spend)
    try:
        return parse_usd(amount[1] if amount else spend) / 1e6
    except ValueError:
        message = (
            f"--spend-up-to: {spend!r} is not an amount" if spend else "--spend-up-to is missing"
        )
        raise UserError(message, "--spend-up-to 2usd", ExitCode.USAGE) from None


def _deployment(ctx: typer.Context) -> str:
    try:
        with connect(ctx) as client:
            return str(client.call(routes.HEALTH())["deployment"])
    except UserError as error:
        fix = f"{error.try_}; or without a daemon: --deployment ID"
        raise UserError(error.text, fix, error.exit_code) from None


@dataclass(frozen=True)
class Section:
    """A provider's section of the configuration."""

    name: str
    cloud: str
    settings: dict[str, Any]
    config: Config


def find_section(cloud: str, config: Path | None) -> Section:
    """Return the first provider of that kind. Raises UserError."""
    from providers.section import JUMP_KEYS
    from spotd.config.load import load_config

    loaded = load_config(config)
    for name, section in loaded.file.providers.items():
        if section.kind == cloud:
            settings = section.model_dump(exclude={"kind", *JUMP_KEYS}, exclude_none=True)
            return Section(name=name, cloud=cloud, settings=settings, config=loaded)
    raise UserError(
        f"{loaded.path} has no provider of kind {cloud}",
        f"add [providers.{cloud}], or name another file by --config",
        ExitCode.NOT_FOUND,
    )


def _provider_and_link(section: Section, deployment: str, kind: str) -> tuple[Provider, SshLink]:
    """Return the provider, restricted to its smallest machines or to one type, and the SSH link.

    The link goes through the provider's jump host if it has one.
    """
    from spotd.act.bundle import build_bundle
    from spotd.act.jump_hosts import JumpHosts
    from spotd.act.link import SshLink
    from spotd.base.clock import SystemClock
    from spotd.config.provider_registry import build_provider

    types = [kind] if kind else [*CLOUDS[section.cloud].smallest]
    hosts = {key: host for key, host in section.config.jump_hosts().items() if key == section.name}
    jump_hosts = JumpHosts(hosts, SystemClock())
    jump_hosts.start()
    link = SshLink(build_bundle(), way=jump_hosts.dial)
    settings = section.settings | {"instance_types": types}
    return build_provider(section.cloud, section.name, deployment, settings), link


def _prepare_proof(
    provider: Provider, link: SshLink, deployment: str, cap_usd: float, kind: str
) -> Proof:
    from spotd.security.secrets import JobKeys
    from spotd.verify.live_proof import LiveError, Proof, Step, cheapest_offer

    def print_step(step: Step) -> None:
        mark = "ok    " if step.ok else "FAILED"
        print_message(
            f"{mark} {step.seconds:7.1f} s  {step.name}" + (f": {step.text}" if step.text else "")
        )

    try:
        offer = cheapest_offer(provider.offers(OfferRequest(instance_type=kind)), cap_usd)
    except ProviderError as error:
        raise UserError(str(error), "spotctl doctor shows the cause", ExitCode.AUTH) from None
    except LiveError as error:
        fix = "raise --spend-up-to, or --type for another machine"
        raise UserError(str(error), fix, ExitCode.REFUSED) from None
    token = f"spotd-live-{os.urandom(5).hex()}"
    keys = JobKeys.create(os.urandom)
    return Proof(
        provider=provider,
        deployment=deployment,
        offer=offer,
        keys=keys,
        link=link,
        token=token,
        on_step=print_step,
    )


def report_folders(section: Section, folder: Path | None) -> list[Path]:
    """Return the folders for the report: the one that was given, and the one that the doctor reads.

    Raises UserError before anything costs money if one cannot be written to.
    """
    folders = [path for path in (folder, section.config.state_dir / FOLDER) if path]
    for path in folders:
        try:
            path.mkdir(parents=True, exist_ok=True)
            writable = os.access(path, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            message = f"no report can be written to {path}"
            raise UserError(message, "run it as the user that runs spotd: sudo -u spotd ...")
    return folders


def write_report(
    folders: Sequence[Path], cloud: str, at: datetime, report: dict[str, Any], page: str
) -> Path:
    """Write the report into every folder and print its path in the first.

    Returns that path without its suffix.
    """
    name = f"{cloud}-{at:%Y-%m-%d}"
    if any(
        (folder / f"{name}.json").exists() for folder in folders
    ):  # a report of today exists already
        name = f"{name}-{at:%H%M%S}"
    for folder in folders:
        (folder / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
        (folder / f"{name}.md").write_text(page)
    print(f"{folders[0] / name}.json")
    return folders[0] / name


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, so that the machine is ended first."""

    def stop(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
