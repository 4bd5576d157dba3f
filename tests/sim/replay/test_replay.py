"""The daemon decides as the bench does, on traces made up for that; and what would make it decide
otherwise is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spotd.planner.placement.build_situation
import spotd.planner.placement.rank
import spotd.planner.spot_policy.pool_history
from providers.base import CapacityType
from spotd.domain.node_history import NodeLifetime
from spotd.planner.spot_policy import Action, Choice, Sighting, Situation, choose
from spotd.planner.spot_policy.deadline_slack import must_be_on_demand
from tests.sim.planted_bugs.bug import put
from tests.sim.replay.__main__ import main
from tests.sim.replay.compare import replayed
from tests.sim.replay.trace import Case, made

EAST, WEST = "us-east-1a_v100_1", "us-west-2a_v100_1"
# Taken away in one zone, then in the other; refused, waited for, and at last the guard's on-demand.
STORY = made(
    "story",
    {EAST: "###.....#...........", WEST: "##.###.............."},
    spot=(1.0, 1.2),
    on_demand=3.0,
    work_h=1.5,
    deadline_h=3.0,
)
SHORT = made(
    "short", {EAST: "##.......#########"}, spot=1.0, on_demand=3.0, work_h=0.75, deadline_h=3.0
)


def fickle(situation: Situation) -> Choice:
    """It never waits, and is back on spot as soon as there is some."""
    if must_be_on_demand(situation):
        return choose(situation)
    running = situation.running
    if running is not None and running.capacity is CapacityType.SPOT:
        return Choice(Action.STAY)
    for pool in sorted(situation.pools, key=lambda pool: (pool.spot_usd_per_h or 0.0, pool.key)):
        refused = pool.record.up is False and pool.record.seen_s >= situation.now_s
        if pool.spot_usd_per_h is not None and not refused:
            return Choice(Action.SPOT, pool.key)
    if running is not None:
        return Choice(Action.STAY)
    return Choice(Action.ON_DEMAND, situation.pools[0].key)


def test_the_daemon_decides_as_the_bench_does() -> None:
    found = replayed(STORY)
    assert not found.difference
    counts = found.counts
    assert counts["preempted"] >= 2
    assert counts["refused"] >= 4
    assert counts["waits"] >= 2
    assert counts["guarded"] >= 1
    assert counts["launch on_demand"] == 1


def test_a_move_from_on_demand_back_to_spot_is_the_same_on_both_sides() -> None:
    """By a policy made for it: the shipped one need not."""
    case = made(
        "back",
        {EAST: "##..####..........", WEST: ".....#..##........"},
        spot=(1.0, 1.2),
        on_demand=3.0,
        restart_s=360,
        work_h=1.4,
        deadline_h=3.0,
    )
    found = replayed(case, policy=fickle)
    assert not found.difference
    assert found.counts["return spot"] >= 1
    assert found.counts["preempted"] >= 2


def forgets_refusals(stack: ExitStack) -> None:
    """A pool that is cooling is not a pool."""
    put(stack, spotd.planner.placement.build_situation, "NO_ROOM", frozenset[str]())


def cools_for_long(stack: ExitStack) -> None:
    """It asks a pool more seldom the more often that refuses."""
    put(stack, spotd.planner.placement.rank, "steered", lambda _spec: False)


def gives_up_hope(stack: ExitStack) -> None:
    """Where the only machine is being preempted there is no spot to wait for."""
    put(stack, spotd.planner.placement.build_situation, "_has_no_room", lambda _row, _view: False)


def counts_from_the_request(stack: ExitStack) -> None:
    """A machine counts as a minute older than it is."""
    tell = spotd.planner.placement.build_situation._running

    def older(*args: Any) -> Any:
        running = tell(*args)
        return replace(running, since_s=running.since_s - 60.0)

    put(stack, spotd.planner.placement.build_situation, "_running", older)


def misses_losses(stack: ExitStack) -> None:
    """What was taken away is on record as given back."""
    tell = spotd.planner.spot_policy.pool_history._sightings

    def kept(stay: NodeLifetime) -> list[Sighting]:
        return list(tell(replace(stay, left=None)))

    put(stack, spotd.planner.spot_policy.pool_history, "_sightings", kept)
    # What it reckoned of the same stays is neither another run's nor left to one.
    spotd.planner.spot_policy.pool_history._record.cache_clear()
    stack.callback(spotd.planner.spot_policy.pool_history._record.cache_clear)


@pytest.mark.parametrize(
    "plant",
    [forgets_refusals, cools_for_long, gives_up_hope, counts_from_the_request, misses_losses],
)
def test_what_differs_is_found_and_told_with_what_either_knew(
    plant: Callable[[ExitStack], None],
) -> None:
    with ExitStack() as stack:
        plant(stack)
        found = replayed(SHORT)
    assert found.difference.startswith("short, tick "), plant.__doc__
    assert "the bench's situation: Situation(" in found.difference


def test_without_a_plant_that_case_is_the_same() -> None:
    found = replayed(SHORT)
    assert not found.difference
    assert found.counts["refused"] >= 3


def test_a_case_that_cannot_be_played_says_why() -> None:
    with pytest.raises(ValueError, match="its trace ends before its deadline"):
        made("short", {EAST: "##"})
    with pytest.raises(ValueError, match="multiples of three seconds"):
        made("odd", {EAST: "#" * 12}, restart_s=601)


def test_pools_are_named_as_the_daemon_does() -> None:
    case: Case = replace(SHORT, zones=("us-west1-a_h100_16",))
    assert case.key(0) == "gcp/us-west1/us-west1-a_h100_16/8xh100"


def test_a_folder_without_traces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--traces", str(tmp_path)])
    assert "name the folder of run_bench.py" in capsys.readouterr().err
    (tmp_path / "spotbench").mkdir()
    (tmp_path / "spotbench" / "suites.py").touch()
    with pytest.raises(SystemExit):
        main(["--traces", str(tmp_path), "--suites", "S9"])
    assert "S9 is none of S1" in capsys.readouterr().err
