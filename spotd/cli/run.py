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

from spotd.api_client.client import Client, connect
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import size
from spotd.cli.follow import exit_code_of, follow_job, tell_once
from spotd.cli.job_file import OVERRIDE, env_option, env_values, read_job_file, secret_option
from spotd.cli.progress import Progress
from spotd.cli.render import Output, emit, output_option, say
from spotd.packaging.archive import find_all, write_archive

if TYPE_CHECKING:
    from spotd.spec import ParsedJobFile

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

    A file of several documents (---) is several jobs, each begun when the one before has succeeded:
    all are submitted, and the first is followed. docs/phases.md.

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
    parsed = _read(file, name or ("stdin" if str(file) == "-" else file.stem), env, secret)
    if len(parsed) > 1 and (name or lost):
        text = "--name and --continue are of one job, and the file has several"
        fix = "name them in the file; go on from each by a file of its own"
        raise UserError(text, fix, ExitCode.USAGE)
    common = {
        "name": name,
        "env": env_values(env),
        "request_id": request_id or random.token_hex(16),
        "override_budget": override,
        "late": late,
    }
    with connect(ctx) as client:
        jobs = _submit_all(client, parsed, common, lost)
        if not detach:
            jobs[0] = _follow(client, jobs[0], told=len(jobs) > 1)
        elif len(jobs) == 1:
            _say_submitted(jobs[0])
    data = {"kind": "JobList", "items": jobs} if len(jobs) > 1 else jobs[0]
    words = ", ".join(f"{job['name']}: {job['phase']}" for job in jobs)
    emit(data, output, lambda: say(words), "name")
    if not detach:
        raise typer.Exit(exit_code_of(jobs[0]["phase"]))


def _read(file: Path, fallback_name: str, env: list[str], secret: list[str]) -> list[ParsedJobFile]:
    """Every job of the file. Raises UserError before any is submitted."""
    from spotd.spec import documents, load

    texts = documents(read_job_file(file))
    names = [f"{fallback_name}-{n}" for n in range(1, len(texts) + 1)]
    found = [
        load(
            text,
            now_us=time.time_ns() // 1000,
            env=env_values(env),
            secrets=env_values(secret, secret=True),
            base_dir=Path.cwd(),
            fallback_name=name if len(texts) > 1 else fallback_name,
        )
        for text, name in zip(texts, names, strict=True)
    ]
    twice = [one.spec.name for one in found]
    if len(set(twice)) < len(twice):
        text = f"two jobs of {file} have one name: {', '.join(twice)}"
        raise UserError(text, "give each document a name of its own", ExitCode.USAGE)
    return found


def _submit_all(
    client: Client, parsed: list[ParsedJobFile], common: Mapping[str, Any], lost: str
) -> list[dict[str, Any]]:
    """Each after the one before."""
    jobs: list[dict[str, Any]] = []
    for number, one in enumerate(parsed):
        body = {
            **common,
            "yaml": one.text.lstrip("\n"),
            "fallback_name": one.spec.name,
            "secrets": dict(one.secrets),
            "packages": upload_all(client, one),
        }
        if number:
            body["request_id"] = f"{common['request_id']}-{number}"
            body["after"] = one.spec.after or jobs[-1]["id"]
        try:
            jobs.append(_submit(client, body, one, lost))
        except UserError as error:
            if jobs:
                names = " ".join(job["name"] for job in jobs)
                say(f"{one.spec.name} was refused; submitted before it: spotctl cancel {names}")
            raise error
        if len(parsed) > 1:
            _say_submitted(jobs[-1])
    return jobs


def _submit(
    client: Client, body: Mapping[str, Any], parsed: ParsedJobFile, lost: str
) -> dict[str, Any]:
    with _beginning(client, parsed, lost) as first:
        sent = {**body, "continue": first} if first else body
        job = client.patiently(lambda: client.post("/v1/jobs", sent), _SUBMIT_PATIENCE_S)
    for warning in job["warnings"]:
        say(f"warning: {warning}")
    if lost:
        say(f"{job['name']} goes on from step {job['step']}")
    return job


@contextmanager
def _beginning(client: Client, parsed: ParsedJobFile, lost: str) -> Iterator[str]:
    """Whose checkpoint the job is to go on from, while it is submitted; "" for nobody's."""
    if lost or parsed.origin is None:
        yield lost
        return
    from spotd.cli.import_job import imported

    progress = Progress("imported")
    store = parsed.spec.checkpoint.store
    with imported(client, parsed.origin, store, progress.show) as found:
        progress.end()
        what = "weights alone" if found["weights_only"] else f"all of step {found['step']}"
        say(f"begins with {what} ({size(found['bytes'])})")
        yield found["id"]


def _say_submitted(job: dict[str, Any]) -> None:
    say(f"submitted {job['name']} ({job['id']})")


def _follow(client: Client, job: dict[str, Any], *, told: bool) -> dict[str, Any]:
    try:
        if not told:
            _say_submitted(job)
        found = follow_job(client, job["id"], {"running"}, tell_once())
    except KeyboardInterrupt:
        say(f"\n{job['name']} goes on: spotctl events -f {job['name']}, or spotctl cancel")
        raise
    return found or job


def upload_all(client: Client, parsed: ParsedJobFile) -> list[dict[str, Any]]:
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
