"""`spotctl drill run` waits for the verdict and returns it as its exit code."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest

from spotd.cli import drill as drill_command
from spotd.domain.fault_drill import DrillEnd
from spotd.domain.states import Outcome
from tests.fixtures.waiting import until
from tests.spotd.api.rig import SPOT, Rig
from tests.spotd.cli.conftest import Spotctl


@pytest.mark.parametrize(
    ("end", "code"), [(DrillEnd.PASSED, 0), (DrillEnd.FAILED, 1), (DrillEnd.CALLED_OFF, 4)]
)
def test_exit_code_is_the_verdict(
    rig: Rig,
    spotctl: Spotctl,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    end: DrillEnd,
    code: int,
) -> None:
    """Also if the job ended in the meantime and another one has its name."""
    monkeypatch.setattr(drill_command, "POLL_S", 0.05)
    rig.offer_them()
    job_id = rig.submit(ago_s=700)
    node = rig.launch(job_id, SPOT, ago_s=690)
    rig.train(node, ago_s=680, until_s=2, first=0, last=120)

    def play() -> None:
        drills = until(rig.store.drills.rows)
        rig.finish(job_id, 0, Outcome.FAILED, "it broke")
        rig.submit("gpt")
        time.sleep(0.2)  # in which it looks again
        ended = {"struck_at_us": rig.ago(0), "ended_at_us": rig.ago(0), "end": end, "text": "why"}
        rig.store.drills.update(replace(drills[0], **ended))

    player = threading.Thread(target=play)
    player.start()
    try:
        assert spotctl(rig, "drill", "run", "gpt", "--yes", "-o", "json") == code
    finally:
        player.join()
    data = json.loads(capsys.readouterr().out)
    assert (data["job"], data["job_id"], data["state"]) == ("gpt", job_id, end.value)
