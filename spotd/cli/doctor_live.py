"""`spotctl doctor --live`: one machine of a real cloud, from the API to its end, and a report."""

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
from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError, suggest
from spotd.base.live_reports import FOLDER
from spotd.cli.render import say
from spotd.spec.quantities import parse_usd

if TYPE_CHECKING:
    from spotd.act.link import SshLink
    from spotd.config.config import Config
    from spotd.verify.live_proof import Proof

CLOUDS = ("aws", "gcp", "azure")
# The smallest machines that the preparation of ours is at home on.
SMALLEST = {
    "aws": ("t3.small", "c5.large", "c5.xlarge", "m5.large"),
    "gcp": ("e2-small", "e2-medium", "e2-standard-2", "e2-standard-4"),
    "azure": ("Standard_B2s", "Standard_D2s_v5", "Standard_F2s_v2"),
}
_USD = re.compile(r"\s*\$?([0-9.]+)\s*(usd)?\s*", re.IGNORECASE)


def prove(
    ctx: typer.Context,
    cloud: str,
    spend: str,
    kind: str,
    deployment: str,
    config: Path | None,
    folder: Path | None,
) -> None:
    """Launch, log in, hear the agent, end; raises UserError, also where the proof fails."""
    cap_usd = check(cloud, spend)
    deployment = deployment or _deployment(ctx)
    found = section_of(cloud, config)
    folders = folders_of(found, folder)
    provider, link = _provider(found, deployment, kind)
    proof = _prepared(provider, link, deployment, cap_usd, kind)
    say(f"{proof.offer.key} at ${proof.offer.price_microusd_per_h / 1e6:.4f}/h, as {proof.token}")
    from spotd.verify.live_proof import LiveError, page_of, report_of

    failed = ""
    with ends_on_signals():
        try:
            proof.run()
        except LiveError as error:
            failed = str(error)
        finally:
            at = datetime.now(UTC)
            report = report_of(proof, cloud, f"{at:%Y-%m-%dT%H:%M:%SZ}")
            name = write(folders, cloud, at, report, page_of(report))
    if failed or not proof.ok:
        said = failed or "the machine is still there"
        raise UserError(said, f"see {name}.md, and `spotctl orphans` for what is left")


def check(cloud: str, spend: str) -> float:
    """What may be spent, in US dollars."""
    if cloud not in CLOUDS:
        fix = suggest(cloud, CLOUDS) if cloud else "--cloud aws, gcp or azure"
        raise UserError(f"--cloud: {cloud!r} is none to be proven live", fix, ExitCode.USAGE)
    found = _USD.fullmatch(spend)
    try:
        return parse_usd(found[1] if found else spend) / 1e6
    except ValueError:
        text = f"--spend-up-to: {spend!r} is no amount" if spend else "--spend-up-to is missing"
        raise UserError(text, "--spend-up-to 2usd", ExitCode.USAGE) from None


def _deployment(ctx: typer.Context) -> str:
    try:
        with connect(ctx) as client:
            return str(client.get("/v1/health")["deployment"])
    except UserError as error:
        advice = f"{error.try_}; or without a daemon: --deployment ID"
        raise UserError(error.text, advice, error.exit_code) from None


@dataclass(frozen=True)
class Section:
    """The provider of a cloud, as the configuration has it."""

    name: str
    cloud: str
    settings: dict[str, Any]
    config: Config


def section_of(cloud: str, config: Path | None) -> Section:
    """The first of that kind. Raises UserError."""
    from spotd.config.clouds import JUMP_KEYS
    from spotd.config.load import load_config

    found = load_config(config)
    for name, section in found.file.providers.items():
        if section.kind == cloud:
            kept = section.model_dump(exclude={"kind", *JUMP_KEYS}, exclude_none=True)
            return Section(name, cloud, kept, found)
    raise UserError(
        f"{found.path} has no provider of kind {cloud}",
        f"add [providers.{cloud}], or name another file by --config",
        ExitCode.NOT_FOUND,
    )


def _provider(found: Section, deployment: str, kind: str) -> tuple[Provider, SshLink]:
    """With the smallest machines (or that type) on sale; and the way to its machines, by its jump
    host if it has one."""
    from spotd.act.bundle import build_bundle
    from spotd.act.jump_hosts import JumpHosts
    from spotd.act.link import SshLink
    from spotd.base.clock import SystemClock
    from spotd.config.provider_registry import build_provider

    types = [kind] if kind else [*SMALLEST[found.cloud]]
    hosts = {key: host for key, host in found.config.jump_hosts().items() if key == found.name}
    ways = JumpHosts(hosts, SystemClock())
    ways.start()
    link = SshLink(build_bundle(), way=ways.dial)
    settings = found.settings | {"instance_types": types}
    return build_provider(found.cloud, found.name, deployment, settings), link


def _prepared(
    provider: Provider, link: SshLink, deployment: str, cap_usd: float, kind: str
) -> Proof:
    from spotd.security.secrets import JobKeys
    from spotd.verify.live_proof import LiveError, Proof, Step, cheapest

    def tell(step: Step) -> None:
        mark = "ok    " if step.ok else "FAILED"
        say(f"{mark} {step.seconds:7.1f} s  {step.name}" + (f": {step.text}" if step.text else ""))

    try:
        offer = cheapest(provider.offers(OfferRequest(instance_type=kind)), cap_usd)
    except ProviderError as error:
        raise UserError(str(error), "spotctl doctor says what is wrong", ExitCode.AUTH) from None
    except LiveError as error:
        fix = "raise --spend-up-to, or --type for another machine"
        raise UserError(str(error), fix, ExitCode.REFUSED) from None
    token = f"spotd-live-{os.urandom(5).hex()}"
    keys = JobKeys.create(os.urandom)
    return Proof(provider, deployment, offer, keys, link, token, tell)


def folders_of(found: Section, given: Path | None) -> list[Path]:
    """Where a report goes: the one that the doctor looks into, and the one that was named, first.
    Raises UserError before anything has cost money."""
    wanted = [path for path in (given, found.config.state_dir / FOLDER) if path]
    for path in wanted:
        try:
            path.mkdir(parents=True, exist_ok=True)
            fits = os.access(path, os.W_OK)
        except OSError:
            fits = False
        if not fits:
            text = f"no report can be written to {path}"
            raise UserError(text, "run it as the user that runs spotd: sudo -u spotd ...")
    return wanted


def write(
    folders: Sequence[Path], cloud: str, at: datetime, report: dict[str, Any], page: str
) -> Path:
    """Its place without the ending, in the first of them, which is told."""
    name = f"{cloud}-{at:%Y-%m-%d}"
    if any((folder / f"{name}.json").exists() for folder in folders):  # an earlier one of today
        name = f"{name}-{at:%H%M%S}"
    for folder in folders:
        (folder / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
        (folder / f"{name}.md").write_text(page)
    print(f"{folders[0] / name}.json")
    return folders[0] / name


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """Who ends this program has it end its machine first."""

    def stop(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
