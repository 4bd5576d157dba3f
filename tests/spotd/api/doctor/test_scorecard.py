"""What pays, in the order in which it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.api.doctor.scorecard import PILLARS, Score, scorecard
from spotd.money.budget import Budget
from tests.spotd.api.diagnosed import REPORT
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig

CAPPED = JOB_FILE + "  budget: {max_cost_usd: 100}\n"


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def score(rig: Rig) -> dict[str, Score]:
    found = scorecard(rig.context(), rig.clock.now_us())
    assert tuple(one.pillar for one in found) == PILLARS
    return {one.pillar: one for one in found}


@pytest.mark.req("BUD-09")
def test_in_order_and_of_nothing_nothing_is_judged(rig: Rig) -> None:
    assert PILLARS == ("checkpoints", "spot", "scaling", "budget", "right-sizing")
    found = score(rig)
    assert [found[name].good for name in PILLARS] == [None, None, None, False, None]
    assert found["budget"].try_ == "[budgets.NAME] usd_per_month in config.toml"


@pytest.mark.req("BUD-09")
def test_checkpoints_that_are_late(rig: Rig) -> None:
    node = rig.launch(rig.submit(ago_s=4000), SPOT, ago_s=3600)
    rig.train(node, ago_s=3500, until_s=30, first=0, last=1190)
    assert score(rig)["checkpoints"].good is True
    rig.clock.go_on(24 * 3600)
    late = score(rig)["checkpoints"]
    assert (late.good, late.try_) == (False, "spotctl why gpt")
    assert late.text == "0 of 1 jobs that train have a recent one"


def test_spot_that_is_no_cheaper(rig: Rig) -> None:
    rig.launch(rig.submit(ago_s=4000), OFFERS[1], ago_s=3600)
    assert score(rig)["spot"].good is False
    rig.launch(rig.submit("b", ago_s=4000), SPOT, ago_s=3600)
    assert score(rig)["spot"].text.startswith("31.9 % below on-demand prices")


def test_what_each_job_may_cost(rig: Rig) -> None:
    rig.submit("a", text=CAPPED)
    assert score(rig)["budget"].good is True
    rig.submit("b")
    assert score(rig)["budget"].good is False
    assert "1 of 2 jobs have a max_cost_usd" in score(rig)["budget"].text
    rig.budgets = [Budget("ada", 1, user="ada")]
    assert score(rig)["budget"].good is False, "not of all jobs"
    rig.budgets.append(Budget("lab", 1))
    assert score(rig)["budget"].good is True


def test_gangs_that_wait_for_a_whole_one(rig: Rig) -> None:
    gang = "num_nodes: 2\n" + JOB_FILE
    rig.submit("a", text=gang + "  on_node_loss: shrink\n")
    assert score(rig)["scaling"].good is True
    rig.submit("b", text=gang)
    found = score(rig)["scaling"]
    assert (found.good, found.text) == (False, "1 of 2 gangs continue with fewer machines")


@pytest.mark.parametrize(("share", "good"), [(0.9, True), (0.4, False)])
def test_gpus_that_do_nothing(rig: Rig, share: float, good: bool) -> None:
    job_id = rig.submit(ago_s=4000)
    node = rig.launch(job_id, SPOT, ago_s=3600)
    rig.say(node, 60, "progress", **REPORT, usage={"window_s": 300.0, "gpu": share})
    found = score(rig)["right-sizing"]
    assert found.good is good
    assert found.try_ == ("" if good else "spotctl rightsize gpt")
