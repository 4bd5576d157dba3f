"""The ledger: every stretch counted once, at its price, in integers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from providers.base import CapacityType, InstanceState, Offer, Scope
from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.money.units import cost_microusd
from spotd.store.interface import Store
from spotd.store.ledger import SegmentRow, best_on_demand
from tests.sim.memory_store import MemoryStore
from tests.spotd.store.build import (
    HOUR,
    NOW,
    Bell,
    instance,
    move,
    new_node,
    node,
    offer,
    placed,
    submission,
    view,
)
from tests.spotd.store.conftest import DEPLOYMENT, make

NODE = "j1-g1-0"


def _stretches(store: Store) -> list[tuple[str, int, int, int]]:
    """(state, start, end, rate), times in seconds since NOW."""
    return [
        (
            s.state,
            (s.start_us - NOW) // S,
            s.end_us and (s.end_us - NOW) // S,
            s.rate_microusd_per_h,
        )
        for s in store.ledger.segments("j1")
    ]


def test_money_is_rounded_once_half_up() -> None:
    assert cost_microusd(1_000_000, 0, HOUR) == 1_000_000
    assert cost_microusd(1, 0, HOUR // 2) == 1
    assert cost_microusd(1, 0, HOUR // 2 - 1) == 0
    assert cost_microusd(98_320_000, NOW, NOW + 100 * 24 * HOUR) == 98_320_000 * 2400
    assert cost_microusd(10, 5, 4) == 0


@pytest.mark.req("CST-01")
@pytest.mark.parametrize(
    ("hours", "rate", "cost"),
    [
        (72, 11_920_000, 858_240_000),
        (216, 11_920_000, 2_574_720_000),
        (24, 16_000_000, 384_000_000),
    ],
)
def test_cost_is_hours_times_the_nodes_rate(store: Store, hours: int, rate: int, cost: int) -> None:
    placed(store, "j1", new_node(offer=offer(price_microusd_per_h=rate)))
    store.nodes.record_launched(NODE, "i-1", NOW)
    assert view(store, now_us=NOW + hours * HOUR).spent_microusd == cost
    ended = instance(node(store), state=InstanceState.TERMINATED)
    store.instances.record_listing("aws", [ended], NOW + hours * HOUR, NOW + hours * HOUR)
    assert view(store, now_us=NOW + 9999 * HOUR).spent_microusd == cost


def test_what_an_invoice_says_is_kept_beside_the_ledger(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    (row,) = store.ledger.segments()
    store.ledger.record_invoiced({row.id: 7, row.id + 99: 1}, NOW + S)
    store.ledger.record_invoiced({}, NOW + 2 * S)
    (told,) = store.ledger.segments()
    assert (told.invoiced_microusd, told.reconciled_at_us) == (7, NOW + S)
    assert replace(told, invoiced_microusd=0, reconciled_at_us=0) == row
    assert store.jobs.users(["j1", "nobody"]) == {"j1": submission("j1").user}
    assert store.jobs.users([]) == {}


def test_an_intent_counts_from_its_start_until_its_outcome_is_known(store: Store) -> None:
    placed(store)
    assert _stretches(store) == [("unknown", 0, 0, 10_000_000)]
    assert view(store, now_us=NOW + HOUR).spent_microusd == 10_000_000
    store.nodes.record_launched(NODE, "i-1", NOW + 3 * S)
    assert _stretches(store) == [("open", 3, 0, 10_000_000)]
    assert view(store, now_us=NOW + 3 * S + HOUR).spent_microusd == 10_000_000


def test_a_refused_or_absent_intent_costs_nothing(store: Store) -> None:
    placed(store, "j1", new_node(number=0), new_node(number=1))
    store.nodes.record_launch_refused(NODE, "CapacityError", "none left", Scope.OFFER, NOW + S)
    store.nodes.record_absent("j1-g1-1", NOW + 2 * S)
    assert [row[0] for row in _stretches(store)] == ["void", "void"]
    assert view(store, now_us=NOW + HOUR).spent_microusd == 0


def test_a_machine_that_appears_after_all_is_counted(store: Store) -> None:
    placed(store)
    store.nodes.record_absent(NODE, NOW + 2 * S)
    store.nodes.record_launched(NODE, "i-1", NOW + 5 * S)
    assert node(store).machine.gone_at_us == 0
    assert _stretches(store) == [("void", 0, 2, 10_000_000), ("open", 5, 0, 10_000_000)]


def test_a_machine_that_listings_missed_is_counted_without_a_gap(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    found = instance(node(store))
    store.instances.record_listing("aws", [found], NOW + 20 * S, NOW + 20 * S)
    store.instances.record_listing("aws", [], NOW + 30 * S, NOW + 31 * S)
    assert _stretches(store) == [("open", 0, 0, 10_000_000)]
    store.instances.record_listing("aws", [], NOW + 60 * S, NOW + 61 * S)
    store.instances.record_listing("aws", [], NOW + 90 * S, NOW + 91 * S)
    assert _stretches(store)[-1] == ("closed", 0, 91, 10_000_000)
    store.instances.record_listing("aws", [found], NOW + 120 * S, NOW + 120 * S)
    assert node(store).machine.gone_at_us == 0
    assert _stretches(store)[1:] == [("open", 91, 0, 10_000_000)]


def test_a_machine_older_than_we_knew_is_counted_from_its_birth(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW + 9 * S)
    found = instance(node(store), launched_at_us=NOW + 4 * S)
    store.instances.record_listing("aws", [found], NOW + 20 * S, NOW + 20 * S)
    assert _stretches(store) == [("open", 4, 0, 10_000_000)]


@pytest.mark.parametrize("said_us", [0, NOW - 900_000, NOW], ids=["unknown", "behind", "exact"])
def test_a_cloud_whose_clock_is_behind_ours_hides_no_time(store: Store, said_us: int) -> None:
    """We were dead for an hour, and the machine ended just then: all of it was paid for."""
    placed(store)
    later_us = NOW + 3600 * S
    found = instance(node(store), launched_at_us=said_us)
    store.instances.record_listing("aws", [found], later_us, later_us)
    ended = replace(found, state=InstanceState.TERMINATED)
    store.instances.record_listing("aws", [ended], later_us + S // 2, later_us + S // 2)
    (row,) = store.ledger.segments()
    assert (row.start_us, row.end_us) == (NOW, later_us + S // 2)


def test_its_birth_is_counted_although_the_price_changed_since(store: Store) -> None:
    store.market.record_offers("aws", [offer()], NOW)
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW + 9 * S)
    store.market.record_offers("aws", [offer(price=12)], NOW + 15 * S)
    found = instance(node(store), launched_at_us=NOW + 4 * S)
    store.instances.record_listing("aws", [found], NOW + 20 * S, NOW + 20 * S)
    assert _stretches(store) == [("closed", 4, 15, 10_000_000), ("open", 15, 0, 12_000_000)]
    spent = cost_microusd(10_000_000, 0, 11 * S) + cost_microusd(12_000_000, 0, HOUR)
    assert view(store, now_us=NOW + 15 * S + HOUR).spent_microusd == spent


def test_a_machine_whose_node_is_gone_costs_until_it_is_ended(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    alive = instance(node(store))
    store.nodes.record_acknowledged(NODE, EffectKind.TERMINATE, NOW + 15 * S)
    store.instances.record_listing("aws", [], NOW + 20 * S, NOW + 21 * S)
    move(store, NODE, NodeState.GONE, NOW + 22 * S)
    store.instances.record_listing("aws", [alive], NOW + 19 * S, NOW + 23 * S)  # an older answer
    assert _stretches(store) == [("closed", 0, 21, 10_000_000)]
    assert store.instances.record_listing("aws", [alive], NOW + 60 * S, NOW + 60 * S) == [alive]
    assert _stretches(store)[1:] == [("open", 21, 0, 10_000_000)]
    store.instances.record_listing("gcp", [], NOW + 90 * S, NOW + 90 * S)  # another cloud's
    ended = replace(alive, state=InstanceState.TERMINATED)
    store.instances.record_listing("aws", [ended], NOW + 120 * S, NOW + 121 * S)
    assert _stretches(store)[1:] == [("closed", 21, 121, 10_000_000)]


@pytest.mark.parametrize("told", [False, True], ids=["listed", "told-late"])
def test_a_machine_that_appears_when_its_node_is_gone_is_counted(store: Store, told: bool) -> None:
    placed(store)
    store.nodes.record_absent(NODE, NOW + 2 * S)
    move(store, NODE, NodeState.GONE, NOW + 3 * S)
    if told:
        store.nodes.record_launched(NODE, "i-1", NOW + 5 * S)
    else:
        late = instance(node(store), launched_at_us=NOW + 5 * S)
        store.instances.record_listing("aws", [late], NOW + 60 * S, NOW + 60 * S)
    assert _stretches(store) == [("void", 0, 2, 10_000_000), ("open", 5, 0, 10_000_000)]
    store.nodes.record_launched(NODE, "i-1", NOW + 70 * S)
    store.instances.record_listing("aws", [], NOW + 80 * S, NOW + 80 * S)
    store.nodes.record_launched(NODE, "i-1", NOW + 90 * S)  # told again what has ended since
    assert _stretches(store)[1:] == [("closed", 5, 80, 10_000_000)]


def test_no_hour_is_counted_twice_of_what_was_there_was_absent_and_is_back(store: Store) -> None:
    """A price change had closed the hours before; what came to nothing was the rest."""
    store.market.record_offers("aws", [offer()], NOW)
    placed(store)
    move(store, NODE, NodeState.GONE, NOW)
    late = instance(node(store), launched_at_us=NOW)
    store.instances.record_listing("aws", [late], NOW + 60 * S, NOW + 60 * S)
    store.market.record_offers("aws", [offer(price=5)], NOW + 1200 * S)
    store.nodes.record_absent(NODE, NOW + 1300 * S)
    store.instances.record_listing("aws", [late], NOW + 1500 * S, NOW + 1500 * S)
    assert _stretches(store)[1:] == [
        ("closed", 0, 1200, 10_000_000),
        ("void", 1200, 1300, 5_000_000),
        ("open", 1200, 0, 5_000_000),
    ]


def test_a_price_change_splits_what_runs(store: Store) -> None:
    store.market.record_offers("aws", [offer()], NOW)
    placed(store, "j1", new_node(number=0), new_node(number=1))
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.market.record_offers("aws", [offer(price=12)], NOW + 60 * S)
    store.market.record_offers("aws", [offer(price=12)], NOW + 90 * S)  # nothing new
    store.market.record_offers("aws", [offer(price=8)], NOW + 120 * S)
    store.market.record_offers("aws", [], NOW + 150 * S)  # no longer on sale: the last price stays
    by_node = {n: [] for n in (NODE, "j1-g1-1")}
    for segment in store.ledger.segments():
        by_node[segment.node_id].append((segment.state, segment.rate_microusd_per_h))
    assert by_node[NODE] == [("closed", 10_000_000), ("closed", 12_000_000), ("open", 8_000_000)]
    assert by_node["j1-g1-1"] == [("unknown", 12_000_000)]  # the worst case, for all of it


def test_the_best_on_demand_price_anywhere(store: Store) -> None:
    on_demand = {"capacity_type": CapacityType.ON_DEMAND}
    gcp = offer("gcp-1a", 25, **on_demand)
    smaller = offer("gcp-1b", 3, accelerator_count=4, **on_demand)
    other = offer("gcp-1c", 2, accelerator="A100", **on_demand)
    store.market.record_offers("gcp", [gcp, smaller, other, offer("gcp-1d", 1)], NOW)
    store.market.record_offers("aws", [offer()], NOW)
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    [first] = store.ledger.segments()
    assert first.list_rate_microusd_per_h == 40_000_000
    assert first.best_on_demand_microusd_per_h == 25_000_000
    # A counterfactual that moves splits the segment as well, at an unchanged price.
    store.market.record_offers("gcp", [offer("gcp-1a", 20, **on_demand)], NOW + S)
    closed, running = store.ledger.segments()
    assert (closed.end_us, running.start_us) == (NOW + S, NOW + S)
    assert running.best_on_demand_microusd_per_h == 20_000_000
    assert running.rate_microusd_per_h == closed.rate_microusd_per_h


def test_machines_without_accelerators_are_compared_by_size() -> None:
    def cpu(price: int, cpus: float, memory_gib: float, **fields: object) -> Offer:
        shape = {"accelerator": "", "accelerator_count": 0, "list_microusd_per_h": 0}
        return offer("aws-1a", price, cpus=cpus, memory_gib=memory_gib, **shape, **fields)

    on_demand = {"capacity_type": CapacityType.ON_DEMAND}
    ours = cpu(1, 8, 32)
    others = [cpu(2, 4, 64, **on_demand), cpu(3, 8, 32, **on_demand), cpu(9, 16, 64, **on_demand)]
    assert best_on_demand(ours, others) == 3_000_000
    assert best_on_demand(ours, []) == 0


def test_a_node_that_is_decided_gone_stops_costing(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    move(store, NODE, NodeState.TERMINATING, NOW + HOUR)
    assert view(store, now_us=NOW + 2 * HOUR).spent_microusd == 20_000_000
    store.nodes.record_acknowledged(NODE, EffectKind.TERMINATE, NOW + HOUR)
    store.instances.record_listing("aws", [], NOW + 2 * HOUR, NOW + 2 * HOUR)
    move(store, NODE, NodeState.GONE, NOW + 3 * HOUR)
    assert _stretches(store) == [("closed", 0, 7200, 10_000_000)]
    assert view(store, now_us=NOW + 9 * HOUR).spent_microusd == 20_000_000


class Ledger(RuleBasedStateMachine):
    """Whatever happens in whatever order: segments never overlap, nothing paid for is left out,
    and the sum that decisions see is the sum of the segments."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.open()
        self.store.market.record_offers("aws", [offer()], NOW)
        placed(self.store)
        self.now_us = NOW
        self.alive = False  # for all we know

    def open(self) -> Store:
        return make("sqlite://")

    def teardown(self) -> None:
        self.store.close()

    @property
    def gone(self) -> bool:
        return node(self.store).state is NodeState.GONE

    @rule(seconds=st.integers(1, 5000))
    def wait(self, seconds: int) -> None:
        self.now_us += seconds * S + 7

    @rule(price=st.integers(1, 50))
    def reprice(self, price: int) -> None:
        self.store.market.record_offers("aws", [offer(price=price)], self.now_us)

    @rule()
    def launched(self) -> None:
        self.alive = True
        self.store.nodes.record_launched(NODE, "i-1", self.now_us)

    @rule()
    def refused(self) -> None:
        self.store.nodes.record_launch_refused(NODE, "CapacityError", "x", Scope.ZONE, self.now_us)

    @rule()
    def absent(self) -> None:
        self.store.nodes.record_absent(NODE, self.now_us)

    @rule(there=st.booleans(), age_s=st.integers(0, 5000))
    def listed(self, there: bool, age_s: int) -> None:
        self.alive = there
        born_us = self.now_us - age_s * S
        found = [instance(node(self.store), launched_at_us=born_us)] if there else []
        self.store.instances.record_listing("aws", found, self.now_us, self.now_us)

    @precondition(lambda self: not self.gone)
    @rule()
    def end(self) -> None:
        self.alive = False
        move(self.store, NODE, NodeState.GONE, self.now_us)

    @invariant()
    def adds_up(self) -> None:
        segments = self.store.ledger.segments()
        counted = [s for s in segments if s.state != "void"]
        for earlier, later in pairwise(counted):
            assert earlier.end_us <= later.start_us
            assert earlier.end_us > 0
        assert all(s.start_us >= NOW for s in segments)
        assert sum(s.end_us == 0 for s in segments) <= 1
        if self.gone and not self.alive:
            assert all(s.end_us for s in segments)
        expected = sum(_cost(s, self.now_us) for s in counted)
        assert view(self.store, now_us=self.now_us).spent_microusd == expected


def _cost(segment: SegmentRow, now_us: int) -> int:
    end_us = segment.end_us or now_us
    return cost_microusd(segment.rate_microusd_per_h, segment.start_us, end_us)


class InMemory(Ledger):
    """The same for the simulator's store."""

    def open(self) -> Store:
        return MemoryStore(DEPLOYMENT, Bell())


TestLedger = Ledger.TestCase
TestInMemory = InMemory.TestCase
TestLedger.settings = TestInMemory.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
