"""A newcomer's first hour: from a clone to the first job, and five programs of their own.

    python -m bench.newcomer [--only loop ...] [--json FILE]

The first part clones this repository and follows README: it counts the commands and the seconds
until the first job's first step. The second part runs each program of examples/newcomer as it is in
directory mode, takes its machine away with a notice and without one, and tells how many lines were
changed, what was lost, and what the user was told. Programs that do not resume are run once more
with the lines that make them resume (resumes.py beside train.py).
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spotd.cli.app import run as spotctl
from spotd.demo.box import Box, running_box, wait_for
from spotd.domain.phase import FINISHED

ROOT = Path(__file__).parent.parent
NEWCOMERS = ROOT / "examples" / "newcomer"
LIMIT_S = 600.0
# The step that is saved when the machine is taken away; a count for a name without a number.
REACHED = {"loop": 60, "trainer": 60, "lightning": 160, "ddp": 1, "beside": 60}
ENDS: dict[str, dict[str, Any]] = {
    "notice of 20 s": {"kind": "preempt", "mode": "notice", "notice_s": 20},
    "none": {"kind": "none", "mode": "reset"},
}
SCENARIO = "\n".join(
    f'[[zone]]\npersonality = "aws"\nregion = "r-{letter}"\nname = "r-{letter}a"\n'
    for letter in "abcd"
)
# What comes before train.py on the command line, and the folder of the program's checkpoints.
COMMANDS = {"ddp": "-m torch.distributed.run --nproc-per-node 2"}
FOLDERS = {"beside": "checkpoints"}
PROGRAMS = ("loop", "trainer", "lightning", "ddp", "beside")


@dataclass(frozen=True)
class FirstJob:
    """The commands of README up to a job that trains, and the seconds of each."""

    commands: tuple[str, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """One program whose machine was taken away once. `lost_s` is null where it is not known."""

    program: str
    lines_changed: int
    notice: str
    resumed: bool
    lost_s: float | None
    files: int
    told: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.newcomer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--no-clone", action="store_true", help="leave out the first part")
    given = parser.parse_args()
    first = None if given.no_clone else first_job()
    if first is not None:
        for command, seconds in zip(first.commands, first.seconds, strict=True):
            print(f"{seconds:7.1f} s  {command}", flush=True)
    outcomes = []
    for name in given.only:
        for outcome in run_program(name):
            outcomes.append(outcome)
            print(json.dumps(asdict(outcome)), flush=True)
    print("\n".join(table(outcomes)))
    print("\n".join(summary(outcomes)))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "first_job": asdict(first) if first else None,
            "outcomes": list(map(asdict, outcomes)),
        }
        given.json.write_text(json.dumps(data, indent=1))


def first_job() -> FirstJob:
    """Clone the repository and run `make demo` until its job makes its first step."""
    with tempfile.TemporaryDirectory(prefix="spotd-newcomer-") as folder:
        clone = ["git", "clone", "-q", str(ROOT), "spotd"]
        began_s = time.monotonic()
        subprocess.run(clone, cwd=folder, check=True)
        cloned_s = time.monotonic()
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        demo = subprocess.Popen(
            ["make", "--no-print-directory", "demo"],
            cwd=Path(folder, "spotd"),
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert demo.stdout is not None
        for line in demo.stdout:
            if re.search(r"\btraining +training on\b", line):
                break
        trains_s = time.monotonic()
        demo.stdout.read()
        if demo.wait():
            raise SystemExit("make demo failed")
    return FirstJob(
        ("git clone … spotd", "make demo, until its first job trains"),
        (round(cloned_s - began_s, 1), round(trains_s - cloned_s, 1)),
    )


def run_program(name: str) -> Iterator[Outcome]:
    """Run a program as it is, and once more with the lines that make it resume, if it has those."""
    resumes = NEWCOMERS / name / "resumes.py"
    for file in ("train.py", "resumes.py") if resumes.exists() else ("train.py",):
        for notice, end in ENDS.items():
            yield lose_machine(name, file, notice=notice, end=end)


def lose_machine(name: str, file: str, *, notice: str, end: dict[str, Any]) -> Outcome:
    """Run the program until it has saved some steps, take its machine, and wait for its end."""
    with tempfile.TemporaryDirectory(prefix="spotd-newcomer-") as folder:
        place = Path(folder)
        with running_box(place / "box", SCENARIO) as box:
            socket = ["--socket", str(box.socket_path)]
            (place / "job.yaml").write_text(job_file(name, file))
            if spotctl([*socket, "run", "-d", str(place / "job.yaml")]):
                raise SystemExit("the job was refused")
            job_id = str(box.job(name)["id"])
            node = wait_for("its saves", lambda: _saved(box, job_id, REACHED[name]), LIMIT_S)
            assert node is not None
            box.preempt(node["instance_id"], **end)
            job = box.wait_phase(job_id, set(FINISHED), LIMIT_S)
            if job["phase"] != "succeeded":
                raise SystemExit(f"{name} {job['phase']}: {job['outcome_text']}")
            if job["generation"] == 1:
                raise SystemExit(f"{name} ended before its machine was taken away")
            if spotctl([*socket, "outputs", job_id, "--into", str(place / "kept")]):
                raise SystemExit(f"the files of {name} are not to be had")
            events = box.events(job_id)
        files = sum(path.is_file() for path in (place / "kept").rglob("*"))
    kinds = ("recovered", "not_resumed", "outputs", "succeeded")
    return Outcome(
        program=f"{name}/{file}",
        lines_changed=lines_changed(NEWCOMERS / name / "train.py", NEWCOMERS / name / file),
        notice=notice,
        resumed=not job["verdicts"],
        lost_s=job["lost_s"],
        files=files,
        told=tuple(event["text"] for event in events if event["kind"] in kinds),
    )


def _saved(box: Box, job_id: str, reached: int) -> dict[str, Any] | None:
    job = box.job(job_id)
    running = [node for node in job["nodes"] if node["state"] == "running"]
    saved = job["last_checkpoint"]
    return running[0] if running and saved and saved["step"] >= reached else None


def job_file(name: str, file: str) -> str:
    command = f"{shlex.quote(sys.executable)} {COMMANDS.get(name, '')} {file}"
    return f"""\
name: {name}
workdir: {NEWCOMERS / name}
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
envs: {{OMP_NUM_THREADS: "1", STEPS: "600", EPOCHS: "8"}}
run: {command}
spotd:
  checkpoint: {{mode: directory, path: {FOLDERS.get(name, "out")}}}
  stop_grace: 5s
"""


def lines_changed(before: Path, after: Path) -> int:
    """Return how many lines `after` has that `before` has not, without the docstring."""
    texts = [path.read_text().splitlines()[1:] for path in (before, after)]
    return sum(line.startswith("+ ") for line in difflib.ndiff(*texts))


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the rows of README's table."""
    yield "| program | lines changed | notice | resumes | work lost | files in hand |"
    yield "|---|---|---|---|---|---|"
    for one in outcomes:
        lost = "not known" if one.lost_s is None else f"{one.lost_s:.1f} s"
        resumes = "yes" if one.resumed else "no, and said so"
        cells = (one.program, one.lines_changed, one.notice, resumes, lost, one.files)
        yield f"| {' | '.join(map(str, cells))} |"


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the rows of README's table: one for each program, as it is and once it resumes."""
    yield "| program | as it is | lost with a notice, without | lines to resume | then lost |"
    yield "|---|---|---|---|---|"
    names = dict.fromkeys(outcome.program.partition("/")[0] for outcome in outcomes)
    for name in names:
        before, after = (
            [one for one in outcomes if one.program == f"{name}/{file}"]
            for file in ("train.py", "resumes.py")
        )
        fresh = "starts from the beginning, and spotd reports it"
        told = "resumes" if all(one.resumed for one in before) else fresh
        lines = str(after[0].lines_changed) if after else "0"
        cells = (name, told, _losses(before), lines, _losses(after or before))
        yield f"| {' | '.join(cells)} |"


def _losses(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(
        "not known" if one.lost_s is None else f"{one.lost_s:.1f} s" for one in outcomes
    )


if __name__ == "__main__":
    main()
