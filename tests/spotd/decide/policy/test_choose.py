"""What is asked for next: where the job costs least, unless the deadline says otherwise."""

from __future__ import annotations

import pytest

from spotd.decide.policy import UNSEEN, Action, Pool, Running, Sighting, choose
from tests.spotd.decide.policy.build import ON_DEMAND, SPOT, H, pool, situation

DOWN_NOW = UNSEEN.after(Sighting(0.0, up=False))


@pytest.mark.parametrize(
    ("there", "key"),
    [
        ((pool("a"), pool("b", spot_usd_per_h=0.9)), "b"),
        ((pool("a", spot_usd_per_h=1.5, speed=2.0), pool("b")), "a"),
        ((pool("a", egress_usd=5.0), pool("b", spot_usd_per_h=1.1)), "b"),
        ((pool("a", record=DOWN_NOW), pool("b", spot_usd_per_h=1.1)), "b"),
        ((pool("a", spot_usd_per_h=None), pool("b", spot_usd_per_h=1.1)), "b"),
    ],
    ids=[
        "price",
        "dollars of the work, not of the hour",
        "the way there",
        "refused now",
        "no spot",
    ],
)
def test_spot_where_the_job_costs_least(there: tuple[Pool, ...], key: str) -> None:
    choice = choose(situation(*there))
    assert (choice.action, choice.pool) == (Action.SPOT, key)
    assert [option.score_usd for option in choice.options] == sorted(
        option.here_usd + option.start_usd + option.lost_usd + option.egress_usd + option.rest_usd
        for option in choice.options
    )


def test_on_demand_where_the_job_costs_least_when_the_deadline_leaves_nothing_else() -> None:
    fast = pool("fast", on_demand_usd_per_h=4.0, speed=2.0)
    choice = choose(situation(pool("a"), fast, deadline_s=40 * H))
    assert (choice.action, choice.pool, choice.guarded) == (Action.ON_DEMAND, "fast", True)


def test_without_spot_it_waits_as_long_as_there_is_time() -> None:
    assert choose(situation(pool(record=DOWN_NOW))).action is Action.WAIT
    late = choose(situation(pool(record=DOWN_NOW), deadline_s=40 * H))
    assert (late.action, late.guarded) == (Action.ON_DEMAND, True)


def test_what_runs_on_spot_stays_and_what_runs_on_demand_goes_back_to_it() -> None:
    assert choose(situation(running=Running("a", SPOT, 0.0))).action is Action.STAY
    assert choose(situation(running=Running("a", ON_DEMAND, 0.0))).action is Action.SPOT


def test_no_pool_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="one pool"):
        choose(situation().__class__(0.0, situation().work, ()))
