"""The outbox, the latest time, log offsets and pruning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.domain.events import Event, Severity
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store.alerts import RouteRow
from spotd.store.interface import Store
from tests.spotd.store.build import (
    NOW,
    commit,
    move,
    new_node,
    offer,
    placed,
    plan,
    said,
    submit,
    view,
)

NODE = "j1-g1-0"


def _alert(key: str = "k", text: str = "gone") -> Event:
    return Event("lost", text, severity=Severity.WARNING, alert=True, key=key)


def test_an_alert_goes_to_every_route_of_its_job(store: Store) -> None:
    before = submit(store, alerts=("ops", "ml"))
    commit(store, before, plan(events=(_alert(), Event("quiet", "no alert"))))
    rows = store.alerts.due(NOW, 10)
    assert [row.route for row in rows] == ["ops", "ml"]
    for row in rows:
        assert (row.job_id, row.job_name, row.event, row.repeats) == ("j1", "j1", _alert(), 1)
    assert store.alerts.due(NOW - 1, 10) == []
    assert len(store.alerts.due(NOW, 1)) == 1


def test_a_job_without_routes_tells_nobody(store: Store) -> None:
    commit(store, submit(store, alerts=()), plan(events=(_alert(),)))
    assert store.alerts.due(NOW, 10) == []


def test_the_deployments_own_alerts_go_to_the_default_route(store: Store) -> None:
    store.events.add("", _alert(), NOW)
    store.events.add("a job that never was", _alert("other"), NOW)
    assert [(row.route, row.job_id) for row in store.alerts.due(NOW, 9)] == [("default", "")] * 2
    assert [row.job_id for row in store.events.rows(None)] == ["", ""]


def test_a_storm_coalesces(store: Store) -> None:
    submit(store)
    for turn in range(5):
        store.events.add("j1", _alert(text=f"turn {turn}"), NOW + turn * S)
    store.events.add("j1", _alert("another"), NOW)
    store.events.add("j1", _alert(""), NOW)
    store.events.add("j1", _alert(""), NOW)
    commit(store, view(store), plan(events=(_alert("b"), _alert("b"), _alert("b"))))
    rows = store.alerts.due(NOW + 9 * S, 99)
    found = [(row.event.key, row.repeats) for row in rows]
    assert found == [("k", 5), ("another", 1), ("", 1), ("", 1), ("b", 3)]
    # A minute later it is a new message; and so it is once the first was sent.
    store.events.add("j1", _alert(), NOW + 61 * S)
    waiting = [row for row in store.alerts.due(NOW + 99 * S, 99) if row.event.key == "k"]
    assert len(waiting) == 2
    store.alerts.mark(waiting, NOW + 62 * S, 0, "")
    store.events.add("j1", _alert(), NOW + 63 * S)
    left = [row for row in store.alerts.due(NOW + 99 * S, 99) if row.event.key == "k"]
    assert [(row.repeats, row.at_us) for row in left] == [(1, NOW + 63 * S)]


def test_delivery_is_tried_again_until_it_is_marked(store: Store) -> None:
    submit(store)
    store.events.add("j1", _alert(), NOW)
    [row] = store.alerts.due(NOW, 9)
    store.alerts.mark([row], 0, NOW + 30 * S, "429")
    assert store.alerts.due(NOW + 29 * S, 9) == []
    [again] = store.alerts.due(NOW + 30 * S, 9)
    assert (again.id, again.tries) == (row.id, 1)
    store.alerts.mark([row], NOW + 62 * S, 0, "")
    assert store.alerts.due(NOW + 99 * S, 9) == []


def test_what_is_repeated_while_its_message_is_on_its_way_is_told_as_well(store: Store) -> None:
    submit(store)
    for _ in range(2):
        store.events.add("j1", _alert(), NOW)
    [told] = store.alerts.due(NOW, 9)
    for _ in range(3):
        store.events.add("j1", _alert(), NOW + S)
    # It did not arrive: all of it is told the next time.
    store.alerts.mark([told], 0, NOW + 2 * S, "429")
    [told] = store.alerts.due(NOW + 2 * S, 9)
    assert told.repeats == 5
    store.events.add("j1", _alert(), NOW + 3 * S)
    store.alerts.mark([told], NOW + 4 * S, 0, "")
    [rest] = store.alerts.due(NOW + 4 * S, 9)
    assert (rest.id, rest.repeats) == (told.id, 1)
    store.alerts.mark([rest], NOW + 5 * S, 0, "")
    assert store.alerts.due(NOW + 99 * S, 9) == []


def test_what_became_of_the_alerts_of_a_route(store: Store) -> None:
    assert store.alerts.routes() == []
    submit(store)
    for turn in range(3):
        store.events.add("j1", _alert(f"k{turn}"), NOW + turn * S)
    first, second, third = store.alerts.due(NOW + 9 * S, 9)
    [row] = store.alerts.routes()
    assert row == RouteRow(first.route, 0, 3, NOW, "")
    store.alerts.mark([first], NOW + 10 * S, 0, "")
    store.alerts.mark([second], NOW + 11 * S, 0, "below the route's min_severity")
    store.alerts.mark([third], 0, NOW + 30 * S, "429")
    [row] = store.alerts.routes()
    assert row == RouteRow(first.route, NOW + 10 * S, 1, NOW + 2 * S, "429")


def test_the_latest_time_that_a_daemon_had_is_known(store: Store) -> None:
    """What it held and what it did must not lie in the future of the next one."""
    assert store.leases.newest_us() == 0
    store.leases.take("sweep", "me", lambda: NOW + 9 * S, 3600 * S)
    assert store.leases.newest_us() == NOW + 9 * S, "not when the lease ends"
    store.leases.take("prices", "you", lambda: NOW, 10 * S)  # by a clock that is behind
    assert store.leases.newest_us() == NOW + 9 * S
    store.leases.take("sweep", "me", lambda: NOW + 10 * S, 0)  # let go
    assert store.leases.newest_us() == NOW + 10 * S
    placed(store, "j1", new_node(effect_armed_at_us=NOW + 11 * S))
    assert store.leases.newest_us() == NOW + 11 * S


def test_log_offsets(store: Store) -> None:
    placed(store, "j1", new_node(number=0), replace(new_node(number=1), rank=1))
    store.logs.record_offset(NODE, "rank0", 10)
    store.logs.record_offset(NODE, "rank0", 30)
    store.logs.record_offset(NODE, "rank0", 20)
    store.logs.record_offset("j1-g1-1", "setup", 5)
    assert store.logs.offsets("j1") == {(1, 0, "rank0"): 30, (1, 1, "setup"): 5}


def test_pruning_drops_what_is_old_and_nothing_else(store: Store) -> None:
    placed(store)
    store.events.add("j1", _alert("sent"), NOW)
    store.events.add("j1", _alert("waiting"), NOW)
    sent = [row for row in store.alerts.due(NOW, 9) if row.event.key == "sent"]
    store.alerts.mark(sent, NOW + 1, 0, "")
    progress = ("progress", {"from_step": 1, "to_step": 1})
    store.journal.record([said(progress, heard_at_us=NOW + S)])
    store.journal.record([said(progress, first=2, heard_at_us=NOW + 90 * S)])
    store.events.add("j1", Event("late", "late"), NOW + 90 * S)
    old = len(store.events.rows("j1")) - 1
    assert store.events.prune(NOW + 60 * S) == old + 1 + 1
    assert [row.event.kind for row in store.events.rows("j1")] == ["late"]
    assert len(store.progress.rows("j1")) == 1
    assert [row.event.key for row in store.alerts.due(NOW + 99 * S, 9)] == ["waiting"]
    assert store.events.prune(NOW + 60 * S) == 0
    # The reason of the last pass is still known: the same one is not told again.
    commit(store, view(store), plan())
    assert [row.event.kind for row in store.events.rows("j1")] == ["late"]


def test_pruning_goes_in_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.store.events.PRUNE_ROWS", 10)
    submit(store)
    for turn in range(35):
        store.events.add("j1", Event("x", str(turn)), NOW + turn)
    assert store.events.prune(NOW + 33) == 33
    assert [row.event.text for row in store.events.rows("j1")] == ["33", "34"]


def test_text_that_no_database_can_store_is_cleaned(store: Store) -> None:
    placed(store)
    store.events.add("j1", Event("x", "a\x00b\ud800c ☃", data={"k": "\x00"}), NOW)
    assert store.events.rows("j1")[-1].event.text == "ab?c ☃"
    assert store.events.rows("j1")[-1].event.data == {"k": "\x00"}


def test_the_image_that_an_unfinished_job_began_with_is_not_dropped(store: Store) -> None:
    submit(store)
    digest = f"sha256:{'1' * 64}"
    store.events.add("j1", Event("image_found", "pulled", data={"digest": digest}), NOW)
    store.events.add("j1", Event("image", "it begins"), NOW)
    assert store.events.prune(NOW + S) > 0
    assert store.events.image_digest("j1") == digest
    assert [row.event.kind for row in store.events.rows("j1")] == ["image_found"]


def test_how_long_machines_lived_and_how_many_were_taken(store: Store) -> None:
    """One that was taken away after 10 s, one that lives on and was heard after 4 s, one that never
    was, and one of another offer that its job was done with."""
    for job in ("j1", "j2", "j3"):
        placed(store, job)
    other = offer("aws-1b")
    placed(store, "j4", new_node("j4", offer=other))
    for job in ("j1", "j2", "j4"):
        store.nodes.record_launched(f"{job}-g1-0", f"i-{job}", NOW)
        move(store, f"{job}-g1-0", NodeState.BOOTING)
    for job, reason, after_s in (("j1", LeaveReason.PREEMPTED, 10), ("j4", LeaveReason.DONE, 7)):
        left = {"leave_reason": reason, "left_at_us": NOW + after_s * S}
        move(store, f"{job}-g1-0", NodeState.TERMINATING, **left)
    store.nodes.record_heartbeats({"j2-g1-0": NOW + 4 * S})
    key = offer().key
    assert store.node_history.observed_lifetimes(0) == [
        ObservedLifetimes(key, 14 * S, 1),
        ObservedLifetimes(other.key, 7 * S, 0),
    ]
    assert store.node_history.observed_lifetimes(NOW + 2 * S) == [
        ObservedLifetimes(key, 10 * S, 1),
        ObservedLifetimes(other.key, 5 * S, 0),
    ]
    assert store.node_history.observed_lifetimes(NOW + 8 * S) == [ObservedLifetimes(key, 2 * S, 1)]
    assert store.node_history.observed_lifetimes(NOW + 20 * S) == []
