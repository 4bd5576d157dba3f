"""Content and timing of progress reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from trainer.hook.spotd_hook.progress import Progress


def test_the_first_step_at_once_then_in_batches() -> None:
    now = [0.0]
    reports: list[Mapping[str, Any]] = []
    lines: list[str] = []
    progress = Progress(
        lambda kind, data: reports.append({"kind": kind, **data}),
        every_s=1.0,
        steps=14,
        print_line=lines.append,
        monotonic=lambda: now[0],
        clock_us=lambda: round(now[0] * 1e6),
    )
    for step in range(8, 15):
        progress.add(step, step / 10, tokens=100, busy_s=0.25)
        now[0] += 0.3
    progress.flush()
    progress.flush()
    assert [(r["from_step"], r["to_step"]) for r in reports] == [(8, 8), (9, 12), (13, 14)]
    assert reports[1]["losses"] == [0.9, 1.0, 1.1, 1.2]
    assert reports[1]["tokens"] == 400
    assert reports[1]["busy_s"] == 1.0
    assert (reports[1]["first_at_us"], reports[1]["last_at_us"]) == (300_000, 1_200_000)
    assert lines[0] == "step 8/14  loss 0.8000  400 tokens/s"
    assert len(lines) == 3


def test_a_silent_one_is_silent() -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    progress = Progress(fail, every_s=0, steps=1, disabled=True, print_line=fail)
    progress.add(1, 0.5, 10, 0.1)
    progress.flush()


@pytest.mark.req("HLT-12")
def test_what_each_rank_needed_and_what_was_waited_for() -> None:
    reports: list[Mapping[str, Any]] = []
    progress = Progress(
        lambda _kind, data: reports.append(data),
        every_s=100.0,
        steps=9,
        per_node=2,
        print_line=lambda _: None,
        monotonic=lambda: 0.0,
    )
    progress.add(1, 0.5, 10, 1.0)
    for step, slow_s in ((2, 0.2), (3, 0.4)):
        progress.add_data_wait(0.25)
        progress.add(step, 0.5, 10, 1.0, ranks_s=[0.1, slow_s])
        progress.add_save_time(2.0)
    progress.flush()
    first, second = reports
    assert first["save_s"] == 0.0
    assert "data_s" not in first, "nobody measured it: that is not 0"
    assert "ranks_s" not in first, "one alone has nobody to be compared with"
    assert (second["data_s"], second["save_s"]) == (0.5, 4.0)
    assert (second["ranks_s"], second["ranks_per_node"]) == ([0.1, 0.3], 2)
    progress.add(4, 0.5, 10, 1.0)
    progress.flush()
    assert (reports[2]["data_s"], reports[2]["save_s"]) == (0.0, 0.0)


@pytest.mark.parametrize("steps", [0, 9])
def test_the_total_is_reported_where_it_is_known(steps: int) -> None:
    reports: list[Mapping[str, Any]] = []
    progress = Progress(
        lambda _kind, data: reports.append(data), every_s=0, steps=steps, print_line=lambda _: None
    )
    progress.add(1, 0.5, 10, 1.0)
    assert reports[0].get("total_steps", 0) == steps
    assert ("total_steps" in reports[0]) == bool(steps)
