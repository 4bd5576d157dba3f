"""The numbers of steps in what programs print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotd import wire
from spotd.wire.printed_steps import REPEATED, PrintedSteps, StepSeries
from trainer.agent.base.streams import LogReader, LogWriter
from trainer.agent.run.printed_steps import (
    MAX_READ_BYTES,
    READ_EVERY_S,
    PrintedStepsParser,
    PrintedStepsWatch,
)


def printed(*pieces: str) -> PrintedSteps:
    parser = PrintedStepsParser()
    for piece in pieces:
        parser.add(piece.encode())
    return parser.printed


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("step {}: loss 3.1, 41 ms\n", "step"),
        ("[rank0] Step {}/240 | loss=2.2\n", "step/240"),
        ("iter {}: loss 2.1, time 99.10ms, mfu 33%\n", "iter"),
        ("Iteration: {}, lr 1e-4\n", "iteration"),
        ("2026-11-28 10:00:00 INFO global_step={} loss=1.0\n", "global_step"),
        ("{{'loss': 0.9, 'grad_norm': 1.2, 'step': {}}}\n", "step"),
        ('{{"step": {}, "loss": 0.3}}\n', "step"),
        ("Epoch {} of 12 took 3 s\n", "epoch/12"),
        ("Train Epoch: {} [640/60000 (1%)]\tLoss: 1.1\n", "epoch"),
        ("Update #{}, 300 fps\n", "update"),
        ("\x1b[32mstep\x1b[0m {}\n", "step"),
        ("\r  5%|▌         | {}/240 [00:01<00:36,  6.24it/s]", "bar/240"),
        ("training:  50%|████ | {}/240 [00:19<00:19, v_num=0, loss=1.2]\r", "bar/240"),
        ("step {},000 done\n", "step"),
        (" iteration      {}/    5000 | consumed samples: 9\n", "iteration/5000"),
        ("epoch 001:  100 / 390 loss=3.1, num_updates={}, wps=9\n", "num_updates"),
        ("|    iterations           | {}          |\n", "iterations"),
        ("Batch {}/500 - loss: 0.3\n", "batch/500"),
    ],
)
def test_what_programs_print(lines: str, key: str) -> None:
    found = printed("".join(lines.format(number) for number in (10, 11, 12)), "\n")
    scale = 1000 if ",000" in lines else 1
    assert found[key] == StepSeries(10 * scale, 12 * scale, 3)


@pytest.mark.parametrize(
    "text",
    [
        "3 steps\nstep_time=0.4 1.5s\n",
        "epoch took 12.5s\nsteps per second: 3\n",
        "step 12% done\nfootstep 9\nhttp://x/step/9\n",
        "12/240 files\n2026/11/28 10:00\n",
        "step 0\n  0%| | 0/240 [00:00<?, ?it/s]\n",
        "step 18446744073709551615\nstep " + "9" * 400 + "\n",
    ],
)
def test_what_is_no_step(text: str) -> None:
    assert printed(text) == {}


def test_fractions_of_epochs() -> None:
    lines = "".join(f"{{'loss': 1.0, 'epoch': {epoch}}}\n" for epoch in ("0.12", "0.25", "1.0"))
    assert printed(lines)["epoch"] == StepSeries(0.12, 1.0, 3)


def test_a_series_that_starts_over_tells_nothing() -> None:
    epoch = "".join(f"step {number}/5\n" for number in range(1, 6))
    found = printed(f"epoch 1\n{epoch}epoch 2\n{epoch}epoch 3\n{epoch}")
    assert found == {"epoch": StepSeries(1, 3, 3), "step/5": StepSeries(1, 5, REPEATED)}


def test_what_a_program_says_of_its_checkpoint_is_no_step_of_its_own() -> None:
    found = printed("loaded the checkpoint of step 120\nstep 1\nstep 2\n")
    assert found == {"step": StepSeries(1, 2, 2)}


def test_a_bar_for_each_epoch_starts_over_at_any_number() -> None:
    """A fast bar draws only some of its numbers."""
    first = "".join(f"{number}/40 [00:01<00:02]\r" for number in (0, 3, 9, 20, 31, 40))
    second = "".join(f"{number}/40 [00:01<00:02]\r" for number in (0, 7, 15, 28, 40))
    assert printed(f"{first}\n{second}\n") == {"bar/40": StepSeries(3, 40, REPEATED)}


def test_no_text_takes_long() -> None:
    """Each search looks at a bounded stretch: 4 MB of hostile text are read within the test."""
    spaces = " " * 1000
    texts = [f"step{spaces}x\n", f"step{spaces}", "step " * 300, "1" * 1000, "step (" + spaces]
    for text in texts:
        assert printed(text * (800_000 // len(text)), "\n") == {}, text[:9]


def test_ranks_that_print_beside_each_other() -> None:
    lines = "".join(f"step {number}\nstep {max(1, number - 1)}\n" for number in range(1, 9))
    assert printed(lines) == {"step": StepSeries(1, 8, 8)}


def test_a_line_in_pieces() -> None:
    assert printed("loss 1 st", "ep 4", "0\nstep 41", "\n") == {"step": StepSeries(40, 41, 2)}


class Watched:
    def __init__(self, folder: Path, before: PrintedSteps) -> None:
        self.log = LogWriter(folder / "rank0.log")
        self.now_s = 0.0
        self.entries: list[tuple[str, Any]] = []
        self.watch = PrintedStepsWatch(
            LogReader(folder / "rank0.log"),
            before=before,
            report=lambda kind, data: self.entries.append((kind, data)),
            monotonic=lambda: self.now_s,
            report_every_s=30.0,
        )

    def after(self, seconds: float, text: str) -> list[tuple[str, Any]]:
        """What is reported when the program has printed `text`, and so much time has passed."""
        self.entries.clear()
        self.log.write(text.encode())
        self.now_s += seconds
        self.watch.poll()
        return list(self.entries)


def steps(first: int, last: int) -> str:
    return "".join(f"step {number}\n" for number in range(first, last + 1))


def test_steps_are_reported_from_time_to_time_and_at_the_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path, {})
    assert watched.after(0, steps(1, 3)) == [
        (wire.PRINTED_STEPS, {"series": {"step": [1.0, 3.0, 3]}})
    ]
    assert watched.after(READ_EVERY_S, steps(4, 5)) == []
    assert watched.after(30, "") == [(wire.PRINTED_STEPS, {"series": {"step": [1.0, 5.0, 5]}})]
    assert watched.after(30, "no more\n") == []
    watched.log.write(b"step 6")
    watched.watch.end()
    assert watched.entries == [(wire.PRINTED_STEPS, {"series": {"step": [1.0, 6.0, 6]}})]


def test_a_program_that_begins_anew_is_told_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, {"step": StepSeries(1, 240, 240)})
    assert [kind for kind, _ in watched.after(0, steps(1, 1))] == [wire.PRINTED_STEPS]
    [(kind, data)] = watched.after(READ_EVERY_S, steps(2, 4))
    assert (kind, data["verdict"]) == (wire.WARNING, "not_resumed")
    assert data["text"] == (
        "the program has started from the beginning: it prints step 1, and an earlier machine "
        "reached 240"
    )
    assert watched.after(READ_EVERY_S, steps(5, 9)) == []


def test_one_that_resumes_is_not(tmp_path: Path) -> None:
    watched = Watched(tmp_path, {"step": StepSeries(1, 240, 240)})
    found = watched.after(0, steps(200, 210)) + watched.after(60, steps(211, 220))
    assert {kind for kind, _ in found} == {wire.PRINTED_STEPS}


BEFORE = {"step": StepSeries(1, 240, 240), "epoch": StepSeries(1, 12, 12)}


def trained(watched: Watched, first: int, last: int, each_s: float) -> list[tuple[str, Any]]:
    """What is reported while a program trains these steps, one after the other."""
    return [
        entry for number in range(first, last + 1)
        for entry in watched.after(each_s, steps(number, number))
    ]  # fmt: skip


def reported(entries: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [data["series"] for kind, data in entries if kind == wire.PRINTED_STEPS]


def test_a_program_that_prints_its_history_has_not_begun_anew(tmp_path: Path) -> None:
    watched = Watched(tmp_path, BEFORE)
    watched.after(0, "loading\n")
    found = watched.after(40, steps(1, 240))
    found += trained(watched, 241, 260, 5.0)
    assert [kind for kind, _ in found if kind == wire.WARNING] == []
    assert reported(found)[0] == {"step?": [0.0, 0.0, 0]}, "not known at first"
    assert reported(found)[-1]["step"][0] == 241.0
    watched.watch.end()
    assert watched.entries == [] or reported(watched.entries)[-1]["step"] == [241.0, 260.0, 20]


def test_a_history_that_is_printed_between_two_looks(tmp_path: Path) -> None:
    watched = Watched(tmp_path, BEFORE)
    found = watched.after(READ_EVERY_S, steps(1, 100)) + watched.after(
        READ_EVERY_S, steps(101, 240)
    )
    found += trained(watched, 241, 260, 5.0)
    assert [kind for kind, _ in found if kind == wire.WARNING] == []
    assert reported(found)[-1]["step"][0] == 241.0


@pytest.mark.parametrize(("each_s", "at_once"), [(0.5, 1), (1.0, 1), (30.0, 1), (0.5, 100)])
def test_a_restart_at_the_pace_of_training_is_told(
    tmp_path: Path, each_s: float, at_once: int
) -> None:
    """Also that of a program whose output comes in blocks."""
    watched, found = Watched(tmp_path, BEFORE), []
    watched.after(0, "")
    for first in range(1, 1001, at_once):
        found += watched.after(each_s * at_once, steps(first, first + at_once - 1))
    assert [data["verdict"] for kind, data in found if kind == wire.WARNING] == ["not_resumed"]
    assert reported(found)[-1]["step"][0] == 1.0


def test_a_history_that_ends_before_the_last_step_is_unknown(tmp_path: Path) -> None:
    """It may have resumed there, or have begun anew and slowed down."""
    watched = Watched(tmp_path, BEFORE)
    watched.after(0, "loading\n")
    found = watched.after(10, steps(1, 200)) + trained(watched, 201, 300, 5.0)
    assert [kind for kind, _ in found if kind == wire.WARNING] == []
    assert all(series == {"step?": [0.0, 0.0, 0]} for series in reported(found)[1:])


def test_of_a_flood_the_end_is_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path, {})
    flood = "x" * 99 + "\n"
    text = "step 7\n" + flood * (2 * MAX_READ_BYTES // len(flood)) + "step 90\nstep 91\n"
    [(_, data)] = watched.after(0, text)
    assert data == {"series": {"step": [90.0, 91.0, 2]}}
