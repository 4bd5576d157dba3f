"""One command line of `spotctl` or `spotd`, run to its exit code; and how every error ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import Abort, TyperException

from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean


def run_app(
    app: typer.Typer,
    name: str,
    arguments: Sequence[str],
    told: tuple[type[Exception], ...] = (),
) -> int:
    """Exit code of the program `name`. Errors go to stderr; a `UserError` ends in "try: ...", the
    texts of exceptions in `told` stand for themselves."""
    try:
        result = app(list(arguments) or ["--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error), error.exit_code)
    except told as error:
        return _fail(str(error), ExitCode.FAILURE)
    except TyperException as error:  # a wrong command line
        context = getattr(error, "ctx", None)
        path = context.command_path if context else name
        text = error.format_message().rstrip(".")
        return _fail(f"{text}\ntry: {path} --help", ExitCode.USAGE)
    except (KeyboardInterrupt, Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has enough, as `head` has; what is left has no place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except SystemExit as error:
        # typer's way to end shell completion, and its answer to a closed pipe.
        completing = f"_{name.upper()}_COMPLETE" in os.environ
        return int(error.code or 0) if completing else ExitCode.OK
    return int(result) if isinstance(result, int) else ExitCode.OK


def _fail(text: str, code: ExitCode) -> int:
    for number, line in enumerate(text.splitlines()):
        prefix = "error: " if number == 0 else ""
        print(prefix + clean(line), file=sys.stderr)
    return code
