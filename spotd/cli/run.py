"""`spotctl run`: pack, upload what the daemon lacks, submit, follow."""

from __future__ import annotations

import secrets as random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import typer

from spotd.cli.client import Client, connect
from spotd.cli.follow import exit_code_of, follow_job, tell_once
from spotd.cli.jobfile import OVERRIDE, env_option, env_values, read_job_file, secret_option
from spotd.cli.pack import find_all, write_archive
from spotd.cli.progress import Progress
from spotd.cli.render import Output, emit, output_option, say
from spotd.cli.text import size

if TYPE_CHECKING:
    from spotd.spec import Parsed

_SUBMIT_PATIENCE_S = 15.0


def run(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    name: str = typer.Option("", "-n", "--name", help="Instead of the name in the file."),
    env: list[str] = env_option(),
    secret: list[str] = secret_option(),
    detach: bool = typer.Option(False, "-d", "--detach", help="Do not follow the job."),
    request_id: str = typer.Option("", help="Submitting again with the same id does nothing."),
    lost: str = typer.Option(
        "", "--continue", metavar="JOB_ID", help="Go on from this job, of a lost database."
    ),
    override: bool = OVERRIDE,
    late: bool = typer.Option(False, "--late", help="Even if its deadline cannot be promised."),
    output: Output = output_option(),
) -> None:
    """Submit a job file and follow it until it trains.

    The workdir and local file_mounts go along; relative paths start from where you are, and
    .skyignore, or else git, says what stays behind. Interrupting stops the following, not the job.

    With checkpoint.from in the file, what that names is imported first; again after a break.

    With --continue, a job whose spotd was lost with its database goes on from its checkpoints,
    under its old id. Machines that still train it can save no more: that spotd must be gone.

    \b
    Example:
      spotctl run examples/minimal.yaml
      spotctl run examples/finetune.yaml --name tune-2 --env MODEL=llama-70b --secret HF_TOKEN -d
    """
    from spotd.spec import load

    parsed = load(
        read_job_file(file),
        now_us=time.time_ns() // 1000,
        env=env_values(env),
        secrets=env_values(secret, secret=True),
        base_dir=Path.cwd(),
        fallback_name=name or ("stdin" if str(file) == "-" else file.stem),
    )
    body: dict[str, Any] = {
        "yaml": parsed.text,
        "name": name,
        "fallback_name": parsed.spec.name,
        "env": env_values(env),
        "secrets": dict(parsed.secrets),
        "request_id": request_id or random.token_hex(16),
        "override_budget": override,
        "late": late,
    }
    with connect(ctx) as client:
        body["packages"] = upload_all(client, parsed)
        job = _submit(client, body, parsed, lost)
        if not detach:
            job = _follow(client, job)
        else:
            _say_submitted(job)
    emit(job, output, lambda: say(f"{job['name']}: {job['phase']}"), "name")
    if not detach:
        raise typer.Exit(exit_code_of(job["phase"]))


def _submit(client: Client, body: Mapping[str, Any], parsed: Parsed, lost: str) -> dict[str, Any]:
    with _beginning(client, parsed, lost) as first:
        sent = {**body, "continue": first} if first else body
        job = client.patiently(lambda: client.post("/v1/jobs", sent), _SUBMIT_PATIENCE_S)
    for warning in job["warnings"]:
        say(f"warning: {warning}")
    if lost:
        say(f"{job['name']} goes on from step {job['step']}")
    return job


@contextmanager
def _beginning(client: Client, parsed: Parsed, lost: str) -> Iterator[str]:
    """Whose checkpoint the job is to go on from, while it is submitted; "" for nobody's."""
    if lost or parsed.origin is None:
        yield lost
        return
    from spotd.cli.imported import imported

    progress = Progress("imported")
    store = parsed.spec.checkpoint.store
    with imported(client, parsed.origin, store, progress.show) as found:
        progress.end()
        what = "weights alone" if found["weights_only"] else f"all of step {found['step']}"
        say(f"begins with {what} ({size(found['bytes'])})")
        yield found["id"]


def _say_submitted(job: dict[str, Any]) -> None:
    say(f"submitted {job['name']} ({job['id']})")


def _follow(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    try:
        _say_submitted(job)
        found = follow_job(client, job["id"], {"running"}, tell_once())
    except KeyboardInterrupt:
        say(f"\n{job['name']} goes on: spotctl events -f {job['name']}, or spotctl cancel")
        raise
    return found or job


def upload_all(client: Client, parsed: Parsed) -> list[dict[str, Any]]:
    """The workdir and every mount, packed and with the daemon; one object each for the API."""
    sources = [(parsed.workdir, "")] if parsed.workdir else []
    packages = []
    for source, target in [*sources, *parsed.mounts]:
        is_file = not source.is_dir()
        with tempfile.TemporaryFile() as archive:
            found = find_all(source, lambda text: say(f"warning: {text}"))
            single = target.rpartition("/")[2] if is_file else ""
            packed = write_archive(found, cast("IO[bytes]", archive), single)
            if not client.has_package(packed.digest):
                archive.seek(0)
                _upload(client, packed.digest, cast("IO[bytes]", archive), packed.length, source)
        packages.append({"target": target, "digest": packed.digest, "is_file": is_file})
    return packages


def _upload(client: Client, digest: str, archive: IO[bytes], length: int, source: Path) -> None:
    if not sys.stderr.isatty():
        say(f"uploading {source} ({size(length)})")
        client.put_package(digest, archive, length)
        return
    from rich.console import Console
    from rich.progress import wrap_file

    with wrap_file(
        cast("Any", archive),
        length,
        description=f"uploading {source.name}",
        console=Console(stderr=True),
        transient=True,
    ) as watched:
        client.put_package(digest, cast("IO[bytes]", watched), length)
