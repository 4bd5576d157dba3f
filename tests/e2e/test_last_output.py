"""The output that a program prints at its end is fetched before its machine goes, or it is said
what is missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotd.demo.box import Box, running_box, wait_for
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, UP_TIMEOUT_S, Run
from tests.e2e.test_outputs import started

LINES = 8000  # about 200 kB
MANY = 400_000  # about 10 MB: more than is fetched from a machine that is to go
NOTICE_S = 20.0


def lines(count: int, name: str = "end") -> str:
    return "".join(f"{name} {number:07d} ......\n" for number in range(1, count + 1))


def say(count: int, name: str = "end") -> str:
    """A shell command that prints `lines`."""
    return f"seq -f '{name} %07.0f ......' 1 {count}"


def job_file(program: str, name: str, more: str = "") -> str:
    text = "".join(f"  {line}\n" for line in program.splitlines())
    return f"""\
name: {name}
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
run: |
{text}
spotd: {{stop_grace: 15s, outputs: []{more}}}
"""


def logs(box: Box, python: Path, *arguments: str) -> str:
    command = [str(python.parent / "spotctl"), "--socket", str(box.socket_path), "logs", *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


def ended(box: Box, job_id: str, phase: str) -> dict[str, Any]:
    job = box.wait_phase(job_id, {*FINISHED, "paused"}, FINISH_TIMEOUT_S)
    assert job["phase"] == phase, job["outcome_text"]
    return job


@pytest.mark.e2e
def test_all_that_is_printed_at_the_end_is_there(folder: Path, python: Path) -> None:
    ends = {"succeeded": say(LINES), "failed": f"{say(LINES)}; exit 3"}
    with running_box(folder, SCENARIO, python=python) as box:
        for phase, program in ends.items():
            text = job_file(program, phase, ", max_restarts_on_errors: 0")
            ended(box, box.submit(text, phase), phase)
            assert logs(box, python, phase) == lines(LINES)
        many = box.submit(job_file(say(MANY), "many"), "many")
        ended(box, many, "succeeded")
        assert logs(box, python, "many") == lines(MANY), "the rest is in the job's store"
        rest = sorted((folder / "checkpoints").rglob("*-rank0.log"))
        assert [path.stat().st_size > 4 << 20 for path in rest] == [True]
        rest[0].unlink()
        text = logs(box, python, "many")
        (mark,) = [line for line in text.splitlines() if line.startswith("---")]
        absent = int(mark.split()[2].replace(",", ""))
        assert len(text.encode()) - len(mark) - 1 + absent == len(lines(MANY))
        assert rest[0].name in mark
        begin, end = text.split(f"{mark}\n")
        assert lines(MANY).startswith(begin)
        assert lines(MANY).endswith(end)
        assert end.startswith("end ")


STOPS = f"""\
trap '{say(LINES).replace("'", '"')}; exit 143' TERM
echo began
while :; do sleep 0.1; done
"""


@pytest.mark.e2e
@pytest.mark.parametrize("way", ["pause", "cancel", "notice"])
def test_a_stopped_program_s_last_output_is_there(folder: Path, python: Path, way: str) -> None:
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job_file(STOPS, "stopped"), "stopped"), Random(1))
        node = started(run)
        wait_for("its output", lambda: "began" in logs(box, python, "stopped"), UP_TIMEOUT_S)
        if way == "notice":
            run.preempt(node["instance_id"], NOTICE_S)
        else:
            command = [str(python.parent / "spotctl"), "--socket", str(box.socket_path)]
            subprocess.run([*command, way, run.job_id, *(["-y"] * (way == "cancel"))], check=True)
        gone = lambda: [  # noqa: E731
            n
            for n in box.job(run.job_id)["nodes"]
            if n["id"] == node["id"] and n["state"] == "gone"
        ]
        wait_for("the end of its machine", gone, UP_TIMEOUT_S)
        text = logs(box, python, "stopped", "--gen", "1")
        assert text.startswith("began\n")
        assert text.endswith(lines(LINES))
        assert "---" not in text


@pytest.mark.e2e
def test_what_a_lost_machine_printed_last_is_unknown(folder: Path, python: Path) -> None:
    """A daemon that restarts meanwhile loses nothing of what the machine still has."""
    program = f"{say(LINES)}; while [ ! -e go ]; do sleep 0.1; done; {say(9, 'more')}; sleep 1000"
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job_file(program, "lost"), "lost"), Random(1))
        node = started(run)
        box.kill_daemon()
        box.start_daemon()
        whole = lambda: logs(box, python, "lost") == lines(LINES)  # noqa: E731
        wait_for("all its output", whole, UP_TIMEOUT_S)
        run.die(node["instance_id"], "reset")
        gone = lambda: box.job(run.job_id)["nodes"][0]["state"] == "gone"  # noqa: E731
        wait_for("its loss", gone, UP_TIMEOUT_S)
        text = logs(box, python, "lost", "--gen", "1")
        assert text.startswith(lines(LINES))
        assert "it is not known how much" in text.splitlines()[-1]
        *_, last = logs(box, python, "lost", "--gen", "1", "-o", "json").splitlines()
        assert json.loads(last)["missing"]["bytes"] is None


@pytest.mark.e2e
def test_the_last_output_of_every_machine_of_a_gang_is_there(folder: Path, python: Path) -> None:
    """On stdout and on stderr, by several processes of each."""
    program = f"{say(LINES, 'out')}; {say(LINES, 'err')} >&2 & wait"
    text = job_file(program, "gang").replace("resources:", "num_nodes: 2\nresources:")
    with running_box(folder, SCENARIO, python=python) as box:
        ended(box, box.submit(text, "gang"), "succeeded")
        for rank in ("0", "1"):
            output = logs(box, python, "gang", "--rank", rank)
            assert sorted(output.splitlines(True)) == sorted(
                lines(LINES, "out").splitlines(True) + lines(LINES, "err").splitlines(True)
            )
