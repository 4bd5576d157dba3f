"""`spotctl init`: what spotd needs in a cloud account, printed or applied. What that is, each cloud
says in `providers/<cloud>/setup.py`; nothing here knows a cloud."""

from __future__ import annotations

import ipaddress
import json
import re
import sys
from dataclasses import asdict, replace
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from spotd.cli.client import connect
from spotd.cli.render import say
from spotd.errors import ExitCode, UserError, suggest

if TYPE_CHECKING:
    from providers.policy import PolicyFacts
    from providers.setup import SetupFacts, Step

CLOUDS = ("aws",)
_DEPLOYMENT = re.compile(r"[0-9a-f]{12}")
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Form(str, Enum):
    """What the steps are printed as."""

    COMMANDS = "commands"
    TERRAFORM = "terraform"
    JSON = "json"


def init(
    ctx: typer.Context,
    *,
    cloud: str = typer.Argument(metavar="CLOUD", help="aws."),
    box: str = typer.Option(
        "", "--box", metavar="CIDR", help="Where machines are logged in to from: your box, alone."
    ),
    region: list[str] = typer.Option(
        [], "--region", metavar="REGION", help="One or more. Default: those of the configuration."
    ),
    network: str = typer.Option(
        "public", "--network", metavar="KIND", help="public, private or jump, as in config.toml."
    ),
    queue: str = typer.Option(
        "", "--queue", metavar="NAME", help="A queue for the cloud's own warnings, too."
    ),
    deployment: str = typer.Option(
        "", "--deployment", metavar="ID", help="With --store: asks no daemon for them."
    ),
    store: str = typer.Option("", "--store", metavar="URL", help="Of packages and logs."),
    checkpoints: str = typer.Option(
        "", "--checkpoints", metavar="URL", help="Of checkpoints. Default: --store."
    ),
    profile: str = typer.Option(
        "", "--profile", metavar="NAME", help="With --apply: whose rights."
    ),
    apply: bool = typer.Option(False, "--apply", help="Make what is missing; asks first."),
    yes: bool = typer.Option(False, "--yes", "-y", help="With --apply: do not ask."),
    output: Form = typer.Option(
        Form.COMMANDS, "-o", "--output", metavar="FORM", help="commands, terraform or json."
    ),
) -> None:
    """Print what spotd needs in a cloud account: a network that only your box gets into, roles with
    the least rights, and a queue of warnings where one is named; or make it. What is there already
    is left as it is.

    \b
    Example:
      spotctl init aws --box 203.0.113.7/32 > init.sh
      spotctl init aws --box 203.0.113.7/32 --queue spotd-warnings --apply
      spotctl init aws --box 10.0.0.5/32 --network private --region us-east-2 -o terraform
    """
    _check_words(cloud, box, network, queue, region)
    given = _given(deployment, region, store, checkpoints) if deployment else _asked(ctx, cloud)
    facts = _facts(given, box, region, network, queue)
    steps: list[Step] = import_module(f"providers.{cloud}.setup").steps(facts)
    if apply:
        _apply(cloud, facts, steps, profile, yes=yes)
    elif output is Form.TERRAFORM:
        print(import_module(f"providers.{cloud}.terraform").terraform(facts), end="")
    elif output is Form.JSON:
        data = {"apiVersion": "spotd/v1", "kind": "Setup", "cloud": cloud}
        print(json.dumps({**data, "steps": [asdict(step) for step in steps]}, indent=2))
    else:
        print(import_module(f"providers.{cloud}.script").script(steps), end="")


def _check_words(cloud: str, box: str, network: str, queue: str, regions: list[str]) -> None:
    """Raises UserError for the first that is wrong."""
    from providers.setup import NETWORKS

    if cloud not in CLOUDS:
        raise _wrong(f"CLOUD: {cloud!r} is none that can be set up", suggest(cloud, CLOUDS))
    if network not in NETWORKS:
        raise _wrong(f"--network: {network!r} is no kind of network", suggest(network, NETWORKS))
    if not box:
        raise _wrong(
            "--box is missing: machines let in nobody else",
            "--box ADDRESS/32, with the address that your box reaches machines from",
        )
    try:
        block = ipaddress.IPv4Network(box)
    except ValueError as error:
        raise _wrong(f"--box: {error}", "an IPv4 CIDR, like 203.0.113.7/32") from None
    if block.prefixlen == 0:
        raise _wrong(f"--box: {box} is everybody", "the address of your box, like 203.0.113.7/32")
    for one in regions:
        if not _REGION.fullmatch(one):
            raise _wrong(f"--region: {one[:40]!r} is no region", "write it like us-east-1")
    if queue and not _QUEUE.fullmatch(queue):
        raise _wrong(f"--queue: {queue[:40]!r} is no name of a queue", "letters, digits, - and _")


def _facts(
    policy: PolicyFacts, box: str, regions: list[str], network: str, queue: str
) -> SetupFacts:
    """What the command line says counts for more than what the daemon says."""
    from providers.setup import SetupFacts

    policy = replace(policy, regions=tuple(regions) or policy.regions)
    name = queue or policy.account.get("queue", "")
    account = {**policy.account, "queue": name} if name else policy.account
    return SetupFacts(replace(policy, account=account), box, network, name)


def _given(deployment: str, regions: list[str], store: str, checkpoints: str) -> PolicyFacts:
    from providers.policy import PolicyFacts

    if not _DEPLOYMENT.fullmatch(deployment):
        raise _wrong(
            f"--deployment: {deployment[:40]!r} is no id of a deployment",
            "12 hexadecimal digits; spotctl doctor --policy shows it in the names of the roles",
        )
    if not regions:
        raise _wrong("--region is missing", "--region us-east-1, one or more times")
    if not store:
        raise _wrong("--store is missing", "--store s3://BUCKET/PREFIX, as deployment.store")
    return PolicyFacts(deployment, tuple(regions), store, checkpoints or store)


def _asked(ctx: typer.Context, cloud: str) -> PolicyFacts:
    from providers.policy import PolicyFacts

    try:
        with connect(ctx) as client:
            return PolicyFacts(**client.get(f"/v1/policy/{quote(cloud, safe='')}")["facts"])
    except UserError as error:
        advice = "or without a daemon: --deployment ID --region REGION --store URL"
        raise UserError(error.text, f"{error.try_}; {advice}", error.exit_code) from None


def _apply(cloud: str, facts: SetupFacts, steps: list[Step], profile: str, *, yes: bool) -> None:
    from providers.base import AuthError, ProviderError
    from providers.setup import MissingError, missing
    from providers.setup import apply as apply_steps

    account: Any = import_module(f"providers.{cloud}.apply").Account(profile)
    try:
        wanted = missing(steps, account.ask)
        if wanted:
            _confirm(wanted, yes=yes)
        for text, there in apply_steps(steps, account.ask) if wanted else ():
            if not there:
                say(f"made: {text}")
    except AuthError as error:
        raise UserError(str(error), "the same again, with --profile", ExitCode.AUTH) from None
    except (ProviderError, MissingError) as error:
        text = f"{cloud} did not take all of it: {error}"
        raise UserError(text, "the same again: what is made is found", ExitCode.FAILURE) from None
    say("all of it is there" if not wanted else f"{len(wanted)} made")
    for line in _for_the_configuration(cloud, facts):
        print(line)


def _confirm(wanted: list[str], *, yes: bool) -> None:
    for line in ("missing:", *(f"  {text}" for text in wanted)):
        say(line)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{len(wanted)} things would be made, and nobody is here to be asked",
            "the same with --yes",
            ExitCode.USAGE,
        )
    if not typer.confirm("Make them?", err=True):
        raise UserError("nothing was made", "the same again, and y", ExitCode.USAGE)


def _for_the_configuration(cloud: str, facts: SetupFacts) -> list[str]:
    """What the provider's section says of it."""
    from providers.policy import NODE

    lines = [f"[providers.{cloud}]", f'kind = "{cloud}"']
    lines.append(f"regions = {json.dumps([*facts.policy.regions])}")
    lines.append(f'network = "{facts.network}"')
    lines.append(f'node_role = "{facts.policy.name(NODE)}"')
    return [*lines, f'queue = "{facts.queue}"'] if facts.queue else lines


def _wrong(text: str, fix: str) -> UserError:
    return UserError(text, fix, ExitCode.USAGE)
