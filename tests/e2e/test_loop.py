"""A loop of one's own, as a job on the local cloud, whose machine is taken away once."""

from __future__ import annotations

import shlex
from pathlib import Path
from random import Random

import pytest

from providers.stores import open_store
from spotd.demo.box import running_box
from spotd.domain.phase import FINISHED
from spotd.wire import EXIT_FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, Run
from tests.trainer.hook.rig import Program
from tests.trainer.rig import ROOT
from trainer.reference.compare import first_difference

EXAMPLE = "examples/loop/train.py"
STEPS = 300


@pytest.mark.behaviour("all of the state of a job whose spot machine is taken away", way="Run")
@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
def test_it_goes_on_where_it_was_and_ends_in_the_same_bits(
    folder: Path, python: Path, tmp_path: Path
) -> None:
    program = f"{shlex.quote(str(python))} {ROOT / EXAMPLE} --steps {STEPS}"
    job = f"""\
name: loop
resources: {{infra: "*", cpus: 1+, use_spot: true}}
run: {program} --step-time-ms 25
spotd:
  checkpoint: {{engine: spotd, every: 1s}}
  progress_every: 0.2s
"""
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job, "loop"), Random(1))
        node = run.training(30)
        run.preempt(node["instance_id"], 20.0)
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert {node["generation"] for node in ended["nodes"]} >= {1, 2}
        whole = Program(tmp_path, EXAMPLE, ("--steps", str(STEPS)))
        assert whole.run() == EXIT_FINISHED, whole.output()
        theirs = open_store((tmp_path / "store").as_uri())
        store = open_store(box.checkpoints_url)
        assert first_difference(store, run.job_id, theirs, "job") is None
