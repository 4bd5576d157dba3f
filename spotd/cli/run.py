"""`spotctl run`: package the files, upload missing packages, submit and follow the job."""

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
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import size
from spotd.cli.follow import exit_code_for, follow_and_print
from spotd.cli.job_file import OVERRIDE, env_option, env_values, read_job_file, secret_option
from spotd.cli.render import Output, Progress, emit, output_option, print_message
from spotd.packaging.archive import find_files, write_archive

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
    request_id: str = typer.Option("", help="Submitting again with the same id has no effect."),
    continue_job: str = typer.Option(
        "", "--continue", metavar="JOB_ID", help="Continue this job of a lost database."
    ),
    override: bool = OVERRIDE,
    late: bool = typer.Option(False, "--late", help="Submit even if the deadline is at risk."),
    no_checkpoints: bool = typer.Option(
        False, "--no-checkpoints", help="Accept that a preemption loses all work of the job."
    ),
    output: Output = output_option(),
) -> None:
    """Submit a job file and follow it until it trains.

    A file of several documents (---) defines several jobs. All are submitted; each starts when the
    one before it has succeeded, and the first is followed. See docs/phases.md.

    The workdir and local file_mounts are uploaded. Relative paths start from the current folder;
    .skyignore, or else git, says which files to leave out. Ctrl-C stops following, not the job.

    With checkpoint.from, that checkpoint is imported first, and resumed if interrupted.

    With --continue, a job whose spotd lost its database continues from its checkpoints, under its
    old id. Machines that still train it can no longer save. That spotd must be gone.

    \b
    Example:
      spotctl run examples/minimal.yaml
      spotctl run examples/finetune.yaml --name tune-2 --env MODEL=llama-70b --secret HF_TOKEN -d
    """
    fallback_name = name or ("stdin" if str(file) == "-" else file.stem)
    parsed = _load_jobs(file=file, fallback_name=fallback_name, env=env, secret=secret)
    if name or continue_job:
        _require_one_job(parsed)
    common = {
        "name": name,
        "env": env_values(env),
        "request_id": request_id or random.token_hex(16),
        "override_budget": override,
        "late": late,
        "no_checkpoints": no_checkpoints,
    }
    with connect(ctx) as client:
        jobs = _submit_all(client=client, parsed=parsed, common=common, continue_job=continue_job)
        announcement = _submitted_text(jobs[0]) if len(jobs) == 1 else ""
        if not (detach or jobs[0].get("approval")):  # else a person comes first
            jobs[0] = follow_and_print(client, jobs[0], {"running"}, announcement)
        elif announcement:
            print_message(announcement)
    data = {"kind": "JobList", "items": jobs} if len(jobs) > 1 else jobs[0]
    phases = ", ".join(f"{job['name']}: {job['phase']}" for job in jobs)
    emit(data, output, lambda: print_message(phases), "name")
    if not detach:
        raise typer.Exit(exit_code_for(jobs[0]["phase"]))


def _require_one_job(parsed: list[ParsedJobFile]) -> None:
    """Raise UserError if the file has several jobs."""
    if len(parsed) > 1:
        message = "--name and --continue apply to one job, and the file has several"
        fix = "name the jobs in the file; continue each with a file of its own"
        raise UserError(message, fix, ExitCode.USAGE)


def _load_jobs(
    file: Path, fallback_name: str, env: list[str], secret: list[str]
) -> list[ParsedJobFile]:
    """Return every job of the file. Raises UserError before any is submitted."""
    from spotd.spec import load, split_documents

    texts = split_documents(read_job_file(file))
    names = [f"{fallback_name}-{n}" for n in range(1, len(texts) + 1)]
    jobs = [
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
    job_names = [job.spec.name for job in jobs]
    if len(set(job_names)) < len(job_names):
        text = f"two jobs of {file} have the same name: {', '.join(job_names)}"
        raise UserError(text, "give each document a name of its own", ExitCode.USAGE)
    return jobs


def _submit_all(
    client: Client, parsed: list[ParsedJobFile], common: Mapping[str, Any], continue_job: str
) -> list[dict[str, Any]]:
    """Submit the jobs of the file in order, each after the one before it."""
    jobs: list[dict[str, Any]] = []
    for number, job_file in enumerate(parsed):
        body = {
            **common,
            "yaml": job_file.text.lstrip("\n"),
            "fallback_name": job_file.spec.name,
            "secrets": dict(job_file.secrets),
            "packages": upload_packages(client, job_file),
        }
        if number:
            body["request_id"] = f"{common['request_id']}-{number}"
            body["after"] = job_file.spec.queue.after or jobs[-1]["id"]
        try:
            jobs.append(
                _submit(client=client, body=body, parsed=job_file, continue_job=continue_job)
            )
        except UserError as error:
            if jobs:
                names = " ".join(job["name"] for job in jobs)
                print_message(
                    f"{job_file.spec.name} was refused; submitted before it: spotctl cancel {names}"
                )
            raise error
        if len(parsed) > 1:
            print_message(_submitted_text(jobs[-1]))
    return jobs


def _submit(
    client: Client, body: Mapping[str, Any], parsed: ParsedJobFile, continue_job: str
) -> dict[str, Any]:
    with _initial_checkpoint(client, parsed, continue_job) as checkpoint_id:
        sent = {**body, "continue": checkpoint_id} if checkpoint_id else body
        job = client.with_retry(lambda: client.call(routes.SUBMIT_JOB(), sent), _SUBMIT_PATIENCE_S)
    for warning in job["warnings"]:
        print_message(f"warning: {warning}")
    if continue_job:
        print_message(f"{job['name']} continues from step {job['step']}")
    return job


@contextmanager
def _initial_checkpoint(client: Client, parsed: ParsedJobFile, continue_job: str) -> Iterator[str]:
    """Yield the id of the job or import whose checkpoint the job starts from; "" for none.

    An import stays resumable until the block, which submits the job, has ended without an error.
    """
    if continue_job or parsed.origin is None:
        yield continue_job
        return
    from spotd.cli.import_job import import_checkpoint

    progress = Progress("imported")
    store = parsed.spec.checkpoint.store
    with import_checkpoint(
        client=client, origin=parsed.origin, store=store, on_progress=progress.show
    ) as checkpoint:
        progress.end()
        content = (
            "weights alone" if checkpoint["weights_only"] else f"all of step {checkpoint['step']}"
        )
        print_message(f"starts with {content} ({size(checkpoint['bytes'])})")
        yield checkpoint["id"]


def _submitted_text(job: dict[str, Any]) -> str:
    return f"submitted {job['name']} ({job['id']})"


def upload_packages(client: Client, parsed: ParsedJobFile) -> list[dict[str, Any]]:
    """Package the workdir and every mount, and upload those that the daemon lacks.

    Returns one object for each, as the API takes it.
    """
    sources = [(parsed.workdir, "")] if parsed.workdir else []
    packages = []
    for source, target in [*sources, *parsed.mounts]:
        is_file = not source.is_dir()
        with tempfile.TemporaryFile() as archive:
            entries = find_files(source, lambda text: print_message(f"warning: {text}"))
            file_name = target.rpartition("/")[2] if is_file else ""
            packed = write_archive(entries, cast("IO[bytes]", archive), file_name)
            if not client.has_package(packed.digest):
                archive.seek(0)
                _upload(
                    client=client,
                    digest=packed.digest,
                    archive=cast("IO[bytes]", archive),
                    length=packed.length,
                    source=source,
                )
        packages.append({"target": target, "digest": packed.digest, "is_file": is_file})
    return packages


def _upload(client: Client, digest: str, archive: IO[bytes], length: int, source: Path) -> None:
    if not sys.stderr.isatty():
        print_message(f"uploading {source} ({size(length)})")
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
    ) as tracked:
        client.put_package(digest, cast("IO[bytes]", tracked), length)
