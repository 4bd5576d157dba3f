"""Scenario files: parsing, error messages, and their effects."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from providers.base import (
    CapacityError,
    CapacityType,
    InstanceState,
    Offer,
    OfferRequest,
    Pending,
    ThrottledError,
)
from providers.local.cloud import LocalCloud
from providers.local.market import Market
from providers.local.scenario import (
    DEFAULT,
    CapacityChange,
    Fault,
    PriceChange,
    Scenario,
)
from providers.local.scenario_fields import ScenarioError
from providers.local.scenario_file import load, parse
from tests.fixtures.local_cloud import find, launch_request, launch_running, run, wait_state
from tests.fixtures.waiting import until

EXAMPLES = Path(__file__).parents[3] / "examples" / "scenarios"


class Elapsed:
    """Seconds since the start, set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_example_of_the_default_is_the_default() -> None:
    assert load(EXAMPLES / "default.toml") == DEFAULT


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    scenario = load(path)
    assert scenario.zones
    assert {zone.personality for zone in scenario.zones} == {"aws", "gcp", "azure"}


def test_empty_file_is_the_default() -> None:
    assert parse("") == DEFAULT


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("a = [", "not TOML"),
        ("visibilty_s = 1", "did you mean 'visibility_s'"),
        ("visibility_s = -1", "'visibility_s' is -1; it must be a number of 0 or more"),
        ("zone = 3", "must be written as [[zone]] tables"),
        ("zone = [3]", "zone[0] is not a table"),
        ('[[zone]]\npersonality = "aws"\nregion = "r"', "zone[0]: 'name' is missing"),
        ("[[price]]\nat_s = 1\nusd_per_hour = 0", "a price above 0"),
        ('[[price]]\nat_s = 1\nusd_per_hour = 1\nzone = "mars"', "there is no zone 'mars'"),
        ("[[capacity]]\nat_s = 1\ncount = 1.5", "'count' is 1.5; it must be a whole number"),
        ('[[fault]]\noperation = "launch"\nkind = "fire"', "one of delay, lost_reply"),
        ('[[preempt]]\nkind = "preempt"', "give either at_s, or nth"),
        ("[[preempt]]\nat_s = 1\nnth = 1", "give either at_s, or nth"),
        ("[[preempt]]\nat_s = true", "'at_s' is True"),
    ],
)
def test_mistakes_are_named(text: str, mistake: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    assert mistake in str(caught.value)


def test_all_mistakes_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse('x = 1\n[[zone]]\npersonality = "aws"\n[[fault]]\noperation = "nap"\n')
    assert len(caught.value.mistakes) >= 5


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_double_zone_and_missing_types() -> None:
    zone = '[[zone]]\npersonality = "aws"\nregion = "r"\nname = "a"\n'
    kind = '[[type]]\npersonality = "gcp"\nname = "t"\nspot_usd_per_hour = 1\n'
    with pytest.raises(ScenarioError) as caught:
        parse(zone + zone + kind + "on_demand_usd_per_hour = 2\n")
    assert "zone 'a' of aws is there twice" in str(caught.value)
    assert "aws has zones but no machine types" in str(caught.value)


def price_of(offers: list[Offer], zone: str, kind: str, sold: CapacityType) -> int:
    (price,) = [
        o.price_microusd_per_h
        for o in offers
        if (o.zone, o.instance_type, o.capacity_type) == (zone, kind, sold)
    ]
    return price


def test_prices_and_capacity_change_with_time() -> None:
    elapsed = Elapsed()
    scenario = Scenario(
        zones=DEFAULT.zones,
        types=DEFAULT.types,
        prices=(
            PriceChange(20.0, 3_000_000, "aws"),
            PriceChange(10.0, 2_000_000, "aws", "us-east-2a", "c7i.large"),
        ),
        capacities=(CapacityChange(10.0, 1, "aws", "us-east-2a"),),
    )
    market = Market(scenario, elapsed)
    zone = market.zone("aws", "us-east-2", "us-east-2a")
    assert zone is not None

    def small() -> int:
        return price_of(market.offers("aws"), "us-east-2a", "c7i.large", CapacityType.SPOT)

    assert small() == 36_000
    assert market.capacity(zone, CapacityType.SPOT) == 1000
    elapsed.now = 10.0
    assert small() == 2_000_000
    assert market.capacity(zone, CapacityType.SPOT) == 1
    assert market.capacity(zone, CapacityType.ON_DEMAND) == 1000
    elapsed.now = 20.0
    assert small() == 3_000_000
    own = price_of(market.offers("aws"), "us-east-2a", "c7i.large", CapacityType.ON_DEMAND)
    assert own == 89_000
    market.set_price(PriceChange(20.0, 5_000_000, "aws"))
    assert small() == 5_000_000
    dear = price_of(market.offers("gcp"), "us-central1-b", "c3-highcpu-2", CapacityType.SPOT)
    assert dear == int(38_000 * Decimal("1.05"))


def test_offers_name_the_list_price() -> None:
    for offer in Market(DEFAULT, Elapsed()).offers("azure"):
        assert offer.local
        assert offer.cloud == "azure"
        assert offer.list_microusd_per_h >= offer.price_microusd_per_h


def test_faults_wear_off() -> None:
    elapsed = Elapsed()
    market = Market(DEFAULT, elapsed)
    market.add_fault(Fault("launch", "quota", count=2))
    market.add_fault(Fault("launch", "delay", personality="gcp", count=0, from_s=5.0, until_s=6.0))
    assert market.take_faults("list", "aws") == []
    assert [f.kind for f in market.take_faults("launch", "aws")] == ["quota"]
    elapsed.now = 5.0
    assert [f.kind for f in market.take_faults("launch", "gcp")] == ["quota", "delay"]
    assert [f.kind for f in market.take_faults("launch", "gcp")] == ["delay"]
    assert market.take_faults("launch", "aws") == []
    elapsed.now = 6.0
    assert market.take_faults("launch", "gcp") == []
    market.add_fault(Fault("launch", "quota"))
    market.clear_faults()
    assert market.take_faults("launch", "gcp") == []


# --- the same, played by a server


def test_preemption_of_the_nth_machine_that_works(begin: Any) -> None:
    local = begin(
        """
        [[preempt]]
        personality = "aws"
        nth = 2
        after = "exec"
        after_s = 0.1
        notice_s = 0.2
        [[preempt]]
        personality = "gcp"
        nth = 1
        after = "launch"
        after_s = 0.1
        kind = "none"
        """
    )
    aws = LocalCloud("a", local.url, "aws", "d", token_file=local.token_file)
    first, second = launch_running(aws, "first"), launch_running(aws, "second")
    run(second, "true")
    run(second, "true")
    assert local.control.state()["notices"] == []
    run(first, "true")  # the second machine that works
    wait_state(aws, "first", InstanceState.TERMINATED)
    wait_state(aws, "second", InstanceState.RUNNING)
    gcp = LocalCloud("g", local.url, "gcp", "d", token_file=local.token_file)
    gcp.launch(launch_request(gcp, "third"))
    wait_state(gcp, "third", InstanceState.TERMINATED)
    kinds = [notice["kind"] for notice in local.control.state()["notices"]]
    assert kinds == ["preempt", "none"]


def test_preemption_at_a_time(begin: Any) -> None:
    local = begin(
        """
        [[preempt]]
        at_s = 2.5
        zone = "eastus-1"
        kind = "none"
        """
    )
    azure = LocalCloud("z", local.url, "azure", "d", token_file=local.token_file)
    launch_running(azure, "timed")
    launch_running(azure, "elsewhere", zone="eastus-2")
    wait_state(azure, "timed", InstanceState.TERMINATED)
    assert local.control.state()["elapsed_s"] >= 2.5
    wait_state(azure, "elsewhere", InstanceState.RUNNING)


def test_full_zone(begin: Any) -> None:
    local = begin(
        """
        [[zone]]
        personality = "aws"
        region = "us-east-2"
        name = "us-east-2a"
        spot_capacity = 1
        on_demand_capacity = 1
        """
    )
    aws = LocalCloud("a", local.url, "aws", "d", token_file=local.token_file)
    first = launch_running(aws, "one")
    with pytest.raises(CapacityError, match="no spot capacity in us-east-2a"):
        aws.launch(launch_request(aws, "two"))
    launch_running(aws, "own", capacity_type=CapacityType.ON_DEMAND)
    aws.terminate(first.instance_id)
    wait_state(aws, "one", InstanceState.TERMINATED)
    launch_running(aws, "two")
    local.control.capacity(2, personality="aws")
    launch_running(aws, "three")


def test_price_set_by_hand_shows_in_offers(begin: Any) -> None:
    local = begin("")
    gcp = LocalCloud("g", local.url, "gcp", "d", token_file=local.token_file)
    local.control.price(33.25, personality="gcp", zone="us-central1-b")
    prices = {
        o.zone: o.price_microusd_per_h
        for o in gcp.offers(OfferRequest(accelerator="h100", capacity_types=(CapacityType.SPOT,)))
    }
    assert prices == {"us-central1-a": 22_000_000, "us-central1-b": 33_250_000}


def test_fresh_machines_stay_out_of_lists_for_a_while(begin: Any) -> None:
    local = begin("visibility_s = 0.6")
    aws = LocalCloud("a", local.url, "aws", "d", token_file=local.token_file)
    aws.launch(launch_request(aws, "shy"))
    assert aws.visibility_s == 0.6
    assert find(aws, "shy") is None
    until(lambda: find(aws, "shy"))


def test_throttling_carries_its_time(begin: Any) -> None:
    local = begin('[[fault]]\noperation = "list"\nkind = "throttled"\nseconds = 2.5\n')
    aws = LocalCloud("a", local.url, "aws", "d", token_file=local.token_file)
    with pytest.raises(ThrottledError) as caught:
        aws.list()
    assert caught.value.retry_after_s == 2.5
    assert list(aws.list()) == []


def test_pending_answer_is_an_operation(begin: Any) -> None:
    local = begin('[[fault]]\noperation = "launch"\nkind = "pending"\n')
    gcp = LocalCloud("g", local.url, "gcp", "d", token_file=local.token_file)
    answer = gcp.launch(launch_request(gcp, "later"))
    assert isinstance(answer, Pending)
    assert answer.operation.startswith("operation-")
    wait_state(gcp, "later", InstanceState.RUNNING)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "true", "1e16", "0x" + "f" * 6000])
def test_what_is_no_length_of_time_is_named(value: str) -> None:
    with pytest.raises(ScenarioError, match=r"'visibility_s' is .*; it must be a number of 0"):
        parse(f"visibility_s = {value}")
