"""`spotctl ckpt`: what a job has saved: listed, verified, pulled, pinned, removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, Client, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import size, span
from spotd.checkpoint_convert.formats import Format
from spotd.cli.progress import Progress
from spotd.cli.render import HELP, Column, Output, emit, output_option, print_table, say

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

_WHICH = typer.Argument("", metavar="[STEP|PIN]", help="Default: the newest.")
_PIN = typer.Argument(metavar="PIN", help="Its name, like best: a-z, 0-9 and -.")
_READ_S = 1800.0  # for one shard


@app.callback()
def ckpt() -> None:
    """See, verify, fetch and keep what a job has saved.

    The daemon reads the store, with its own rights. A pin keeps a checkpoint until it is unpinned,
    however many newer ones there are.

    \b
    Example:
      spotctl ckpt ls gpt
    """


@app.command("ls")
def list_(ctx: typer.Context, job: str = JOB, output: Output = output_option()) -> None:
    """List what HEAD and the pins of a job name, the newest first.

    \b
    Example:
      spotctl ckpt ls gpt
    """
    with connect(ctx) as client:
        data = client.get(job_path(job, "/checkpoints"))
    emit(data, output, lambda: _print(data), "step")


def _print(data: dict[str, Any]) -> None:
    if not data["items"]:
        say(f"nothing is saved yet in {data['store']}")
        return
    columns = (
        Column("STEP", right=True),
        Column("GEN", right=True),
        Column("AGE", right=True),
        Column("SIZE", right=True),
        Column("PINS"),
        Column("STATE", cut=True),
    )
    rows = []
    for item in data["items"]:
        words = ["newest"] if item["newest"] else []
        words += [word for word in ("released", "final") if item["newest"] and data[word]]
        words += [f"shards in {url}" for url in item.get("stores", ())]
        state = f"damaged: {item['problem']}" if item["problem"] else ", ".join(words)
        age = span(item["age_s"])
        row = [str(item["step"]), str(item["generation"]), age, size(item["bytes"])]
        rows.append([*row, ", ".join(item["pins"]), state])
    print_table(columns, rows)


@app.command()
def verify(
    ctx: typer.Context, job: str = JOB, which: str = _WHICH, output: Output = output_option()
) -> None:
    """Read a checkpoint whole, where the daemon is, and compare every byte with its digest.

    It ends with 1 where something is missing or damaged, and names it. All of it is read from the
    store: of a bucket in another cloud, that is paid for.

    \b
    Example:
      spotctl ckpt verify gpt
      spotctl ckpt verify gpt best
    """
    with connect(ctx) as client:
        data = _verify(client, job, which)
    emit(data, output, lambda: _print_verified(data), "step")
    if data["damage"]:
        raise UserError(
            f"step {data['step']} of {job} is damaged: {data['damage'][0]}",
            f"spotctl ckpt ls {job} names others; a resume passes over damaged ones by itself",
        )


def _verify(client: Client, job: str, which: str) -> dict[str, Any]:
    damage, done, number, shards, progress = [], 0, 0, 1, Progress("verified")
    reply: dict[str, Any] = {}
    while number < shards:
        body = {"name": which, "shard": number}
        reply = client.post(job_path(job, "/checkpoints/verify"), body, reply_s=_READ_S)
        which = which or str(reply["step"])  # a newer one may come meanwhile
        damage += [reply["damage"]] if reply["damage"] else []
        done, shards, number = done + reply["bytes"], reply["shards"], number + 1
        progress.show(done, reply["total_bytes"])
    progress.end()
    return {
        "apiVersion": reply["apiVersion"],
        "kind": "CheckpointVerified",
        **{key: reply[key] for key in ("step", "generation", "shards", "total_bytes")},
        "damage": damage,
    }


def _print_verified(data: dict[str, Any]) -> None:
    for line in data["damage"]:
        say(line)
    if not data["damage"]:
        say(f"step {data['step']}: {size(data['total_bytes'])}, every byte as it was saved")


@app.command()
def pull(
    ctx: typer.Context,
    job: str = JOB,
    which: str = _WHICH,
    into: Path = typer.Option(..., "--into", metavar="DIR", help="A folder; made if need be."),
    output: Output = output_option(),
) -> None:
    """Copy a checkpoint into a folder here, every byte verified on its way.

    The folder is a store then, file://DIR, with this checkpoint alone. Called again after a break,
    it goes on where it was.

    \b
    Example:
      spotctl ckpt pull gpt --into gpt-copy
      spotctl ckpt pull gpt best --into best
    """
    from spotd.cli.pull import pull_into

    progress = Progress("pulled")
    with connect(ctx) as client:
        found = client.get(job_path(job, "/checkpoints"))
        data = pull_into(client, found, which, into, progress.show)
    progress.end()
    text = f"step {data['step']}: {size(data['bytes'])} in {into}, every byte as it was saved"
    emit(data, output, lambda: say(text), "manifest")


@app.command()
def export(
    ctx: typer.Context,
    job: str = JOB,
    out: Path = typer.Option(..., "--out", metavar="DIR", help="A new folder."),
    kind: Format = typer.Option(..., "--format", help="What to make of it."),
    step: str = typer.Option("", metavar="STEP", help="Or a pin. Default: the newest."),
    only: str | None = typer.Option(
        None, metavar="PREFIX", help="Tensors whose names begin so, named without it."
    ),
    output: Output = output_option(),
) -> None:
    """Write a checkpoint as other programs read it, every byte verified on its way.

    hf is safetensors with an index, of the weights alone (model.*, where there are such); dcp a
    folder for torch.distributed.checkpoint.load; torch one file for torch.load(weights_only=True);
    safetensors one file of everything. dcp and torch need torch here, and twice the room on the
    disk; no GPU is needed, and little memory.

    \b
    Example:
      spotctl ckpt export gpt --format hf --out gpt-hf
      spotctl ckpt export gpt --format torch --step best --out best
    """
    from spotd.checkpoint_convert.export import export_into

    progress = Progress("exported")
    with connect(ctx) as client:
        found = client.get(job_path(job, "/checkpoints"))
        data = export_into(client, found, step, kind, out, only, progress.show)
    progress.end()
    text = f"step {data['step']}: {data['tensors']} tensors, {size(data['bytes'])} in {out}"
    emit(data, output, lambda: say(text), "out")


@app.command("import")
def import_(
    ctx: typer.Context,
    folder: Path = typer.Argument(None, metavar="[FOLDER]", help="Or a file of safetensors."),
    job: str = typer.Option("", metavar="JOB", help="Instead: what this job has saved."),
    step: str = typer.Option("", metavar="STEP", help="Of it, or a pin. Default: the newest."),
    only: str = typer.Option(
        "", metavar="PREFIX", help="Tensors whose names begin so, named without it."
    ),
    store: str = typer.Option(
        "", metavar="URL", help="Default: the one that spotd is set up with."
    ),
    output: Output = output_option(),
) -> None:
    """Have a new job begin with weights from elsewhere, or where another job is.

    FOLDER is a model as Hugging Face keeps it (safetensors), a folder of torch's DCP, or what
    `ckpt export` made: weights, with which training begins at step 0; all of a checkpoint, with
    optimizer and step, where it was exported whole. Nothing is unpickled. It becomes the first
    checkpoint of a job, verified as any other; the store must be that of the job file. What was
    interrupted goes on where it was when it is run again.

    \b
    Example:
      spotctl ckpt import Llama-3.2-1B
      spotctl ckpt import --job gpt --step best
    """
    from spotd.cli.import_job import imported
    from spotd.spec.sources import CheckpointOrigin

    if (folder is None) == (not job) or (step and not job) or (only and job):
        text = "name a FOLDER, with --only or without; or a --job, with --step or without"
        raise UserError(text, "spotctl ckpt import --help", ExitCode.USAGE)
    progress = Progress("imported")
    origin = CheckpointOrigin(job=job, which=step) if job else CheckpointOrigin(folder.absolute())
    with (
        connect(ctx) as client,
        imported(client, origin, store, progress.show, only=only) as data,
    ):
        progress.end()
    emit(data, output, lambda: _print_imported(data), "id")


def _print_imported(data: dict[str, Any]) -> None:
    what = "weights alone" if data["weights_only"] else f"all of step {data['step']}"
    say(f"{what}: {data['tensors']} tensors, {size(data['bytes'])} in {data['store']}")
    if data["left_out"]:
        names = ", ".join(data["left_out"][:5])
        say(f"left out, for they are no tensors: {len(data['left_out'])} ({names})")
    say(f"a job begins with them: spotctl run FILE --continue {data['id']}")


@app.command()
def pin(
    ctx: typer.Context,
    job: str = JOB,
    name: str = _PIN,
    step: str = typer.Option("", metavar="STEP", help="Or another pin. Default: the newest."),
    output: Output = output_option(),
) -> None:
    """Keep a checkpoint, whatever the job's `keep` is. A name that is given again moves.

    \b
    Example:
      spotctl ckpt pin gpt best
      spotctl ckpt pin gpt before-lr-drop --step 12000
    """
    with connect(ctx) as client:
        data = client.post(job_path(job, "/checkpoints/pin"), {"pin": name, "name": step})
    emit(data, output, lambda: say(f"step {data['step']} is kept as {name}"), "pin")


@app.command()
def unpin(
    ctx: typer.Context, job: str = JOB, name: str = _PIN, output: Output = output_option()
) -> None:
    """Let go of a checkpoint that was pinned: it goes when it is old.

    \b
    Example:
      spotctl ckpt unpin gpt best
    """
    with connect(ctx) as client:
        data = client.post(job_path(job, "/checkpoints/unpin"), {"pin": name})
    emit(data, output, lambda: say(f"{name} keeps nothing any more"), "pin")


@app.command("rm")
def remove(
    ctx: typer.Context,
    job: str = JOB,
    step: int = typer.Argument(min=0, metavar="STEP"),
    last: bool = typer.Option(False, "--last", help="Also the newest of a job that has ended."),
    output: Output = output_option(),
) -> None:
    """Delete one checkpoint from its store: no pinned one, and never that which a job goes on from.

    \b
    Example:
      spotctl ckpt rm gpt 12000
    """
    with connect(ctx) as client:
        body: dict[str, Any] = {"name": str(step), "last": last}
        data = client.post(job_path(job, "/checkpoints/rm"), body)
    text = f"step {data['step']} is removed ({data['objects']} objects)"
    emit(data, output, lambda: say(text), "step")
