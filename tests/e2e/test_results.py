"""An evaluation on a rented machine hands in what it measured: agent, SSH and daemon are real."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from spotd.cli.app import run
from spotd.demo.box import running_box
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO

PROGRAM = """
import spotd_hook
failed = [f"case-{n}" for n in range(15_000) if n % 20 == 0]
told = {"cases": 15_000, "passed": 15_000 - len(failed), "failed": failed}
assert spotd_hook.report_results("helpdesk", **told)
assert spotd_hook.report_results("speed", tokens_per_s=1850, ttft_s=0.25, ttft_p95_s=0.5)
"""


@pytest.mark.e2e
@pytest.mark.req("HYB-07")
@pytest.mark.req("HYB-08")
def test_validation_stores_speed_and_fifteen_thousand_cases(
    folder: Path, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "validate.py"
    program.write_text(PROGRAM)
    job = f"""\
name: validate
resources: {{infra: "*", cpus: 1+}}
run: {shlex.quote(str(python))} {program}
spotd: {{capacity: on_demand, checkpoint: {{engine: none}}}}
"""
    with running_box(folder, SCENARIO, python=python) as box:
        job_id = box.submit(job, "validate")
        ended = box.wait_phase(job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        [node] = ended["nodes"]
        assert node["capacity_type"] == "on_demand"
        cases, speed = ended["results"]
        assert (cases["suite"], cases["cases"], cases["passed"]) == ("helpdesk", 15_000, 14_250)
        assert (cases["source"], len(cases["failed"])) == (node["id"], 100)
        assert (speed["tokens_per_s"], speed["ttft_s"], speed["ttft_p95_s"]) == (1850, 0.25, 0.5)
        assert speed["share"] is None
        told = {"suite": "speed", "tokens_per_s": 1850, "ttft_s": 0.25, "ttft_p95_s": 0.5}
        (tmp_path / "speed.json").write_text(json.dumps(told))
        here = ("--socket", str(box.socket_path))
        again = ("results", "import", "validate", str(tmp_path / "speed.json"), "-o", "json")
        assert run([*here, *again]) == 0
        assert json.loads(capsys.readouterr().out)["new"] is False, "the program said the same"
        assert len(box.job(job_id)["results"]) == 2
