"""A gang that no offer has an interconnect for is refused before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import OfferRequest
from spotd.api.request.request import ApiError
from spotd.api.views.gang_network import refuse_slow
from spotd.base.errors import UserError
from spotd.domain.fast_replace import changed
from spotd.domain.market import Market
from spotd.planner.placement.rank import rank
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig
from tests.spotd.planner.build import NOW, OFFERS, market, offer, spec

GANG = spec(num_nodes=2, fast_network=True)
JOINED = offer("azure-1a", 40, interconnect="infiniband", instance_type="nd96")


def refused(market_: Market) -> tuple[str, str]:
    with pytest.raises(ApiError) as caught:
        refuse_slow(GANG, market_)
    assert caught.value.status == 400
    return caught.value.text, caught.value.try_


def test_the_refusal_names_the_key_and_who_has_one() -> None:
    other = replace(JOINED, accelerator="A100", instance_type="nd40", price_microusd_per_h=1)
    region = changed(GANG, alternatives=(OfferRequest(accelerator="H100", cloud="aws"),))
    with pytest.raises(ApiError) as caught:
        refuse_slow(region, market((*OFFERS, JOINED, other)))
    assert "num_nodes is 2" in caught.value.text
    assert "none of the 2 offers that fit" in caught.value.text
    assert "spotd.slow_network: true" in caught.value.try_
    assert "these have one: nd96 of azure as spot" in caught.value.try_
    assert "nd40" not in caught.value.try_  # another accelerator, while there are some of this one


def test_nobody_may_have_one() -> None:
    text, fix = refused(market(OFFERS))
    assert "none of the 4 offers" in text
    assert "no configured provider" in fix


def test_what_would_give_machines_that_fit_one_is_named() -> None:
    """A type that has one in another network, say."""
    private = 'network = "private" or "jump" in [providers.aws]'
    p5 = [replace(one, joins_with=private) for one in OFFERS]
    more = [replace(p5[0], instance_type=f"p{n}", price_microusd_per_h=9**9) for n in range(6, 9)]
    kind = p5[0].instance_type
    _, fix = refused(market((*p5, *more)))
    assert f"{kind} of {p5[0].provider}" in fix
    assert f" more: with {private}; no configured provider" in fix
    [row] = rank(GANG, market((p5[0],)), NOW)
    assert row.excluded == (
        f"no interconnect between its machines without {private}; spotd.slow_network: true takes it"
    )


def test_what_may_run_is_not_refused() -> None:
    refuse_slow(GANG, market((*OFFERS, JOINED)))
    refuse_slow(GANG, market(()))  # no cloud has said what it sells
    refuse_slow(GANG, market((offer(local=True),)))
    refuse_slow(changed(GANG, fast_network=False), market(OFFERS))


def test_submission_and_plan_say_it(rig: Rig, client: PathClient) -> None:
    gang = JOB_FILE.replace("H100:8", "H100:8\n  cloud: aws") + "num_nodes: 2\n"
    for path, body in (("/v1/plan", {"yaml": gang}), ("/v1/jobs", {"yaml": gang})):
        with pytest.raises(UserError, match="num_nodes is 2"):
            client.post(path, body)
    assert rig.store.jobs.rows() == []
    fast = replace(SPOT, interconnect="efa")
    rig.store.market.record_offers(
        "aws", [SPOT, replace(fast, zone="us-east-1c")], rig.clock.now_us()
    )
    planned = client.post("/v1/plan", {"yaml": gang})
    assert [bool(row["excluded"]) for row in planned["offers"]] == [False, True]
    assert planned["fitting"] == 1
    slow = gang.replace("spotd:\n", "spotd:\n  slow_network: true\n")
    assert client.post("/v1/plan", {"yaml": slow})["fitting"] == 2
