"""The judge of the end-to-end runs would see what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e.verdict import machines
from tests.spotd.demo.story import NODES, at

LEFT = replace(NODES[0], left_at_us=at(10), gone_at_us=0)


@pytest.mark.parametrize(("ended_s", "wrong"), [(11, 0), (24.9, 0), (25.1, 1), (190, 1)])
def test_a_machine_that_is_given_back_late_is_wrong_though_we_call_it_gone_later(
    ended_s: float, wrong: int
) -> None:
    node = replace(LEFT, gone_at_us=at(ended_s + 1))
    meter = [
        {"token": "t1", "instance_id": "i1", "ended_at_us": at(ended_s), "seconds": ended_s},
    ]
    found = machines(meter, [node], at(200))
    assert len(found) == wrong
    assert all("not wanted any more" in text for text in found)


def test_machines_that_nobody_knows_and_that_run_are_wrong() -> None:
    rows = [("t1", "i1", 9), ("t1", "i2", 9), ("stranger", "i3", None)]
    meter = [
        {"token": token, "instance_id": i, "ended_at_us": end and at(end), "seconds": 9.0}
        for token, i, end in rows
    ]
    found = machines(meter, [LEFT], at(200))
    assert "token t1 got 2 machines" in found
    assert "machines left running: ['i3']" in found
    assert "18.0 s of machines that belong to no node" in found
