"""`spotctl ckpt`: list, verify, pull, export, import, pin and remove a job's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, Client, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import size, span
from spotd.checkpoint_convert.formats import Format
from spotd.cli.groups import IntoCommand, group
from spotd.cli.render import (
    Column,
    Output,
    Progress,
    emit,
    output_option,
    print_message,
    print_table,
)

app = group()

_WHICH = typer.Argument("", metavar="[STEP|PIN]", help="Default: the newest.")
_WHICH_OR_UNIT = typer.Argument(
    "", metavar="[STEP|PIN|NAME]", help="NAME: of a program's own checkpoint. Default: the newest."
)
_PIN = typer.Argument(metavar="PIN", help="Its name, like best: a-z, 0-9 and -.")
_READ_S = 1800.0  # reply limit for one shard


@app.callback()
def ckpt() -> None:
    """List, verify, download and pin a job's checkpoints.

    The daemon reads the store with its own credentials. A pinned checkpoint is retained until it is
    unpinned, however many newer ones there are.

    \b
    Example:
      spotctl ckpt ls gpt
    """


@app.command("ls")
def list_(ctx: typer.Context, job: str = JOB, output: Output = output_option()) -> None:
    """List the checkpoints that a job's HEAD and pins name, newest first.

    \b
    Example:
      spotctl ckpt ls gpt
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_CHECKPOINTS(job=job))
    emit(data, output, lambda: _print_checkpoints(data), "step")


def _print_checkpoints(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message(f"no checkpoint yet in {data['store']}")
        return
    columns = [
        Column("STEP", right=True, rank=0),
        Column("GEN", right=True, rank=2),
        Column("AGE", right=True, rank=0),
        Column("SIZE", right=True, rank=0),
        Column("PINS", wrap=True),
        Column("STATE", wrap=True, rank=0),
        Column("FILES", wrap=True),
    ]
    rows = []
    for item in data["items"]:
        states = ["newest"] if item["newest"] else []
        states += [flag for flag in ("released", "final") if item["newest"] and data[flag]]
        states += [f"shards in {url}" for url in item.get("stores", ())]
        state = f"damaged: {item['problem']}" if item["problem"] else ", ".join(states)
        age = span(item["age_s"])
        # Without a number in a name, the step is a count of the saves.
        step = str(item["step"]) if item["numbered"] else f"#{item['step']}"
        cells = [step, str(item["generation"]), age, size(item["bytes"])]
        files = ", ".join(unit["name"] for unit in item["units"])
        rows.append([*cells, ", ".join(item["pins"]), state, files])
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(columns, rows)


@app.command()
def verify(
    ctx: typer.Context, job: str = JOB, which: str = _WHICH, output: Output = output_option()
) -> None:
    """Read an entire checkpoint on the daemon's machine, and compare every byte with its digest.

    The exit code is 1 if something is missing or damaged; the output names it. All data is read
    from the store: reading a bucket in another cloud costs egress.

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
            f"spotctl ckpt ls {job} lists others; a resume skips damaged ones",
        )


def _verify(client: Client, job: str, which: str) -> dict[str, Any]:
    damage, done, number, shards, progress = [], 0, 0, 1, Progress("verified")
    reply: dict[str, Any] = {}
    while number < shards:
        body = {"name": which, "shard": number}
        reply = client.call(routes.VERIFY_CHECKPOINT(job=job), body, reply_s=_READ_S)
        which = which or str(reply["step"])  # the newest may be another one by the next request
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
        print_message(line)
    if not data["damage"]:
        print_message(
            f"step {data['step']}: {size(data['total_bytes'])}, every byte as it was saved"
        )


@app.command()
def pull(
    ctx: typer.Context,
    job: str = JOB,
    which: str = _WHICH_OR_UNIT,
    into: Path = typer.Option(
        ..., "--into", metavar="DIR", help="Target folder; created if missing."
    ),
    output: Output = output_option(),
) -> None:
    """Download a checkpoint into a folder, verifying every byte.

    In directory mode DIR gets the program's own files under their own names: all that its folder
    had at that step, or one checkpoint of it by name. For a job of engine spotd the folder becomes
    a store, file://DIR, with this checkpoint alone. After an interruption, run it again to resume.

    \b
    Example:
      spotctl ckpt pull gpt --into gpt-copy
      spotctl ckpt pull gpt best --into best
      spotctl ckpt pull gpt checkpoint-256 --into gpt-256
    """
    from spotd.cli.pull import pull_into

    progress = Progress("pulled")
    with connect(ctx) as client:
        checkpoints = client.call(routes.LIST_CHECKPOINTS(job=job))
        data = pull_into(
            client=client, listed=checkpoints, which=which, folder=into, on_progress=progress.show
        )
    progress.end()
    content = f" ({', '.join(data['files'])})" if data["files"] else ""
    message = (
        f"step {data['step']}: {size(data['bytes'])} in {into}{content}, every byte as it was saved"
    )
    if data["links_left_out"]:
        message += f"\nnot made, because they lead out of it: {', '.join(data['links_left_out'])}"
    emit(data, output, lambda: print_message(message), "manifest")


@app.command(cls=IntoCommand)
def export(
    ctx: typer.Context,
    job: str = JOB,
    into: Path = typer.Option(..., "--into", metavar="DIR", help="A new folder."),
    kind: Format = typer.Option(..., "--format", help="Format of the export."),
    step: str = typer.Option("", metavar="STEP", help="Or a pin. Default: the newest."),
    only: str | None = typer.Option(
        None, metavar="PREFIX", help="Only tensors with this prefix, which is removed."
    ),
    output: Output = output_option(),
) -> None:
    """Convert a checkpoint for other programs, verifying every byte.

    hf is safetensors with an index, of the weights alone (model.*, if there are any); dcp is a
    folder for torch.distributed.checkpoint.load; torch is one file for
    torch.load(weights_only=True); safetensors is one file of all tensors. dcp and torch need torch
    here and twice the disk space; no GPU is needed, and little memory.

    \b
    Example:
      spotctl ckpt export gpt --format hf --into gpt-hf
      spotctl ckpt export gpt --format torch --step best --into best
    """
    from spotd.checkpoint_convert.export import export_into

    progress = Progress("exported")
    with connect(ctx) as client:
        checkpoints = client.call(routes.LIST_CHECKPOINTS(job=job))
        data = export_into(
            client=client,
            listing=checkpoints,
            which=step,
            export_format=kind,
            folder=into,
            prefix=only,
            on_progress=progress.show,
        )
    progress.end()
    message = f"step {data['step']}: {data['tensors']} tensors, {size(data['bytes'])} in {into}"
    emit(data, output, lambda: print_message(message), "out")


@app.command("import")
def import_(
    ctx: typer.Context,
    folder: Path = typer.Argument(
        None, metavar="[FOLDER]", help="A folder, or a safetensors file."
    ),
    job: str = typer.Option("", metavar="JOB", help="Import a checkpoint of this job instead."),
    step: str = typer.Option("", metavar="STEP", help="Step or pin of --job. Default: the newest."),
    only: str = typer.Option(
        "", metavar="PREFIX", help="Only tensors with this prefix, which is removed."
    ),
    store: str = typer.Option("", metavar="URL", help="Store. Default: spotd's own."),
    output: Output = output_option(),
) -> None:
    """Import a checkpoint for a new job: weights from elsewhere, or another job's checkpoint.

    FOLDER is a Hugging Face model (safetensors), a folder of torch's DCP, or the output of `ckpt
    export`. Weights start training at step 0; an export of a complete checkpoint continues at its
    step, with its optimizer. Nothing is unpickled. The import becomes the first checkpoint of a job
    and is verified like any other; its store must be that of the job file. After an interruption,
    run it again to resume.

    \b
    Example:
      spotctl ckpt import Llama-3.2-1B
      spotctl ckpt import --job gpt --step best
    """
    from spotd.cli.import_job import import_checkpoint
    from spotd.spec.sources import CheckpointOrigin

    if (folder is None) == (not job) or (step and not job) or (only and job):
        message = "name either a FOLDER (with --only if needed) or a --job (with --step if needed)"
        raise UserError(message, "spotctl ckpt import --help", ExitCode.USAGE)
    progress = Progress("imported")
    origin = CheckpointOrigin(job=job, which=step) if job else CheckpointOrigin(folder.absolute())
    with (
        connect(ctx) as client,
        import_checkpoint(
            client=client, origin=origin, store=store, on_progress=progress.show, only=only
        ) as data,
    ):
        progress.end()
    emit(data, output, lambda: _print_imported(data), "id")


def _print_imported(data: dict[str, Any]) -> None:
    content = "weights alone" if data["weights_only"] else f"all of step {data['step']}"
    print_message(f"{content}: {data['tensors']} tensors, {size(data['bytes'])} in {data['store']}")
    if data["left_out"]:
        names = ", ".join(data["left_out"][:5])
        print_message(f"left out because they are not tensors: {len(data['left_out'])} ({names})")
    print_message(f"to start a job with it: spotctl run FILE --continue {data['id']}")


@app.command()
def pin(
    ctx: typer.Context,
    job: str = JOB,
    name: str = _PIN,
    step: str = typer.Option("", metavar="STEP", help="Or another pin. Default: the newest."),
    output: Output = output_option(),
) -> None:
    """Pin a checkpoint, so that it is retained whatever the job's `keep` is. An existing pin
    is moved.

    \b
    Example:
      spotctl ckpt pin gpt best
      spotctl ckpt pin gpt before-lr-drop --step 12000
    """
    with connect(ctx) as client:
        data = client.call(routes.PIN_CHECKPOINT(job=job), {"pin": name, "name": step})
    emit(data, output, lambda: print_message(f"step {data['step']} is pinned as {name}"), "pin")


@app.command()
def unpin(
    ctx: typer.Context, job: str = JOB, name: str = _PIN, output: Output = output_option()
) -> None:
    """Unpin a checkpoint, so that it is deleted like any other when it is old.

    \b
    Example:
      spotctl ckpt unpin gpt best
    """
    with connect(ctx) as client:
        data = client.call(routes.UNPIN_CHECKPOINT(job=job), {"pin": name})
    emit(data, output, lambda: print_message(f"{name} is unpinned"), "pin")


@app.command("rm")
def remove(
    ctx: typer.Context,
    job: str = JOB,
    step: int = typer.Argument(min=0, metavar="STEP"),
    last: bool = typer.Option(
        False, "--last", help="Also delete the newest checkpoint of a job that has ended."
    ),
    output: Output = output_option(),
) -> None:
    """Delete one checkpoint from its store; never a pinned one, or the one that a job resumes from.

    \b
    Example:
      spotctl ckpt rm gpt 12000
    """
    with connect(ctx) as client:
        body: dict[str, Any] = {"name": str(step), "last": last}
        data = client.call(routes.REMOVE_CHECKPOINT(job=job), body)
    message = f"step {data['step']} is removed ({data['objects']} objects)"
    emit(data, output, lambda: print_message(message), "step")
