"""Programs that end by themselves with codes that mean something to spotd, on the local cloud.

Such an end is a crash of the program: it is charged, and nobody's place gets a bad name for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotd.api_routes import routes
from spotd.demo.box import Box, running_box, wait_for
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, Run
from tests.fixtures.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("kills of others")]


@pytest.fixture(scope="module")
def box(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running_box(tmp_path_factory.mktemp("codes"), SCENARIO, python=python) as box:
        yield box


@dataclass(frozen=True)
class Case:
    """`script` is what `run` does; `attempts` of it are made before the job ends."""

    name: str
    script: str
    code: int
    engine: str = "none"
    attempts: int = 2

    @property
    def job(self) -> str:
        return f"""\
name: {self.name}
resources: {{infra: "*", cpus: 1+, use_spot: true}}
run: |
  echo hello
  {self.script}
spotd:
  checkpoint: {{engine: {self.engine}}}
  max_restarts_on_errors: 1
"""


CASES = [
    Case("released-spotd", "sleep 1; exit 75", 75, "spotd"),
    Case("released", "sleep 1; exit 75", 75),
    Case("fenced-spotd", "exit 76", 76, "spotd"),
    Case("fenced", "exit 76", 76),
    Case("killed", "kill -9 $$", 137),
    Case("terminated", "kill -TERM $$", 143),
    # The next machine would see any other mistake before the first step again.
    Case("killed-spotd", "kill -9 $$", 137, "spotd", attempts=1),
]


def places(box: Box) -> Any:
    """What the statistics say of places, beside their machine-hours and starts."""
    rows = box.client.call(routes.STATS(), query={"by": "pool"})["items"]
    return {
        row["name"]: (row["interruptions"]["count"], row["launches"]["refused"]) for row in rows
    }


def test_each_is_a_crash_that_is_charged(box: Box) -> None:
    job_ids = {case.name: box.submit(case.job, case.name) for case in CASES}
    for case in CASES:
        ended = box.wait_phase(job_ids[case.name], set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "failed", case
        assert len(ended["nodes"]) == case.attempts, (case, ended["outcome_text"])
        assert re.search(rf"exited with code {case.code}|killed|terminated", ended["outcome_text"])
        assert {node["leave_reason"] for node in ended["nodes"]} == {"failed"}, case
        prices = [node["price_usd_per_h"] for node in ended["nodes"]]
        assert prices == sorted(prices, reverse=True), (case, "no place is avoided for it")
    for count, refused in places(box).values():
        assert (count, refused) == (0, {})


def test_a_listed_code_is_retried_as_it_is_and_not_charged(box: Box, tmp_path: Path) -> None:
    case = Case("listed", f"echo >> {tmp_path}/n; [ $(wc -l < {tmp_path}/n) -gt 3 ] || exit 75", 75)
    listed = case.job + "  recover_on_exit_codes: [75]\n"
    job_id = box.submit(listed, "listed")
    ended = box.wait_phase(job_id, set(FINISHED), FINISH_TIMEOUT_S)
    assert ended["phase"] == "succeeded", ended["outcome_text"]
    assert (len(ended["nodes"]), ended["failures"]) == (4, 0)


def test_a_program_that_ends_well_when_its_machine_goes_has_not_succeeded(
    box: Box, tmp_path: Path
) -> None:
    """It handles SIGTERM and exits with 0, as tidy programs do."""
    done = tmp_path / "done"
    script = f"trap 'exit 0' TERM; touch {tmp_path}/up; until [ -e {done} ]; do sleep 0.1; done"
    run = Run(box, box.submit(Case("tidy", script, 0).job, "tidy"), Random(1))
    wait_until("it runs", (tmp_path / "up").exists)
    node = box.job(run.job_id)["nodes"][0]
    run.preempt(node["instance_id"], 20.0)

    def next_attempt() -> bool:
        return any(n["generation"] == 2 for n in box.job(run.job_id)["nodes"])

    wait_for("another attempt", next_attempt, FINISH_TIMEOUT_S, every_s=0.1)
    done.touch()
    ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
    assert ended["phase"] == "succeeded", ended["outcome_text"]
    reasons = [node["leave_reason"] for node in ended["nodes"]]
    assert reasons[0] == "preempted"
    assert ended["failures"] == 0
