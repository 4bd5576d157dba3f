"""Runner of one command line of `spotctl` or `spotd`, and the exit code of every error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import Abort, TyperException

from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean
from spotd.cli.local_time import localised


def run_app(
    app: typer.Typer,
    name: str,
    arguments: Sequence[str],
    plain_errors: tuple[type[Exception], ...] = (),
) -> int:
    """Run `arguments` as a command line of the program `name` and return its exit code.

    Errors go to stderr. A `UserError` ends in "try: ..."; the message of an exception in
    `plain_errors` is printed as it is.
    """
    try:
        result = app(list(arguments) or ["--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error), error.exit_code)
    except plain_errors as error:
        return _fail(str(error), ExitCode.FAILURE)
    except TyperException as error:  # a wrong command line
        context = getattr(error, "ctx", None)
        path = context.command_path if context else name
        message = _message(error)
        return _fail(f"{message}\ntry: {path} --help", ExitCode.USAGE)
    except (KeyboardInterrupt, Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has closed it, as `head` does; discard the remaining output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except SystemExit as error:
        # typer ends shell completion this way, and also answers a closed pipe with it.
        completing = f"_{name.upper()}_COMPLETE" in os.environ
        return int(error.code or 0) if completing else ExitCode.OK
    return int(result) if isinstance(result, int) else ExitCode.OK


def _message(error: TyperException) -> str:
    """Return the message; of an unknown option with the nearest known one."""
    if close := getattr(error, "possibilities", None):
        return f"{error.message}; did you mean {close[0]!r}?"
    return str(error.format_message()).rstrip(".")


def _fail(message: str, code: ExitCode) -> int:
    for number, line in enumerate(message.splitlines()):
        prefix = "error: " if number == 0 else ""
        print(prefix + localised(clean(line)), file=sys.stderr)
    return code
