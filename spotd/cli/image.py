"""`spotctl image`: machine images that have a job's setup done."""

from __future__ import annotations

import secrets as random
import sys
import time
from pathlib import Path
from typing import Any

import typer

from providers.clouds import CLOUDS
from spotd.api_client.client import Client, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import age, money
from spotd.cli.follow import exit_code_for, follow_and_print
from spotd.cli.groups import group
from spotd.cli.job_file import env_option, env_values, read_job_file, secret_option
from spotd.cli.render import Column, Output, emit, output_option, print_message, print_table
from spotd.cli.run import upload_packages

app = group()

_SUBMIT_PATIENCE_S = 15.0
_COLUMNS = (
    Column("NAME", rank=0),
    Column("STATE", rank=0),
    Column("WHERE", wrap=True, rank=0),
    Column("IMAGE", wrap=True, rank=2),
    Column("OF", wrap=True, rank=3),
    Column("GIB", right=True, rank=2),
    Column("$/MONTH", right=True, rank=0),
    Column("AGE", right=True, rank=1),
    Column("USED BY", wrap=True, rank=1),
)


@app.callback()
def image() -> None:
    """Bake, list and remove machine images that have a job's setup done.

    \b
    Example:
      spotctl image bake examples/finetune.yaml --name torch-2-9 --secret HF_TOKEN
    """


@app.command()
def bake(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    name: str = typer.Option(
        "", "-n", "--name", help="Name of the image; default: the job's name."
    ),
    infra: list[str] = typer.Option(
        [], "--infra", metavar="CLOUD[/REGION]", help="Where to bake; default: as in the file."
    ),
    instance_type: str = typer.Option(
        "", "--instance-type", metavar="TYPE", help="Machine to bake on; default: as in the file."
    ),
    env: list[str] = env_option(),
    secret: list[str] = secret_option(),
    detach: bool = typer.Option(False, "-d", "--detach", help="Do not follow the bake."),
    output: Output = output_option(),
) -> None:
    """Bake a machine image: run a job file's setup on a machine of its own, remove from its
    disk what no image may contain, and have the cloud make an image of it. Jobs start from it with
    `image_id: baked:NAME`.

    Nothing is trained, and `run` is ignored. The bake is a job, so cancel, logs and events work as
    for any other. An image is valid in one region (in Google Cloud, in all); repeat --infra to make
    one in each place.

    \b
    Example:
      spotctl image bake examples/finetune.yaml --name torch-2-9 --secret HF_TOKEN
      spotctl image bake examples/finetune.yaml --infra aws/us-east-1 --infra gcp -s HF_TOKEN -d
    """
    from spotd.spec import load

    env_by_name, secrets_by_name = env_values(env), env_values(secret, secret=True)
    parsed = load(
        read_job_file(file),
        now_us=time.time_ns() // 1000,
        env=env_by_name,
        secrets=secrets_by_name,
        base_dir=Path.cwd(),
        fallback_name="stdin" if str(file) == "-" else file.stem,
        bake=True,
    )
    with connect(ctx) as client:
        body = {
            "yaml": parsed.text,
            "fallback_name": parsed.spec.name,
            "env": env_by_name,
            "secrets": dict(parsed.secrets),
            "packages": upload_packages(client, parsed),
            "image": name,
            "instance_type": instance_type,
        }
        jobs = [_submit(client, body | _parse_location(text)) for text in infra or [""]]
        if not detach:
            jobs = [follow_and_print(client, job, ()) for job in jobs]
    data = {"kind": "JobList", "items": jobs} if len(jobs) > 1 else jobs[0]
    emit(data, output, lambda: _print_phases(jobs), "name")
    if not detach:
        raise typer.Exit(max(exit_code_for(job["phase"]) for job in jobs))


def _print_phases(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        print_message(f"{job['name']}: {job['phase']}")


def _parse_location(text: str) -> dict[str, str]:
    cloud, _, region = text.partition("/")
    if "/" in region or (text and not cloud):
        region_of, other, *_ = CLOUDS.values()
        raise UserError(
            f"--infra: {text!r} is not a cloud or region for an image",
            f"--infra {region_of.name}/{region_of.setup.region_example}, or --infra {other.name}",
            ExitCode.USAGE,
        )
    return {"cloud": cloud, "region": region}


def _submit(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    body = body | {"request_id": random.token_hex(16)}
    job = client.with_retry(lambda: client.call(routes.BAKE_IMAGE(), body), _SUBMIT_PATIENCE_S)
    for warning in job["warnings"]:
        print_message(f"warning: {warning}")
    print_message(f"submitted {job['name']} ({job['id']})")
    return job


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List images that cost money: where they are, what they were made from, and which jobs use
    them.

    OF is the digest of the setup, the base image, and the spotd version that baked it. $/MONTH is
    an upper bound, by list price and disk size.

    \b
    Example:
      spotctl image ls
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_IMAGES())
    emit(data, output, lambda: _print(data), "name")


def _print(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message("no image was baked: spotctl image bake FILE")
        return
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    unknown = f", and {data['unpriced']} of unknown price" if data["unpriced"] else ""
    print_message(f"total: at most {money(data['usd_per_month_most'])} a month{unknown}")


def _row(item: dict[str, Any]) -> list[str]:
    base = item["base"] or "the cloud's own"
    most = item["usd_per_month_most"]
    return [
        item["name"],
        item["state"],
        f"{item['provider']}/{item['region'] or '*'}",
        item["vendor_name"],
        f"{item['setup'][:8]} on {base}, spotd {item['version']}",
        str(item["size_gib"] or "?"),
        "?" if most is None else money(most),
        age(item["made_at"] or item["asked_at"]),
        ", ".join(item["used_by"]) or "-",
    ]


@app.command("rm")
def remove(
    ctx: typer.Context,
    name: str = typer.Argument(
        metavar="NAME", help="Name, or an id from the IMAGE column of `image ls`."
    ),
    infra: str = typer.Option(
        "", "--infra", metavar="CLOUD[/REGION]", help="Remove it only there; default: everywhere."
    ),
    force: bool = typer.Option(False, "--force", help="Remove it even while jobs use it."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation."),
    output: Output = output_option(),
) -> None:
    """Remove all images of a name, with everything billed for them. Machines that started from them
    keep running. The next sweep removes them, within five minutes.

    \b
    Example:
      spotctl image rm torch-2-9
    """
    location = _parse_location(infra)
    with connect(ctx) as client:
        if not yes:
            _confirm(name, client.call(routes.LIST_IMAGES())["items"], location)
        query = {**location, "force": "1" if force else ""}
        data = client.call(routes.REMOVE_IMAGES(name=name), query=query)
    message = "\n".join(f"{item} is removed with the next sweep" for item in data["items"])
    emit(data, output, lambda: print_message(message), "name")


def _confirm(name: str, items: list[dict[str, Any]], location: dict[str, str]) -> None:
    """Ask before the removal. Raises UserError if it is declined, or if stdin is not a terminal."""
    matching = [
        f"{item['provider']}/{item['region'] or '*'}/{item['vendor_name']}"
        for item in items
        if name in (item["name"], item["image_id"], item["vendor_name"])
        and location["cloud"] in ("", item["provider"])
        and location["region"] in ("", item["region"])
    ]
    if not matching:
        return  # the daemon says so
    if not sys.stdin.isatty():
        message = f"removal of {', '.join(matching)} was not confirmed, and stdin is not a terminal"
        raise UserError(message, f"spotctl image rm {name} --yes", ExitCode.USAGE)
    if not typer.confirm(f"Remove {', '.join(matching)}?", default=False, err=True):
        raise UserError("nothing was removed", f"spotctl image rm {name} --yes", ExitCode.USAGE)
