"""`spotctl init`: print or create what spotd needs in a cloud account.

Each cloud defines its steps in `providers/<cloud>/setup.py`; this module knows no cloud.
"""

from __future__ import annotations

import ipaddress
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from providers.clouds import CLOUDS, STORES
from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError, suggest
from spotd.cli.identity_trust import (
    federate_commands,
    federate_section,
    read_trusts,
    trust_help,
)
from spotd.cli.more_options import with_options
from spotd.cli.render import print_message
from spotd.cli.starter import write_starter

if TYPE_CHECKING:
    from providers.iam.policy import PolicyFacts
    from providers.iam.setup import SetupFacts, Step

_DEPLOYMENT_ID = re.compile(r"[0-9a-f]{12}")
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,89}")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")

# Notes on networks whose machines have no public address.
_NO_ROUTE_NOTE = (
    "machines of this network cannot reach the internet: the checkpoint store, package indexes "
    "and image registries need private endpoints or a NAT, which are not created here"
)
_JUMP_NOTE = (
    "you start the jump host yourself: it needs sshd with AllowTcpForwarding, an account for spotd "
    "with a key of its own, and nothing else of spotd's"
)
_JUMP_SETTINGS = (
    '# jump = "spotd@HOST"                   # the jump host, which you start yourself',
    '# jump_host_key = "ssh-ed25519 AAAA…"   # its /etc/ssh/ssh_host_ed25519_key.pub',
    '# jump_key_credential = "spotd-jump"    # or jump_key_file: our private key for it',
)


class SetupFormat(str, Enum):
    COMMANDS = "commands"
    TERRAFORM = "terraform"
    JSON = "json"


_DEPLOYMENT = typer.Option(
    "", "--deployment", metavar="ID", help="Deployment id, to run without a daemon; needs --store."
)
_STORE = typer.Option("", "--store", metavar="URL", help="Store of packages and logs.")
_CHECKPOINTS = typer.Option(
    "", "--checkpoints", metavar="URL", help="Store of checkpoints. Default: --store."
)
_PROFILE = typer.Option(
    "",
    "--profile",
    metavar="NAME",
    help="With --apply: credentials to use. "
    + "; ".join(
        f"{name}: {cloud.setup.profile_help}"
        for name, cloud in CLOUDS.items()
        if cloud.setup.profile_help
    )
    + ".",
)
_TRUST = typer.Option(
    [],
    "--trust",
    metavar="CLOUD=WORDS",
    help="Let machines of another cloud save here with their own identity; repeatable. "
    f"{trust_help()}.",
)
_QUEUE = typer.Option(
    "",
    "--queue",
    metavar="NAME",
    help="Also create a queue for interruption warnings "
    f"({', '.join(name for name, cloud in CLOUDS.items() if cloud.setup.queue)}).",
)

_INTO = typer.Option(Path(), "--into", metavar="FOLDER", help="With job: target folder.")
_BOX = typer.Option(
    "",
    "--box",
    metavar="CIDR",
    help="Address of your box, the only one that may log in to machines.",
)
_REGION = typer.Option(
    [],
    "--region",
    metavar="REGION",
    help="A region; repeatable. Default: those of the configuration.",
)
_NETWORK = typer.Option(
    "public", "--network", metavar="KIND", help="public, private or jump, as in config.toml."
)
_FORM = typer.Option(
    SetupFormat.COMMANDS, "-o", "--output", metavar="FORM", help="commands, terraform or json."
)
_ACCOUNT_OPTIONS = {
    option.name: (
        str,
        typer.Option(
            "",
            f"--{option.name}",
            metavar=option.metavar,
            help=f"{option.help} ({name}, with --deployment).",
        ),
    )
    for name, cloud in CLOUDS.items()
    for option in cloud.setup.account
}


@with_options(_ACCOUNT_OPTIONS, before="profile")
def init(
    ctx: typer.Context,
    *,
    cloud: str = typer.Argument(metavar="CLOUD", help=f"{', '.join(CLOUDS)} or job."),
    box: str = _BOX,
    region: list[str] = _REGION,
    network: str = _NETWORK,
    queue: str = _QUEUE,
    trust: list[str] = _TRUST,
    deployment: str = _DEPLOYMENT,
    store: str = _STORE,
    checkpoints: str = _CHECKPOINTS,
    profile: str = _PROFILE,
    apply: bool = typer.Option(False, "--apply", help="Create what is missing; asks first."),
    yes: bool = typer.Option(False, "--yes", "-y", help="With --apply: do not ask."),
    into: Path = _INTO,
    output: SetupFormat = _FORM,
    **account_names: str,
) -> None:
    """Print or create what spotd needs in a cloud account: a network that only your box can enter,
    roles with least privilege, and on AWS optionally a queue of interruption warnings. Existing
    resources are left unchanged. With the argument job: write a job file and a training
    loop that pass `spotctl drill run`.

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
        return write_starter(into)
    _check_options(cloud=cloud, box=box, network=network, queue=queue, regions=region)
    account = _account(cloud, account_names, without_daemon=bool(deployment))
    own = CLOUDS[cloud].setup
    if profile and not own.profile:
        raise _usage_error(f"--profile: {cloud} has none", f"leave it out, {own.retry}")
    policy = _policy_facts(
        ctx,
        cloud=cloud,
        deployment=deployment,
        regions=region,
        store=store,
        checkpoints=checkpoints,
        account=account,
    )
    facts = _setup_facts(policy=policy, box=box, regions=region, network=network, queue=queue)
    facts = replace(
        facts, trusts=read_trusts(trust, STORES[cloud].trusts if cloud in STORES else {})
    )
    steps: list[Step] = import_module(f"providers.{cloud}.setup").steps(facts)
    for line in _network_notes(cloud, network) if output is not SetupFormat.JSON else ():
        print_message(f"note: {line}")
    if apply:
        return _apply(cloud=cloud, facts=facts, steps=steps, profile=profile, yes=yes)
    return _print(cloud=cloud, facts=facts, steps=steps, form=output)


def _print(cloud: str, facts: SetupFacts, steps: list[Step], form: SetupFormat) -> None:
    federate = federate_section(cloud, facts)
    if form is SetupFormat.TERRAFORM:
        print(import_module(f"providers.{cloud}.terraform").terraform(facts), end="")
    elif form is SetupFormat.JSON:
        setup = {
            "notes": _network_notes(cloud, facts.network),
            "steps": [asdict(step) for step in steps],
        }
        head = {"apiVersion": "spotd/v1", "kind": "Setup", "cloud": cloud}
        print(
            json.dumps({**head, **setup, **({"federate": federate} if federate else {})}, indent=2)
        )
    else:
        print(import_module(f"providers.{cloud}.script").script(steps), end="")
        for line in federate_commands(facts.policy, federate) if federate else ():
            print(line)


def _check_options(cloud: str, box: str, network: str, queue: str, regions: list[str]) -> None:
    """Raise UserError for the first invalid option."""
    from providers.iam.setup import NETWORKS

    if cloud not in CLOUDS:
        raise _usage_error(
            f"CLOUD: {cloud!r} is not a cloud that can be set up", suggest(cloud, (*CLOUDS, "job"))
        )
    if network not in NETWORKS:
        raise _usage_error(
            f"--network: {network!r} is not a kind of network", suggest(network, NETWORKS)
        )
    if not box:
        raise _usage_error(
            "--box is missing: machines let only that address in",
            "--box ADDRESS/32, with the address that your box reaches machines from",
        )
    try:
        block = ipaddress.IPv4Network(box)
    except ValueError as error:
        raise _usage_error(f"--box: {error}", "an IPv4 CIDR, like 203.0.113.7/32") from None
    if block.prefixlen == 0:
        raise _usage_error(
            f"--box: {box} allows every address", "the address of your box, like 203.0.113.7/32"
        )
    own = CLOUDS[cloud].setup
    for region in regions:
        if not re.fullmatch(own.region_pattern, region):
            raise _usage_error(
                f"--region: {region[:40]!r} is not a region", f"write it like {own.region_example}"
            )
    if queue and not own.queue:
        raise _usage_error(f"--queue: {cloud} has no queue of warnings", "leave it out")
    if queue and not _QUEUE_NAME.fullmatch(queue):
        raise _usage_error(
            f"--queue: {queue[:40]!r} is not a queue name", "letters, digits, - and _"
        )


def _setup_facts(
    policy: PolicyFacts, box: str, regions: list[str], network: str, queue: str
) -> SetupFacts:
    """Return the setup facts; options override the daemon's configuration."""
    from providers.iam.setup import SetupFacts

    policy = replace(policy, regions=tuple(regions) or policy.regions)
    name = queue or policy.account.get("queue", "")
    account = {**policy.account, "queue": name} if name else policy.account
    return SetupFacts(replace(policy, account=account), box, network, name)


def _account(cloud: str, names: Mapping[str, str], *, without_daemon: bool) -> dict[str, str]:
    """Return the account names that the daemon would know, from the options. Raises UserError."""
    required = {option.name: option.key for option in CLOUDS[cloud].setup.account}
    for name, value in names.items():
        option = f"--{name}"
        if value and name not in required:
            raise _usage_error(f"{option}: {cloud} has none", "leave it out")
        if value and not without_daemon:
            raise _usage_error(
                f"{option}: the daemon provides it", "leave it out, or give --deployment"
            )
        if without_daemon and name in required and not _ACCOUNT.fullmatch(value):
            problem = (
                f"{option}: {value[:40]!r} is not a valid name" if value else f"{option} is missing"
            )
            raise _usage_error(problem, f"{option} as in [providers.{cloud}]")
    return {key: names[name] for name, key in required.items()} if without_daemon else {}


def _policy_facts(
    ctx: typer.Context,
    *,
    cloud: str,
    deployment: str,
    regions: list[str],
    store: str,
    checkpoints: str,
    account: dict[str, str],
) -> PolicyFacts:
    """Return the facts of the options, or of the daemon without `deployment`. Raises UserError."""
    from providers.iam.policy import PolicyFacts

    if not deployment:
        return _facts_from_daemon(ctx, cloud)
    if not _DEPLOYMENT_ID.fullmatch(deployment):
        raise _usage_error(
            f"--deployment: {deployment[:40]!r} is not a deployment id",
            "12 hexadecimal digits; spotctl doctor --policy shows it in the names of the roles",
        )
    if not regions:
        example = CLOUDS[cloud].setup.region_example
        raise _usage_error("--region is missing", f"--region {example}, one or more times")
    if not store:
        raise _usage_error("--store is missing", "--store s3://BUCKET/PREFIX, as deployment.store")
    urls = (store, checkpoints or store)
    return PolicyFacts(deployment, tuple(regions), *urls, account=account)


def _facts_from_daemon(ctx: typer.Context, cloud: str) -> PolicyFacts:
    from providers.iam.policy import PolicyFacts

    try:
        with connect(ctx) as client:
            return PolicyFacts(**client.call(routes.CLOUD_POLICY(cloud=cloud))["facts"])
    except UserError as error:
        fix = "or without a daemon: --deployment ID --region REGION --store URL"
        raise UserError(error.text, f"{error.try_}; {fix}", error.exit_code) from None


def _apply(cloud: str, facts: SetupFacts, steps: list[Step], profile: str, *, yes: bool) -> None:
    from providers import federated_stores
    from providers.base import AuthError, ProviderError
    from providers.iam.setup import MissingError, find_missing_steps
    from providers.iam.setup import apply as apply_steps

    federate, names = federate_section(cloud, facts), dict[str, str]()
    account: Any = import_module(f"providers.{cloud}.apply").Account(profile)
    try:
        missing_steps = find_missing_steps(steps, account.execute, names)
        if missing_steps:
            _confirm(missing_steps, yes=yes)
        for step_text, existed in (
            apply_steps(steps, account.execute, names) if missing_steps else ()
        ):
            if not existed:
                print_message(f"created: {step_text}")
    except AuthError as error:
        fix = f"run it again {CLOUDS[cloud].setup.retry}"
        raise UserError(str(error), fix, ExitCode.AUTH) from None
    except (ProviderError, MissingError) as error:
        message = f"{cloud} did not accept every step: {error}"
        raise UserError(
            message, "run it again: existing resources are retained", ExitCode.FAILURE
        ) from None
    print_message(
        "everything exists already" if not missing_steps else f"{len(missing_steps)} created"
    )
    for line in _provider_section(cloud, facts):
        print(line)
    for line in (
        ("", *federated_stores.toml_lines(facts.policy, federate, names)) if federate else ()
    ):
        print(line)


def _confirm(missing_steps: list[str], *, yes: bool) -> None:
    for line in ("missing:", *(f"  {text}" for text in missing_steps)):
        print_message(line)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{len(missing_steps)} things would be created, and stdin is not a terminal",
            "run it again with --yes",
            ExitCode.USAGE,
        )
    if not typer.confirm("Create them?", err=True):
        raise UserError("nothing was created", "run it again and answer y", ExitCode.USAGE)


def _provider_section(cloud: str, facts: SetupFacts) -> list[str]:
    """Return the lines of the provider's section in config.toml."""
    configured = {"queue", *(option.key for option in CLOUDS[cloud].setup.account)}
    account = {key: value for key, value in facts.policy.account.items() if key in configured}
    settings: dict[str, Any] = {"kind": cloud, **account}
    settings |= {"regions": [*facts.policy.regions], "network": facts.network}
    settings |= import_module(f"providers.{cloud}.setup").node_identity_settings(facts)
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += _JUMP_SETTINGS if facts.network == "jump" else ()
    return [f"[providers.{cloud}]", *lines]


def _network_notes(cloud: str, network: str) -> list[str]:
    """Return one sentence for each note; none for a public network."""
    if network == "public":
        return []
    lines = [*(CLOUDS[cloud].setup.private_notes or (_NO_ROUTE_NOTE,))]
    return [*lines, _JUMP_NOTE] if network == "jump" else lines


def _usage_error(message: str, fix: str) -> UserError:
    return UserError(message, fix, ExitCode.USAGE)
