"""A trace is lived by the daemon, and what it saw of that is a trace again: the same one wherever
it looked, and playable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.policy_ours import Ours
from spotd.api.routes.traces import pool_observations_data
from spotd.cli.trace_files import build_traces, write_traces
from spotd.store.interface import Store
from tests.sim.replay.bench import play
from tests.sim.replay.test_replay import EAST, STORY, WEST, fickle
from tests.sim.replay.trace import Case
from tests.sim.replay.world import BEGIN_US, S, lived

GAP_S = STORY.gap_s
END_US = BEGIN_US + STORY.deadline_s * S


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the daemon tells after that story, by a policy that asks often."""
    found: list[dict[str, Any]] = []

    def look(store: Store) -> None:
        offers = store.market.load(END_US).offers
        found.append(pool_observations_data(store, offers, None, BEGIN_US, END_US))

    lived(STORY, STORY.ticks, policy=fickle, look=look)
    (data,) = found
    return data


def exported(data: dict[str, Any], folder: Path, stale_s: int) -> Any:
    write_traces(build_traces(data, GAP_S, stale_s), folder)
    (path,) = folder.iterdir()
    return np.load(path)


def test_wherever_something_was_seen_it_is_what_the_trace_says(
    seen: dict[str, Any], tmp_path: Path
) -> None:
    found = exported(seen, tmp_path, 0)
    assert list(found["zones"]) == [f"{EAST}_h100_8", f"{WEST}_h100_8"]
    first = int(found["first_tick"]) - BEGIN_US // (GAP_S * S)
    looks = {(zone, tick) for zone, tick in np.argwhere(found["seen"])}
    assert len(looks) >= 12
    values = set()
    for zone, tick in looks:
        values.add(up := bool(found["avail"][zone, tick]))
        assert up == STORY.up(int(zone), first + int(tick)), (zone, tick)
    assert values == {False, True}
    assert found["spot"][0].tolist() == pytest.approx([1.0] * found["spot"].shape[1])
    assert found["od"].tolist() == pytest.approx([3.0, 3.0])


def test_what_was_not_looked_at_holds_the_last_that_was_seen(
    seen: dict[str, Any], tmp_path: Path
) -> None:
    near, far = (exported(seen, new(tmp_path, str(s)), s) for s in (0, 1800))
    assert far["seen"].sum() > near["seen"].sum()
    ticks = near["avail"].shape[1]
    assert (far["avail"][:, :ticks] == near["avail"]).all(), "seen is what differs"


def test_the_policy_is_played_on_it(seen: dict[str, Any], tmp_path: Path) -> None:
    found = exported(seen, tmp_path, 3600)
    ticks = found["avail"].shape[1]
    case = replace(
        STORY,
        avail=tuple(tuple(map(bool, row)) for row in found["avail"]),
        spot=tuple(tuple(map(float, row)) for row in found["spot"]),
        on_demand=tuple(map(float, found["od"])),
        deadline_s=ticks * GAP_S,
        work_s=ticks * GAP_S // 3,
    )
    ours = Ours()
    play(ours, case)  # raises where its deadline is missed
    assert ours.records[0].up is not None


def new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_the_case_is_one_that_tells_something() -> None:
    case: Case = STORY
    assert all(len(set(row)) == 2 for row in case.avail)
