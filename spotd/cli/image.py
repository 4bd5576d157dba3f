"""`spotctl image`: images that have a job's setup done."""

from __future__ import annotations

import secrets as random
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import typer

from spotd.api_client.client import Client, connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import age, money
from spotd.cli.follow import exit_code_of, follow_job, tell_once
from spotd.cli.job_file import env_option, env_values, read_job_file, secret_option
from spotd.cli.render import HELP, Column, Output, emit, output_option, print_table, say
from spotd.cli.run import upload_all

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

_SUBMIT_PATIENCE_S = 15.0
_COLUMNS = (
    Column("NAME"),
    Column("STATE"),
    Column("WHERE"),
    Column("IMAGE", cut=True),
    Column("OF", cut=True),
    Column("GIB", right=True),
    Column("$/MONTH", right=True),
    Column("AGE", right=True),
    Column("USED BY", cut=True),
)


@app.callback()
def image() -> None:
    """Bake images of machines that have a job's setup done, list them, remove them.

    \b
    Example:
      spotctl image bake examples/finetune.yaml --name torch-2-9 --secret HF_TOKEN
    """


@app.command()
def bake(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    name: str = typer.Option("", "-n", "--name", help="The image's; else the job's in the file."),
    infra: list[str] = typer.Option(
        [], "--infra", metavar="CLOUD[/REGION]", help="Where, instead of the file; several times."
    ),
    instance_type: str = typer.Option(
        "", "--instance-type", metavar="TYPE", help="A cheaper machine than the file's, to bake on."
    ),
    env: list[str] = env_option(),
    secret: list[str] = secret_option(),
    detach: bool = typer.Option(False, "-d", "--detach", help="Do not follow the bake."),
    output: Output = output_option(),
) -> None:
    """Run a job file's setup on a machine of its own, take off the disk what no image may have,
    and have the cloud make an image of it. Jobs start from it with `image_id: baked:NAME`.

    Nothing is trained, and `run` is not looked at. The bake is a job: cancel, logs and events are
    as for any other. An image is good in one region (of Google Cloud, in all): with --infra several
    times one is made in each place.

    \b
    Example:
      spotctl image bake examples/finetune.yaml --name torch-2-9 --secret HF_TOKEN
      spotctl image bake examples/finetune.yaml --infra aws/us-east-1 --infra gcp -s HF_TOKEN -d
    """
    from spotd.spec import load

    given, hidden = env_values(env), env_values(secret, secret=True)
    parsed = load(
        read_job_file(file),
        now_us=time.time_ns() // 1000,
        env=given,
        secrets=hidden,
        base_dir=Path.cwd(),
        fallback_name="stdin" if str(file) == "-" else file.stem,
        bake=True,
    )
    with connect(ctx) as client:
        body = {
            "yaml": parsed.text,
            "fallback_name": parsed.spec.name,
            "env": given,
            "secrets": dict(parsed.secrets),
            "packages": upload_all(client, parsed),
            "image": name,
            "instance_type": instance_type,
        }
        jobs = [_submit(client, body | _place(text)) for text in infra or [""]]
        if not detach:
            jobs = [_follow(client, job) for job in jobs]
    data = {"kind": "JobList", "items": jobs} if len(jobs) > 1 else jobs[0]
    emit(data, output, lambda: _say_phases(jobs), "name")
    if not detach:
        raise typer.Exit(max(exit_code_of(job["phase"]) for job in jobs))


def _say_phases(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        say(f"{job['name']}: {job['phase']}")


def _place(text: str) -> dict[str, str]:
    cloud, _, region = text.partition("/")
    if "/" in region or (text and not cloud):
        raise UserError(
            f"--infra: {text!r} is no place for an image",
            "--infra aws/us-east-1, or --infra gcp",
            ExitCode.USAGE,
        )
    return {"cloud": cloud, "region": region}


def _submit(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    body = body | {"request_id": random.token_hex(16)}
    job = client.patiently(lambda: client.post("/v1/images", body), _SUBMIT_PATIENCE_S)
    for warning in job["warnings"]:
        say(f"warning: {warning}")
    say(f"submitted {job['name']} ({job['id']})")
    return job


def _follow(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return follow_job(client, job["id"], (), tell_once()) or job
    except KeyboardInterrupt:
        say(f"\n{job['name']} goes on: spotctl events -f {job['name']}, or spotctl cancel")
        raise


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List images that cost money: where they are, what they were made of, and who uses them.

    OF is the digest of what was set up, what the machine started from, and the spotd that baked it.
    $/MONTH is the most that it can be, by list price and the disk's size.

    \b
    Example:
      spotctl image ls
    """
    with connect(ctx) as client:
        data = client.get("/v1/images")
    emit(data, output, lambda: _print(data), "name")


def _print(data: dict[str, Any]) -> None:
    if not data["items"]:
        say("no image was baked: spotctl image bake FILE")
        return
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    unknown = f", and {data['unpriced']} of unknown price" if data["unpriced"] else ""
    say(f"together {money(data['usd_per_month_most'])} a month at the most{unknown}")


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
    name: str = typer.Argument(metavar="NAME", help="Or one image, as IMAGE of `image ls` has it."),
    infra: str = typer.Option(
        "", "--infra", metavar="CLOUD[/REGION]", help="Only there; else wherever it is."
    ),
    force: bool = typer.Option(False, "--force", help="Also while jobs use it."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    output: Output = output_option(),
) -> None:
    """Remove images of that name, with all that is billed for them. Machines that started from them
    live on. The next sweep removes them, within five minutes.

    \b
    Example:
      spotctl image rm torch-2-9
    """
    place = _place(infra)
    with connect(ctx) as client:
        if not yes:
            _confirm(name, client.get("/v1/images")["items"], place)
        query = {key: value for key, value in place.items() if value}
        query |= {"force": "1"} if force else {}
        path = f"/v1/images/{quote(name, safe='')}"
        data = client.delete(f"{path}?{urlencode(query)}" if query else path)
    told = "\n".join(f"{item} is removed with the next sweep" for item in data["items"])
    emit(data, output, lambda: say(told), "name")


def _confirm(name: str, items: list[dict[str, Any]], place: dict[str, str]) -> None:
    """Raises UserError where that is refused, or nobody is there to be asked."""
    meant = [
        f"{item['provider']}/{item['region'] or '*'}/{item['vendor_name']}"
        for item in items
        if name in (item["name"], item["image_id"], item["vendor_name"])
        and place["cloud"] in ("", item["provider"])
        and place["region"] in ("", item["region"])
    ]
    if not meant:
        return  # the daemon says so
    if not sys.stdin.isatty():
        text = f"removal of {', '.join(meant)} was not confirmed, and nobody is here to be asked"
        raise UserError(text, f"spotctl image rm {name} --yes", ExitCode.USAGE)
    if not typer.confirm(f"Remove {', '.join(meant)}?", default=False, err=True):
        raise UserError("nothing was removed", f"spotctl image rm {name} --yes", ExitCode.USAGE)
