"""`spotctl init job`: a job file and a training loop to begin with, which survive the loss of their
machine as they are."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import say

# As it is called there -> among ours; .txt, for it is no module of spotd. It is examples/loop.
FILES = {"job.yaml": "job.yaml", "train.py": "train.py.txt"}


def write_starter(folder: Path) -> None:
    """Raises UserError where one of them is there already, and writes none then."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        text = f"{folder / there[0]} is there already, and is left as it is"
        raise UserError(text, "--into another folder", ExitCode.USAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, kept in FILES.items():
            text = files("spotd.cli").joinpath("files", kept).read_text(encoding="utf-8")
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--into: {error}", "a folder that you may write to") from None
    # `workdir: .` is where `spotctl run` is called.
    there_first = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    say(f"wrote {' and '.join(FILES)} to {folder}: {there_first}spotctl run job.yaml")
