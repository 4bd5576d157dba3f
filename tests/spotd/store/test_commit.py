"""Decisions: compare-and-swap, invariants, limits, and what a commit writes besides."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from providers.base import InstanceState, Scope
from spotd.domain.events import Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind
from spotd.domain.plan import AddNode, ChangeJob, ChangeNode, OpenAttempt, Plan
from spotd.domain.queue import Limits
from spotd.domain.states import IllegalTransitionError, LeaveReason, NodeState
from spotd.domain.units import S
from spotd.store import ledger
from spotd.store.commit import CommitResult, CommitStatus
from spotd.store.interface import Store
from tests.fixtures import postgres
from tests.spotd.store.build import (
    NOW,
    commit,
    instance,
    kinds,
    move,
    new_node,
    node,
    offer,
    opening,
    placed,
    plan,
    submit,
    view,
)
from tests.spotd.store.conftest import make


def test_the_result_is_what_is_loaded_next(store: Store) -> None:
    before = submit(store)
    effect = {"effect": EffectKind.LAUNCH, "effect_armed_at_us": NOW, "effect_due_at_us": NOW + 5}
    first = opening("j1", 1, changed(new_node(), **effect))  # type: ignore[arg-type]
    after = commit(store, before, replace(first, wake_at_us=NOW + 5))
    assert after == view(store)
    assert (after.job.version, after.job.generation, after.job.wakeup.wake_at_us) == (1, 1, NOW + 5)
    assert after.attempts == (Attempt("j1", 1, NOW, "first"),)
    left = {"leave_reason": LeaveReason.FAILED, "leave_text": "broken", "left_at_us": NOW}
    gone = move(store, "j1-g1-0", NodeState.GONE, **left)
    assert gone == view(store)
    # A new generation: what is gone of the old one is no longer looked at.
    second = commit(store, gone, opening("j1", 2))
    assert [n.id for n in second.nodes] == ["j1-g2-0"]
    assert second == view(store)


def test_exactly_one_of_two_commits_wins(url: str) -> None:
    """Two daemons decide about the same view at the same moment, many times over."""
    stores = [make(url), make(url)]
    submit(stores[0])
    for turn in range(20):
        seen = view(stores[0])
        start = threading.Barrier(2)
        results: list[CommitResult] = []

        def decide(store: Store, start: threading.Barrier, turn: int) -> None:
            decided = plan(ChangeJob({"failures": turn}))
            before = seen  # noqa: B023 - joined below
            start.wait()
            results.append(store.commit(before, decided, NOW + turn))  # noqa: B023

        threads = [threading.Thread(target=decide, args=(store, start, turn)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(result.status.value for result in results) == ["done", "stale"]
        assert view(stores[0]).job.version == turn + 1
    for store in stores:
        store.close()


def test_a_stale_plan_leaves_no_trace(store: Store) -> None:
    seen = submit(store)
    commit(store, seen, plan())
    before, events = view(store), kinds(store)
    late = replace(opening(), events=(Event("x", "x", alert=True),))
    assert store.commit(seen, late, NOW).status is CommitStatus.STALE
    assert view(store) == before
    assert kinds(store) == events
    assert store.ledger.segments() == []
    assert store.alerts.due(NOW, 10) == []


def test_many_plans_in_one_transaction_each_stand_alone(store: Store) -> None:
    views = {number: submit(store, f"j{number}") for number in range(4)}
    commit(store, views[1], plan())
    batch = [(views[number], opening(f"j{number}")) for number in range(4)]
    batch.append((views[0], opening("j0", 2)))
    statuses = [result.status.value for result in store.commit_many(batch, NOW)]
    assert statuses == ["done", "stale", "done", "done", "stale"]
    assert [len(view(store, f"j{number}").nodes) for number in range(4)] == [1, 0, 1, 1]
    assert set(store.load_views(["j0", "j3", "nope"], NOW)) == {"j0", "j3"}
    assert store.load_views([f"j{n}" for n in range(4)], NOW)["j2"] == view(store, "j2")


def test_one_bad_plan_does_not_harm_the_others(store: Store) -> None:
    good, bad = submit(store, "good"), submit(store, "bad")
    taken = replace(new_node("bad"), token="t-good-g1-0")
    batch = [(bad, opening("bad", 1, taken)), (good, opening("good"))]
    first, second = store.commit_many([batch[1], batch[0]], NOW)
    assert (first.status, second.status) == (CommitStatus.DONE, CommitStatus.REJECTED)
    assert view(store, "bad") == bad
    told = store.events.rows("bad")[-1].event
    assert (told.kind, told.severity) == ("plan_rejected", Severity.ERROR)


def test_two_chosen_nodes_of_one_rank_are_impossible(store: Store) -> None:
    placed(store, "j1", new_node(number=0), new_node(number=1))
    both = plan(
        *(ChangeNode(f"j1-g1-{n}", {"state": NodeState.BOOTING, "chosen": True}) for n in (0, 1))
    )
    result = store.commit(view(store), both, NOW)
    assert result.status is CommitStatus.REJECTED
    assert not any(n.chosen for n in view(store).nodes)
    # One is chosen; while it drains, another may be.
    one = plan(ChangeNode("j1-g1-0", {"state": NodeState.BOOTING, "chosen": True}))
    commit(store, view(store), one)
    move(store, "j1-g1-0", NodeState.RUNNING)
    swap = plan(
        ChangeNode("j1-g1-1", {"state": NodeState.BOOTING, "chosen": True}),
        ChangeNode("j1-g1-0", {"state": NodeState.DRAINING}),
    )
    commit(store, view(store), swap)


@pytest.mark.parametrize(
    "broken",
    [
        plan(OpenAttempt(Attempt("j1", 1, NOW, "again"))),  # a generation twice
        plan(AddNode(new_node(generation=7))),  # a node without an attempt
        plan(AddNode(new_node(number=0))),  # a node id twice
    ],
)
def test_the_schema_holds_the_invariants(store: Store, broken: Plan) -> None:
    before = placed(store)
    assert store.commit(before, broken, NOW).status is CommitStatus.REJECTED
    assert view(store) == before


def test_a_plan_that_is_no_plan_is_a_bug_and_raises(store: Store) -> None:
    before = placed(store)
    running = plan(ChangeNode("j1-g1-0", {"state": NodeState.RUNNING}))
    with pytest.raises(IllegalTransitionError):
        store.commit(before, running, NOW)
    with pytest.raises(ValueError, match="do not own host"):
        store.commit(before, plan(ChangeNode("j1-g1-0", {"host": "x"})), NOW)
    assert view(store) == before


def test_a_commit_never_writes_what_was_observed(store: Store) -> None:
    before = placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW + S)
    commit(store, before, plan(ChangeNode("j1-g1-0", {"kept_until_us": 5})))
    assert node(store).instance_id == "i-1"
    assert node(store).departure.kept_until_us == 5


# --- limits


def test_the_limit_of_nodes_counts_everything_not_gone(store: Store) -> None:
    store.market.set_limits(Limits(max_nodes=2))
    placed(store, "a")
    placed(store, "b")
    move(store, "b-g1-0", NodeState.TERMINATING)
    waiting = submit(store, "c")
    refused = store.commit(waiting, opening("c"), NOW)
    assert refused.status is CommitStatus.OVER_LIMIT
    assert "limits.max_nodes is 2 and 2 are in use" in refused.text
    assert view(store, "c") == waiting
    assert store.ledger.segments("c") == []
    move(store, "b-g1-0", NodeState.GONE)
    commit(store, waiting, opening("c"))


def test_the_limit_of_spend_counts_the_current_price(store: Store) -> None:
    store.market.set_limits(Limits(max_microusd_per_h=25_000_000))
    store.market.record_offers("aws", [offer()], NOW)
    placed(store, "a")
    store.nodes.record_launched("a-g1-0", "i-1", NOW)
    waiting = submit(store, "b")
    store.market.record_offers("aws", [offer(price=16)], NOW + S)
    refused = store.commit(waiting, opening("b"), NOW + S)
    assert refused.status is CommitStatus.OVER_LIMIT
    assert "max_usd_per_hour is $25.00, and this would make it $32.00" in refused.text
    # A plan that launches nothing is not held up.
    commit(store, waiting, plan())
    store.market.record_offers("aws", [offer(price=12)], NOW + 2 * S)
    commit(store, view(store, "b"), opening("b"))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(max_nodes=2), "limits.max_nodes is 2 and 0 are in use"),
        (Limits(max_microusd_per_h=25_000_000), "is $25.00, and this would make it $30.00"),
    ],
    ids=["nodes", "rate"],
)
def test_a_gang_counts_with_all_its_nodes(store: Store, limits: Limits, text: str) -> None:
    """Three machines at ten dollars, where two would fit."""
    gang = [new_node(number=rank, rank=rank, candidate=0) for rank in range(3)]
    waiting = submit(store, num_nodes=3)
    store.market.set_limits(limits)
    refused = store.commit(waiting, opening("j1", 1, *gang), NOW)
    assert refused.status is CommitStatus.OVER_LIMIT
    assert text in refused.text
    assert (view(store).nodes, store.ledger.segments("j1")) == ((), [])
    store.market.set_limits(Limits(max_nodes=3, max_microusd_per_h=30_000_000))
    commit(store, waiting, opening("j1", 1, *gang))


@pytest.mark.parametrize(("price", "counted"), [(16, 16), (8, 10)])
def test_a_price_that_moved_after_the_decision_never_flatters(
    store: Store, price: int, counted: int
) -> None:
    store.market.record_offers("aws", [offer()], NOW)
    seen = submit(store)
    store.market.record_offers("aws", [offer(price=price)], NOW + S)
    after = commit(store, seen, opening(), NOW + S)
    assert after.nodes[0].offer.price_microusd_per_h == counted * 1_000_000
    assert store.ledger.segments()[0].rate_microusd_per_h == counted * 1_000_000
    assert store.market.load(NOW + S).use.microusd_per_h == counted * 1_000_000
    assert after.nodes == view(store).nodes
    # A limit is held against the same price.
    store.market.set_limits(Limits(max_microusd_per_h=counted * 2_000_000 - 1))
    other = submit(store, "j2")
    assert store.commit(other, opening("j2"), NOW + S).status is CommitStatus.OVER_LIMIT


def test_a_price_that_moves_while_a_launch_is_committed_is_not_missed(
    server: postgres.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite there is one writer at a time; on PostgreSQL the two could pass each other."""
    url = server.url(server.create("ready"))
    launching, pricing = make(url), make(url)
    launching.market.record_offers("aws", [offer()], NOW)
    placed(launching)
    change = opening("j1", 2)
    thread = threading.Thread(target=lambda: commit(launching, view(launching), change))
    reprice = ledger.reprice

    def waits() -> bool:
        return bool(server.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))

    def reprice_and_launch(*args: Any) -> None:
        reprice(*args)
        thread.start()
        while thread.is_alive() and not waits():
            thread.join(0.01)

    monkeypatch.setattr(ledger, "reprice", reprice_and_launch)
    pricing.market.record_offers("aws", [offer(price=16)], NOW)
    thread.join()
    assert [s.rate_microusd_per_h for s in pricing.ledger.segments("j1")] == [16_000_000] * 2
    launching.close()
    pricing.close()


def test_a_job_past_its_cost_launches_nothing(store: Store) -> None:
    placed(store, max_cost_microusd=20_000_000)
    later = NOW + 2 * 3600 * S
    seen = view(store, now_us=later)
    assert seen.spent_microusd == 20_000_000
    refused = store.commit(seen, plan(AddNode(new_node(number=1))), later)
    assert refused.status is CommitStatus.OVER_LIMIT
    assert "spent $20.00 of its max_cost_usd of $20.00" in refused.text


def test_plans_of_one_batch_share_the_room(store: Store) -> None:
    store.market.set_limits(Limits(max_nodes=2))
    batch = [(submit(store, name), opening(name)) for name in ("a", "b", "c")]
    statuses = [result.status.value for result in store.commit_many(batch, NOW)]
    assert statuses == ["done", "done", "over_limit"]


def test_the_limit_holds_when_two_commit_at_once(url: str) -> None:
    """One machine is still allowed, and two daemons ask for it at the same moment, again and
    again."""
    stores = [make(url), make(url)]
    views = [submit(stores[0], f"j{number:02}") for number in range(30)]
    for turn in range(15):
        stores[0].market.set_limits(Limits(max_nodes=turn + 1))
        start = threading.Barrier(2)
        done: list[CommitStatus] = []

        def launch(number: int, start: threading.Barrier, done: list[CommitStatus]) -> None:
            seen = views[number]
            start.wait()
            status = stores[number % 2].commit(seen, opening(seen.job.id), NOW).status
            done.append(status)

        threads = [
            threading.Thread(target=launch, args=(2 * turn + daemon, start, done))
            for daemon in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [CommitStatus.DONE, CommitStatus.OVER_LIMIT]
        assert len(stores[1].nodes.active()) == turn + 1
    for store in stores:
        store.close()


# --- the record


def test_the_pass_is_told_when_its_reason_changes(store: Store) -> None:
    seen = submit(store)
    for reason in ("waiting", "waiting", "asking", "waiting"):
        commit(store, seen, plan(reason=reason, reasons=(reason, "and more")))
        seen = view(store)
    rows = store.events.rows("j1")
    assert [row.event.text for row in rows] == ["waiting", "asking", "waiting"]
    assert rows[0].event.data == {"reasons": ["waiting", "and more"]}
    assert [row.id for row in store.events.rows("j1", after_id=rows[0].id)] == [
        r.id for r in rows[1:]
    ]


def test_events_are_read_back_whole(store: Store) -> None:
    event = Event(
        "lost", "gone ☹", "j1-g1-0", Severity.WARNING, alert=True, key="k", data={"a": [1, None]}
    )
    commit(store, submit(store), plan(events=(event,)), NOW + 3)
    row = store.events.rows(None)[0]
    assert (row.event, row.job_id, row.at_us) == (event, "j1", NOW + 3)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (LeaveReason.PREEMPTED, "Preempted"),
        (LeaveReason.LOST, "Lost"),
        (LeaveReason.BOOT_TIMEOUT, "BootTimeout"),
    ],
)
def test_a_machine_taken_away_is_remembered_once(
    store: Store, reason: LeaveReason, code: str
) -> None:
    placed(store)
    store.market.load(NOW)
    move(store, "j1-g1-0", NodeState.TERMINATING, NOW + S, leave_reason=reason)
    move(store, "j1-g1-0", NodeState.GONE, NOW + 2 * S)
    expected = Refusal(offer().key, Scope.OFFER, code, NOW + S, "j1-g1-0")
    assert store.market.load(NOW + 3 * S).refusals == (expected,)


def test_what_was_taken_away_cools_from_when_it_was_gone(store: Store) -> None:
    placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    why: dict[str, Any] = {"leave_reason": LeaveReason.PREEMPTED, "left_at_us": NOW + S}
    move(store, "j1-g1-0", NodeState.TERMINATING, NOW + S, **why)
    assert [r.at_us for r in store.market.load(NOW).refusals] == [NOW + S]
    ended = instance(node(store), state=InstanceState.TERMINATED)
    store.instances.record_listing("aws", [ended], NOW + 90 * S, NOW + 90 * S)
    move(store, "j1-g1-0", NodeState.GONE, NOW + 91 * S)
    assert [r.at_us for r in store.market.load(NOW).refusals] == [NOW + 90 * S]


def test_other_reasons_say_nothing_about_the_offer(store: Store) -> None:
    placed(store)
    move(store, "j1-g1-0", NodeState.TERMINATING, leave_reason=LeaveReason.CANCELLED)
    assert store.market.load(NOW).refusals == ()
