"""`spotctl ssh`: the user's own ssh client with the job's key and the machine's pinned host key."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, Target, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean
from spotd.cli.render import Output, emit, output_option, print_message


def ssh(
    ctx: typer.Context,
    job: str = JOB,
    command: list[str] = typer.Argument(None, metavar="COMMAND...", help="Run it and return."),
    rank: int = typer.Option(0, min=0, help="Rank of the machine."),
    output: Output = output_option(),
) -> None:
    """Log in to a job's machine, or run a command there.

    With -o json the address is printed without a login. The keys exist in a private folder
    while the session lasts. A machine behind a jump host is reached through it with your own
    account and keys there.

    \b
    Example:
      spotctl ssh gpt
      spotctl ssh gpt -- nvidia-smi -L
    """
    target: Target = ctx.obj
    with connect(ctx) as client:
        if not output.is_table:
            address = client.call(routes.SSH_ADDRESS(job=job), query={"rank": rank})
            emit(address, output, lambda: None, "host")
            return
        access = client.call(routes.SSH_ACCESS(job=job), {"rank": rank})
    with tempfile.TemporaryDirectory(prefix="spotctl-") as folder:
        arguments = ssh_arguments(access, Path(folder), target.host) + list(command or [])
        local = " (local)" if access["local"] else ""
        through = f" through {clean(jump['host'])}" if (jump := access.get("jump")) else ""
        print_message(
            f"generation {access['generation']} on {clean(access['host'])}{through}{local}"
        )
        try:
            code = subprocess.run(arguments, check=False).returncode
        except FileNotFoundError:
            raise UserError(
                "there is no ssh on this machine", "install OpenSSH", ExitCode.FAILURE
            ) from None
    raise typer.Exit(code if code >= 0 else 128 - code)


def ssh_arguments(access: dict[str, Any], folder: Path, box: str) -> list[str]:
    """Return the ssh command line, and write the key and the known hosts into `folder`.

    With `box` the connection goes through the daemon's box, the only host that the machine or its
    jump host lets in.
    """
    key, known_hosts = folder / "key", folder / "known_hosts"
    with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(access["private_key"])
    known_hosts.write_text(f"spotd-node {access['host_public_key']}\n")
    pinned = {
        "UserKnownHostsFile": str(known_hosts),
        "HostKeyAlias": "spotd-node",
        "StrictHostKeyChecking": "yes",
        "LogLevel": "ERROR",
    }
    options = {"IdentityFile": str(key), "IdentitiesOnly": "yes", **pinned}
    jump = access.get("jump")
    if jump:
        with known_hosts.open("a") as file:
            file.write(f"spotd-jump {jump['host_public_key']}\n")
        proxy = ["ssh", *_flags({**pinned, "HostKeyAlias": "spotd-jump"})]
        proxy += ["-J", box] if box else []
        proxy += ["-p", str(jump["port"])]
        # ssh fills in %h and %p.
        command = shlex.join(proxy).replace("%", "%%") + " -W '[%h]:%p' -- "
        options["ProxyCommand"] = command + shlex.quote(jump["host"]).replace("%", "%%")
    elif box:
        options["ProxyJump"] = box
    flags = _flags(options)
    return ["ssh", *flags, "-p", str(access["port"]), "-l", access["user"], "--", access["host"]]


def _flags(options: dict[str, str]) -> list[str]:
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
