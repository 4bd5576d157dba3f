"""`spotctl ssh`: the user's own ssh client, the job's key, the machine's pinned host key."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, Target, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean
from spotd.cli.render import Output, emit, output_option, say


def ssh(
    ctx: typer.Context,
    job: str = JOB,
    command: list[str] = typer.Argument(None, metavar="COMMAND...", help="Run it and return."),
    rank: int = typer.Option(0, min=0, help="Which machine of the job."),
    output: Output = output_option(),
) -> None:
    """Log in to a job's machine, or run a command there.

    With -o json the address is printed, and nobody let in. The keys live in a private folder for as
    long as the session lasts. To a machine behind a jump host you go through it as yourself: with
    your own account there, and your own keys.

    \b
    Example:
      spotctl ssh gpt
      spotctl ssh gpt -- nvidia-smi -L
    """
    target: Target = ctx.obj
    with connect(ctx) as client:
        if output is not Output.TABLE:
            address = client.get(job_path(job, "/ssh"), rank=rank)
            emit(address, output, lambda: None, "host")
            return
        access = client.post(job_path(job, "/ssh"), {"rank": rank})
    with tempfile.TemporaryDirectory(prefix="spotctl-") as folder:
        arguments = ssh_arguments(access, Path(folder), target.host) + list(command or [])
        local = " (local)" if access["local"] else ""
        through = f" through {clean(jump['host'])}" if (jump := access.get("jump")) else ""
        say(f"generation {access['generation']} on {clean(access['host'])}{through}{local}")
        try:
            code = subprocess.run(arguments, check=False).returncode
        except FileNotFoundError:
            raise UserError(
                "there is no ssh on this machine", "install OpenSSH", ExitCode.FAILURE
            ) from None
    raise typer.Exit(code if code >= 0 else 128 - code)


def ssh_arguments(access: dict[str, Any], folder: Path, box: str) -> list[str]:
    """The command line of ssh; writes key and known hosts into `folder`. With `box`, through the
    box of the daemon, which is the one that the machine, or its jump host, lets in."""
    key, known = folder / "key", folder / "known_hosts"
    with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(access["private_key"])
    known.write_text(f"spotd-node {access['host_public_key']}\n")
    pinned = {
        "UserKnownHostsFile": str(known),
        "HostKeyAlias": "spotd-node",
        "StrictHostKeyChecking": "yes",
        "LogLevel": "ERROR",
    }
    options = {"IdentityFile": str(key), "IdentitiesOnly": "yes", **pinned}
    jump = access.get("jump")
    if jump:
        with known.open("a") as file:
            file.write(f"spotd-jump {jump['host_public_key']}\n")
        proxy = ["ssh", *_flags({**pinned, "HostKeyAlias": "spotd-jump"})]
        proxy += ["-J", box] if box else []
        proxy += ["-p", str(jump["port"])]
        # ssh itself fills in where to go on to.
        command = shlex.join(proxy).replace("%", "%%") + " -W '[%h]:%p' -- "
        options["ProxyCommand"] = command + shlex.quote(jump["host"]).replace("%", "%%")
    elif box:
        options["ProxyJump"] = box
    flags = _flags(options)
    return ["ssh", *flags, "-p", str(access["port"]), "-l", access["user"], "--", access["host"]]


def _flags(options: dict[str, str]) -> list[str]:
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
