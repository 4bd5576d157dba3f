"""Job file and environment options, as `run` and `plan` take them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from spotd.base.errors import ExitCode, UserError

_MAX_BYTES = 1 << 20
OVERRIDE = typer.Option(
    False, "--override-budget", help="Submit even if it exceeds a budget; the override is audited."
)


def env_option() -> Any:
    """Return the `--env` option, as SkyPilot has it."""
    return typer.Option(
        [],
        "-e",
        "--env",
        metavar="NAME[=VALUE]",
        help="Set an environment variable; NAME alone copies yours.",
    )


def secret_option() -> Any:
    """Return the `--secret` option, as SkyPilot has it."""
    return typer.Option(
        [],
        "-s",
        "--secret",
        metavar="NAME[=VALUE]",
        help="Set a secret; NAME alone copies your environment variable.",
    )


def read_job_file(path: Path) -> str:
    """Return the text of a job file; `-` is stdin. Raises UserError."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        if len(data) > _MAX_BYTES:
            raise UserError(
                f"{path} is too large for a job file", "name a YAML file", ExitCode.USAGE
            )
        return data.decode()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}",
            "spotctl run FILE, with the job file's path",
            ExitCode.USAGE,
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file", "name a YAML file", ExitCode.USAGE) from None


def env_values(assignments: Iterable[str], *, secret: bool = False) -> dict[str, str]:
    """Return NAME -> value: of NAME=VALUE as it is, of NAME alone from this environment.

    Raises UserError for a name that is not set. For a secret it does not suggest the command line,
    where other users of the machine can read it.
    """
    alternative = "" if secret else ", or {0}=VALUE on the command line"
    values = {}
    for item in assignments:
        name, equals, value = item.partition("=")
        if not equals:
            if name not in os.environ:
                raise UserError(
                    f"{name} is not set in your environment",
                    f"export {name}=...{alternative.format(name)}",
                    ExitCode.USAGE,
                )
            value = os.environ[name]
        values[name] = value
    return values
