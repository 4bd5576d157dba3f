"""A slow GPU check finds what the kernel does not report."""

from __future__ import annotations

import shlex
import stat
import sys
import threading
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.watch import gpus
from trainer.agent.watch.gpus import FIELDS, Gpu, GpuMonitor, GpuReport, parse, query
from trainer.agent.watch.kernel import Grade

FOLDER = Path(__file__).with_name("nvidia")
WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"


def look(name: str, rows: str = "") -> GpuReport:
    said = (FOLDER / f"{name}.csv").read_text()
    return parse(said, rows=(FOLDER / f"{rows}.csv").read_text() if rows else "")


def judge(*names: str) -> list[tuple[Grade, str]]:
    """Return the findings of the last of these reports."""
    monitor = GpuMonitor()
    found = [monitor.judge(look(*name.split("+"))) for name in names]
    return [(finding.grade, finding.text) for finding in found[-1]]


def nvidia_smi(folder: Path, answers: str) -> Path:
    """A program that prints the file that `answers` names, and `once` the first time."""
    program = folder / "nvidia-smi"
    text = f"""#!/bin/sh
case "$1" in --query-remapped-rows=*) exit 0;; esac
if [ -e {folder}/once ]; then cat {FOLDER}/$(cat {folder}/once).csv; rm {folder}/once; exit; fi
cat {FOLDER}/$(cat {folder / answers}).csv
"""
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.mark.req("HLT-01", "HLT-13")
def test_what_it_shows_is_read() -> None:
    found = look("well")
    assert found.gpus[2] == Gpu("2", "00000000:75:00.0", busy=1.0, ecc=0)
    assert len(found.gpus) == 4
    assert (found.lost, found.message) == ((), "")


@pytest.mark.req("HLT-01")
def test_what_a_gpu_does_not_say_is_nothing() -> None:
    """A workstation GPU does not count memory errors, and one failed reading is not a failure."""
    found = look("no_ecc").gpus
    assert [(gpu.busy, gpu.ecc) for gpu in found] == [(0.12, None), (None, None), (None, None)]
    assert judge("no_ecc", "no_ecc") == []


@pytest.mark.req("HLT-13")
@pytest.mark.parametrize(
    ("looks", "grade", "words"),
    [
        (("no_handle",), Grade.FATAL, "no handle for GPU0000:64:00.0: Unknown Error"),
        (("lost",), Grade.FATAL, "GPU 1: nvidia-smi says 'GPU is lost'"),
        (("requires_reset",), Grade.FATAL, "GPU 0: nvidia-smi says 'GPU requires reset'"),
        pytest.param(
            ("well", "missing"),
            Grade.FATAL,
            "nvidia-smi shows 3 of 4 GPUs",
            marks=pytest.mark.req("PRE-16"),
        ),
        (("well+rows",), Grade.FATAL, "GPU 2 (00000000:75:00.0) has no spare rows left"),
        (("well", "ecc"), Grade.CONTAINED, "GPU 1 (00000000:64:00.0) counts 2 new memory errors"),
        (("hot",), Grade.NOTED, "GPU 0 (00000000:53:00.0) is held back by its hardware: it is too"),
        (("well", "mismatch"), Grade.NOTED, "no longer shows a GPU: Failed to initialize NVML"),
        (("well", "none"), Grade.NOTED, "no longer shows a GPU: No devices were found"),
    ],
)
def test_what_follows(looks: tuple[str, ...], grade: Grade, words: str) -> None:
    found = judge(*looks)
    assert found[0][0] is grade
    assert words in found[0][1]


@pytest.mark.parametrize(
    "looks",
    [
        ("well", "well"),
        ("ecc", "ecc"),  # of somebody before us
        ("missing", "well"),  # more than there were
        ("none",),  # a machine without
        ("mismatch",),
        ("hot", "hot"),  # told once
        ("well", "mismatch", "mismatch"),
    ],
)
def test_what_nothing_follows_from(looks: tuple[str, ...]) -> None:
    assert judge(*looks) == []


def test_it_is_told_again_after_it_was_well() -> None:
    assert len(judge("hot", "well", "hot")) == 2
    assert len(judge("well", "none", "well", "none")) == 1


def test_rows_that_wait_for_a_reset_are_told() -> None:
    fatal, noted = judge("well+rows")
    assert (fatal[0], noted[0]) == (Grade.FATAL, Grade.NOTED)
    assert "GPU 1 (00000000:64:00.0) has broken memory rows that only a reset" in noted[1]


def test_errors_that_were_dealt_with_are_not_counted_again() -> None:
    """The kernel reported the memory error first, and the program was restarted."""
    monitor = GpuMonitor()
    monitor.judge(look("well"))
    monitor.forget_errors()
    assert monitor.judge(look("ecc")) == []
    assert monitor.judge(look("ecc")) == []


def test_a_field_that_the_driver_does_not_know_is_left_out(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
case "$1" in
  --query-remapped-rows=*) echo 'ERROR: Option --query-remapped-rows is not recognized.';;
  *hw_power_brake*) cat {FOLDER}/old_field.csv; exit 2;;
  *) cut -d, -f1-5 {FOLDER}/hot.csv;;
esac
"""
    )
    program.chmod(0o700)
    found, fields = query(str(program), FIELDS)
    assert tuple(fields) == FIELDS[:-1]
    assert [gpu.slowed for gpu in found.gpus] == ["it is too hot", "", "", ""]


def test_one_that_does_not_answer_is_told_once_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.05)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    ended, told = threading.Event(), list[str]()
    calls: list[str] = []

    def silent(text: str) -> None:
        told.append(text)

    def looked(argv: list[str]) -> str:
        calls.append(argv[0])
        if len(calls) == 3:
            ended.set()
        return run(argv)

    run = gpus._run
    monkeypatch.setattr(gpus, "_run", looked)
    gpus.watch_gpus(str(program), ended, lambda _: False, silent, every_s=0.01)
    assert len(calls) == 3
    assert told == ["nvidia-smi does not answer within 0.05 s"]


def test_a_machine_without_nvidia_smi_is_not_looked_at(tmp_path: Path) -> None:
    gpus.watch_gpus(str(tmp_path / "none"), threading.Event(), lambda _: True, pytest.fail)


# --- a real agent


def test_a_gpu_that_goes_missing_ends_training_on_its_machine(node: Node, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text("well")
    node.environ["SPOTD_NVIDIA_SMI"] = str(nvidia_smi(tmp_path, "answers"))
    node.environ["SPOTD_GPUS_EVERY_S"] = "0.1"
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    (tmp_path / "once").write_text("missing")
    wait_until("one look that finds a GPU missing", lambda: not (tmp_path / "once").exists())
    answers.write_text("hot")
    warning = node.wait_for(wire.WARNING)
    assert warning.data["verdict"] == "gpu_noted"
    assert wire.UNWELL not in node.kinds()
    answers.write_text("missing")
    exited = node.wait_for(wire.EXITED)
    assert exited.data["code"] == wire.EXIT_UNFIT
    (unwell,) = node.entries(wire.UNWELL)
    assert (unwell.data["what"], unwell.data["again"]) == ("gpu", False)
    assert unwell.data["text"] == "nvidia-smi shows 3 of 4 GPUs"


def test_after_an_error_of_memory_the_program_begins_again_once(node: Node, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text("well")
    node.environ["SPOTD_NVIDIA_SMI"] = str(nvidia_smi(tmp_path, "answers"))
    node.environ["SPOTD_GPUS_EVERY_S"] = "0.1"
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    answers.write_text("ecc")
    assert node.wait_for(wire.UNWELL).data["again"] is True
    wait_until("the second begin", lambda: node.kinds().count(wire.STARTED) == 2)
    assert wire.EXITED not in node.kinds()
    assert len(node.entries(wire.UNWELL)) == 1, "the same count is no other error"
