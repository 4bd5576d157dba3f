"""`spotctl init job`: a job file and a training loop that survive the loss of their machine."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import print_message

# Name in the user's folder -> name in this package, a copy of examples/loop. It ends in .txt
# because it is not a module of spotd.
FILES = {"job.yaml": "job.yaml", "train.py": "train.py.txt"}


def write_starter(folder: Path) -> None:
    """Write the files into `folder`. Raises UserError, and writes none, if one of them exists."""
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        message = f"{folder / existing[0]} exists already, and is left unchanged"
        raise UserError(message, "--into another folder", ExitCode.USAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, packaged in FILES.items():
            content = files("spotd.cli").joinpath("files", packaged).read_text(encoding="utf-8")
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--into: {error}", "a folder that you may write to") from None
    # `workdir: .` is where `spotctl run` is called.
    cd = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print_message(f"wrote {' and '.join(FILES)} to {folder}: {cd}spotctl run job.yaml")
