"""What `run` and `plan` are given: a job file, and values from options and the environment."""

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
    False, "--override-budget", help="Even beyond a budget; on record as yours."
)


def env_option() -> Any:
    """`--env`, as SkyPilot has it."""
    return typer.Option(
        [], "-e", "--env", metavar="NAME[=VALUE]", help="Set one of envs; NAME takes yours."
    )


def secret_option() -> Any:
    """`--secret`, as SkyPilot has it."""
    return typer.Option(
        [], "-s", "--secret", metavar="NAME[=VALUE]", help="Give a secret; NAME takes yours."
    )


def read_job_file(path: Path) -> str:
    """The text of a job file; `-` is stdin. Raises UserError."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        if len(data) > _MAX_BYTES:
            raise UserError(f"{path} is too large for a job file", "name a YAML", ExitCode.USAGE)
        return data.decode()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}",
            "spotctl run FILE, with the job file's path",
            ExitCode.USAGE,
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text", "name a YAML file", ExitCode.USAGE) from None


def env_values(given: Iterable[str], *, secret: bool = False) -> dict[str, str]:
    """NAME=VALUE as it is; NAME alone from this environment. Raises UserError, which does not send
    a secret to the command line, where others can read it."""
    other = "" if secret else ", or {0}=VALUE on the command line"
    values = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            if name not in os.environ:
                raise UserError(
                    f"{name} is not set in your environment",
                    f"export {name}=...{other.format(name)}",
                    ExitCode.USAGE,
                )
            value = os.environ[name]
        values[name] = value
    return values
