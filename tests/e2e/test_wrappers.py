"""Programs that others start, as jobs on the local cloud whose machine is taken away once.

The one that trains saves at SIGTERM, and the job goes on after its last step.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from spotd.demo.box import Box, running_box
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, Run
from tests.fixtures.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("kills of others")]

# Makes a step after the other, and keeps its state nowhere else until it is asked to stop.
TRAIN = """
import pathlib, signal, sys, time
state, record, end = pathlib.Path("out/step"), pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
step = int(state.read_text()) if state.exists() else 0
while not end.exists():
    step += 1
    with record.open("a") as file:
        file.write(f"{step}\\n")
    time.sleep(0.05)
    if asked:
        state.parent.mkdir(exist_ok=True)
        state.write_text(str(step))
        sys.exit(0)
"""
WRAPPER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


@pytest.fixture(scope="module")
def box(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running_box(tmp_path_factory.mktemp("wrapped"), SCENARIO, python=python) as box:
        yield box


@pytest.mark.parametrize(
    "run",
    [
        pytest.param("python3 {folder}/wrapper.py {train}", id="subprocess.call"),
        pytest.param("python3 {folder}/wrapper.py bash {folder}/run.sh", id="a script in it"),
        pytest.param("make -f {folder}/Makefile train", id="make"),
    ],
)
def test_no_step_is_lost(
    box: Box, tmp_path: Path, run: str, request: pytest.FixtureRequest
) -> None:
    record, end = tmp_path / "steps", tmp_path / "end"
    train = f"python3 {tmp_path}/train.py {record} {end}"
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "run.sh").write_text(f"{train}\necho trained\n")
    (tmp_path / "Makefile").write_text(f"train:\n\t@true && {train} && echo trained\n")
    name = f"wrapped-{len(request.node.name)}"
    job = f"""\
name: {name}
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
run: {run.format(folder=shlex.quote(str(tmp_path)), train=train)}
spotd:
  checkpoint: {{mode: directory, path: out}}
  stop_grace: 15s
"""
    of_job = Run(box, box.submit(job, name), Random(1))

    def steps() -> list[int]:
        return [int(line) for line in record.read_text().split()] if record.exists() else []

    wait_until("it trains", lambda: len(steps()) > 20)
    of_job.preempt(box.job(of_job.job_id)["nodes"][0]["instance_id"], 20.0)

    def next_trains() -> bool:
        nodes = box.job(of_job.job_id)["nodes"]
        started = [node for node in nodes if node["generation"] == 2 and node["first_step_at"]]
        return bool(started) and all(node["exited_at"] for node in nodes if node["generation"] == 1)

    wait_until("the next attempt trains", next_trains, LIMIT_S, every_s=0.1)
    before = len(steps())
    wait_until("it makes steps", lambda: len(steps()) > before + 5)
    end.touch()
    ended = box.wait_phase(of_job.job_id, set(FINISHED), FINISH_TIMEOUT_S)
    assert ended["phase"] == "succeeded", ended["outcome_text"]
    assert steps() == list(range(1, len(steps()) + 1)), "no step is lost or made twice"
