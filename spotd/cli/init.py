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
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError, suggest
from spotd.cli.identity_trust import block_of, commands_of, read_trusts
from spotd.cli.nat_notes import SETTINGS, notes
from spotd.cli.render import say
from spotd.cli.starter import write_starter

if TYPE_CHECKING:
    from providers.iam.policy import PolicyFacts
    from providers.iam.setup import SetupFacts, Step

CLOUDS = ("aws", "gcp", "azure")
_DEPLOYMENT_ID = re.compile(r"[0-9a-f]{12}")
# Cloud -> what its regions look like, and one of them.
_REGIONS = {
    "aws": (re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+"), "us-east-1"),
    "gcp": (re.compile(r"[a-z]+(-[a-z]+)+[0-9]+"), "us-central1"),
    "azure": (re.compile(r"[a-z]+[0-9]*"), "eastus"),
}
# Cloud -> what else its names need without a daemon: option -> key of the facts.
_ACCOUNTS = {
    "aws": {},
    "gcp": {"--project": "project"},
    "azure": {"--subscription": "subscription_id", "--group": "resource_group"},
}
# What of the facts a provider's section has; the rest is of other sections.
_CONFIGURED = {"queue", *(key for keys in _ACCOUNTS.values() for key in keys.values())}
# Cloud -> how to have other rights than those that did not do.
_RIGHTS = {
    "aws": "with --profile NAME",
    "gcp": "with --profile FILE",
    "azure": "after `az login`, or with AZURE_CLIENT_ID and others",
}
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,89}")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Form(str, Enum):
    """What the steps are printed as."""

    COMMANDS = "commands"
    TERRAFORM = "terraform"
    JSON = "json"


_DEPLOYMENT = typer.Option(
    "", "--deployment", metavar="ID", help="With --store: asks no daemon for them."
)
_STORE = typer.Option("", "--store", metavar="URL", help="Of packages and logs.")
_CHECKPOINTS = typer.Option(
    "", "--checkpoints", metavar="URL", help="Of checkpoints. Default: --store."
)
_PROJECT = typer.Option("", "--project", metavar="ID", help="gcp, with --deployment.")
_SUBSCRIPTION = typer.Option("", "--subscription", metavar="ID", help="azure, with --deployment.")
_GROUP = typer.Option(
    "", "--group", metavar="NAME", help="azure, with --deployment: its own resource group."
)
_PROFILE = typer.Option(
    "",
    "--profile",
    metavar="NAME",
    help="With --apply: whose rights. gcp: a file of credentials; azure: `az login` says.",
)
_TRUST = typer.Option(
    [],
    "--trust",
    metavar="CLOUD=WORDS",
    help="Machines of another cloud save here by showing who they are; once for each. "
    "For aws: gcp=UNIQUE-ID,AUDIENCE azure=TENANT,OBJECT-ID,AUDIENCE; for gcp: "
    "aws=ACCOUNT-ID,ROLE azure=TENANT,OBJECT-ID,AUDIENCE; for azure: aws=ISSUER,ROLE-ARN "
    "gcp=UNIQUE-ID.",
)
_QUEUE = typer.Option(
    "", "--queue", metavar="NAME", help="aws: a queue for the cloud's own warnings, too."
)

_INTO = typer.Option(Path(), "--into", metavar="FOLDER", help="With job: where to.")
_BOX = typer.Option(
    "", "--box", metavar="CIDR", help="Where machines are logged in to from: your box, alone."
)
_REGION = typer.Option(
    [], "--region", metavar="REGION", help="One or more. Default: those of the configuration."
)
_NETWORK = typer.Option(
    "public", "--network", metavar="KIND", help="public, private or jump, as in config.toml."
)


def init(
    ctx: typer.Context,
    *,
    cloud: str = typer.Argument(metavar="CLOUD", help="aws, gcp or azure; or job."),
    box: str = _BOX,
    region: list[str] = _REGION,
    network: str = _NETWORK,
    queue: str = _QUEUE,
    trust: list[str] = _TRUST,
    deployment: str = _DEPLOYMENT,
    store: str = _STORE,
    checkpoints: str = _CHECKPOINTS,
    project: str = _PROJECT,
    subscription: str = _SUBSCRIPTION,
    group: str = _GROUP,
    profile: str = _PROFILE,
    apply: bool = typer.Option(False, "--apply", help="Make what is missing; asks first."),
    yes: bool = typer.Option(False, "--yes", "-y", help="With --apply: do not ask."),
    into: Path = _INTO,
    output: Form = typer.Option(
        Form.COMMANDS, "-o", "--output", metavar="FORM", help="commands, terraform or json."
    ),
) -> None:
    """Print what spotd needs in a cloud account: a network that only your box gets into, roles with
    the least rights, and on AWS a queue of warnings where one is named; or make it. What is there
    already is left as it is. Of job: a job file and a training loop that pass `spotctl drill run`.

    \b
    Example:
      spotctl init job --into mine
      spotctl init aws --box 203.0.113.7/32 > init.sh
      spotctl init aws --box 203.0.113.7/32 --queue spotd-warnings --apply
      spotctl init aws --box 10.0.0.5/32 --network private --region us-east-2 -o terraform
      spotctl init gcp --box 203.0.113.7/32 --trust aws=123456789012,spotd-node-d0 > init.sh
      spotctl init azure --box 203.0.113.7/32 -o terraform
    """
    if cloud == "job":
        write_starter(into)
        return
    _check_words(cloud, box, network, queue, region)
    options = {"--project": project, "--subscription": subscription, "--group": group}
    account = _account(cloud, options, alone=bool(deployment))
    if profile and cloud == "azure":
        raise _wrong("--profile: azure has none", f"the same without, {_RIGHTS[cloud]}")
    if deployment:
        given = _given(cloud, deployment, region, store, checkpoints, account)
    else:
        given = _asked(ctx, cloud)
    own = import_module(f"providers.{cloud}.setup")
    facts = _facts(given, box, region, network, queue)
    facts = replace(facts, trusts=read_trusts(trust, own.TRUSTS))
    steps: list[Step] = own.steps(facts)
    if output is not Form.JSON:
        for line in notes(cloud, network):
            say(f"note: {line}")
    if apply:
        _apply(cloud, facts, steps, profile, yes=yes)
    else:
        _print(cloud, facts, steps, output)


def _print(cloud: str, facts: SetupFacts, steps: list[Step], form: Form) -> None:
    told = block_of(cloud, facts)
    if form is Form.TERRAFORM:
        print(import_module(f"providers.{cloud}.terraform").terraform(facts), end="")
    elif form is Form.JSON:
        said = {"notes": notes(cloud, facts.network), "steps": [asdict(step) for step in steps]}
        head = {"apiVersion": "spotd/v1", "kind": "Setup", "cloud": cloud}
        print(json.dumps({**head, **said, **({"federate": told} if told else {})}, indent=2))
    else:
        print(import_module(f"providers.{cloud}.script").script(steps), end="")
        for line in commands_of(facts.policy, told) if told else ():
            print(line)


def _check_words(cloud: str, box: str, network: str, queue: str, regions: list[str]) -> None:
    """Raises UserError for the first that is wrong."""
    from providers.iam.setup import NETWORKS

    if cloud not in CLOUDS:
        raise _wrong(
            f"CLOUD: {cloud!r} is none that can be set up", suggest(cloud, (*CLOUDS, "job"))
        )
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
    pattern, example = _REGIONS[cloud]
    for one in regions:
        if not pattern.fullmatch(one):
            raise _wrong(f"--region: {one[:40]!r} is no region", f"write it like {example}")
    if queue and cloud != "aws":
        raise _wrong(f"--queue: {cloud} has no queue of warnings", "leave it out")
    if queue and not _QUEUE_NAME.fullmatch(queue):
        raise _wrong(f"--queue: {queue[:40]!r} is no name of a queue", "letters, digits, - and _")


def _facts(
    policy: PolicyFacts, box: str, regions: list[str], network: str, queue: str
) -> SetupFacts:
    """What the command line says counts for more than what the daemon says."""
    from providers.iam.setup import SetupFacts

    policy = replace(policy, regions=tuple(regions) or policy.regions)
    name = queue or policy.account.get("queue", "")
    account = {**policy.account, "queue": name} if name else policy.account
    return SetupFacts(replace(policy, account=account), box, network, name)


def _account(cloud: str, options: dict[str, str], *, alone: bool) -> dict[str, str]:
    """What else the cloud's names need, which a daemon knows."""
    wanted = _ACCOUNTS[cloud]
    for option, value in options.items():
        if value and option not in wanted:
            raise _wrong(f"{option}: {cloud} has none", "leave it out")
        if value and not alone:
            raise _wrong(f"{option}: the daemon says which", "leave it out, or give --deployment")
        if alone and option in wanted and not _ACCOUNT.fullmatch(value):
            what = f"{option}: {value[:40]!r} is no name" if value else f"{option} is missing"
            raise _wrong(what, f"{option} as in [providers.{cloud}]")
    return {key: options[option] for option, key in wanted.items()} if alone else {}


def _given(
    cloud: str,
    deployment: str,
    regions: list[str],
    store: str,
    checkpoints: str,
    account: dict[str, str],
) -> PolicyFacts:
    from providers.iam.policy import PolicyFacts

    if not _DEPLOYMENT_ID.fullmatch(deployment):
        raise _wrong(
            f"--deployment: {deployment[:40]!r} is no id of a deployment",
            "12 hexadecimal digits; spotctl doctor --policy shows it in the names of the roles",
        )
    if not regions:
        example = _REGIONS[cloud][1]
        raise _wrong("--region is missing", f"--region {example}, one or more times")
    if not store:
        raise _wrong("--store is missing", "--store s3://BUCKET/PREFIX, as deployment.store")
    urls = (store, checkpoints or store)
    return PolicyFacts(deployment, tuple(regions), *urls, account=account)


def _asked(ctx: typer.Context, cloud: str) -> PolicyFacts:
    from providers.iam.policy import PolicyFacts

    try:
        with connect(ctx) as client:
            return PolicyFacts(**client.get(f"/v1/policy/{quote(cloud, safe='')}")["facts"])
    except UserError as error:
        advice = "or without a daemon: --deployment ID --region REGION --store URL"
        raise UserError(error.text, f"{error.try_}; {advice}", error.exit_code) from None


def _apply(cloud: str, facts: SetupFacts, steps: list[Step], profile: str, *, yes: bool) -> None:
    from providers import federated_stores
    from providers.base import AuthError, ProviderError
    from providers.iam.setup import MissingError, missing
    from providers.iam.setup import apply as apply_steps

    told, names = block_of(cloud, facts), dict[str, str]()
    account: Any = import_module(f"providers.{cloud}.apply").Account(profile)
    try:
        wanted = missing(steps, account.ask, names)
        if wanted:
            _confirm(wanted, yes=yes)
        for text, there in apply_steps(steps, account.ask, names) if wanted else ():
            if not there:
                say(f"made: {text}")
    except AuthError as error:
        raise UserError(str(error), f"the same again, {_RIGHTS[cloud]}", ExitCode.AUTH) from None
    except (ProviderError, MissingError) as error:
        text = f"{cloud} did not take all of it: {error}"
        raise UserError(text, "the same again: what is made is found", ExitCode.FAILURE) from None
    say("all of it is there" if not wanted else f"{len(wanted)} made")
    for line in _for_the_configuration(cloud, facts):
        print(line)
    for line in ("", *federated_stores.lines(facts.policy, told, names)) if told else ():
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
    account = {key: facts.policy.account[key] for key in facts.policy.account if key in _CONFIGURED}
    given: dict[str, Any] = {"kind": cloud, **account}
    given |= {"regions": [*facts.policy.regions], "network": facts.network}
    given |= import_module(f"providers.{cloud}.setup").machines_are(facts)
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    lines += SETTINGS if facts.network == "jump" else ()
    return [f"[providers.{cloud}]", *lines]


def _wrong(text: str, fix: str) -> UserError:
    return UserError(text, fix, ExitCode.USAGE)
