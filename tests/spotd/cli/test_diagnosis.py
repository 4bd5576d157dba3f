"""Diagnoses of training, as `spotctl why` and `spotctl cost` print them."""

from __future__ import annotations

import pytest

from tests.spotd.api.diagnosed import diagnosed
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl


def test_why_and_cost_print_diagnoses(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnosed(rig)
    assert spotctl(rig, "why", "gpt") == 0
    shown = capsys.readouterr().out
    assert "\ntraining hangs (1h ago, 2 times within a day)\n  seen: training hangs:" in shown
    assert "\n  spotd: the program is restarted on this machine" in shown
    assert "\n  try: see the stacks below" in shown
    assert '\n  rank 0, by py-spy:\n    Thread 7 (idle): "MainThread"\n' in shown
    assert "all_reduce (train.py:3)" in shown
    assert "Thread 9" not in shown
    assert "(7 more lines: spotctl why JOB --stacks)" in shown
    assert "\n  rank 1, by faulthandler:\n    Current thread" in shown
    assert "in wait_for_shard" in shown
    assert "link.py" not in shown, "the main thread alone"
    assert "(3 more lines: spotctl why JOB --stacks)" in shown
    assert "GPUs busy 40.0 %, waiting for data 50.0 %, for checkpoints 5.0 %" in shown
    assert "idle: $1.20 of these; likely cause: it waits for data" in shown
    assert spotctl(rig, "why", "gpt", "--stacks") == 0
    assert "link.py" in capsys.readouterr().out
    assert spotctl(rig, "cost", "gpt") == 0
    shown = capsys.readouterr().out
    assert "$1.40 of idle GPUs, $2.0 waiting" not in shown
    assert "$1.40 of idle GPUs, $1.99 waiting for data, $0.1993" in shown
