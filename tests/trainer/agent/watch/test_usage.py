"""Measurements of a machine's use are sent once a window, and only if they were measured."""

from __future__ import annotations

from trainer.agent.watch.usage import Usage


def report(**parts: float) -> dict[str, object]:
    return {"from_step": 1, **parts}


def test_the_sums_of_a_window_go_out_with_the_report_that_ends_it() -> None:
    usage = Usage(window_s=10.0)
    usage.add_gpu_utilisation([0.1])
    assert usage.add(report(busy_s=99.0), 100.0) == report(busy_s=99.0), "set-up is not part of it"
    usage.add_gpu_utilisation([0.5, 1.0])
    assert "usage" not in usage.add(report(busy_s=4.0, data_s=1.0, save_s=0.5), 105.0)
    said = usage.add(report(busy_s=5.0, data_s=2.0, save_s=0.0), 110.0)["usage"]
    assert said == {"busy_s": 9.0, "data_s": 3.0, "save_s": 0.5, "window_s": 10.0, "gpu": 0.75}
    said = usage.add(report(busy_s=5.0), 121.0)["usage"]
    assert said == {"busy_s": 5.0, "window_s": 11.0}, "what nobody measured is not in it"


def test_another_program_begins_its_own_window() -> None:
    usage = Usage(window_s=10.0)
    usage.add(report(data_s=1.0), 0.0)
    usage.begin()
    assert "usage" not in usage.add(report(data_s=1.0), 60.0)
    assert usage.add(report(data_s=2.0), 70.0)["usage"] == {"data_s": 2.0, "window_s": 10.0}


def test_nonsense_is_not_counted() -> None:
    usage = Usage(window_s=1.0)
    usage.add({}, 0.0)
    said = usage.add({"busy_s": "x", "data_s": -1, "save_s": None}, 2.0)
    assert said["usage"] == {"window_s": 2.0}
