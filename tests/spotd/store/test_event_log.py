"""The outbox, the latest time, log offsets and pruning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.domain.events import Event, Severity
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store.interface import RouteRow, Store
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
    rows = store.due_alerts(NOW, 10)
    assert [row.route for row in rows] == ["ops", "ml"]
    for row in rows:
        assert (row.job_id, row.job_name, row.event, row.repeats) == ("j1", "j1", _alert(), 1)
    assert store.due_alerts(NOW - 1, 10) == []
    assert len(store.due_alerts(NOW, 1)) == 1


def test_a_job_without_routes_tells_nobody(store: Store) -> None:
    commit(store, submit(store, alerts=()), plan(events=(_alert(),)))
    assert store.due_alerts(NOW, 10) == []


def test_the_deployments_own_alerts_go_to_the_default_route(store: Store) -> None:
    store.add_event("", _alert(), NOW)
    store.add_event("a job that never was", _alert("other"), NOW)
    assert [(row.route, row.job_id) for row in store.due_alerts(NOW, 9)] == [("default", "")] * 2
    assert [row.job_id for row in store.events(None)] == ["", ""]


def test_a_storm_coalesces(store: Store) -> None:
    submit(store)
    for turn in range(5):
        store.add_event("j1", _alert(text=f"turn {turn}"), NOW + turn * S)
    store.add_event("j1", _alert("another"), NOW)
    store.add_event("j1", _alert(""), NOW)
    store.add_event("j1", _alert(""), NOW)
    commit(store, view(store), plan(events=(_alert("b"), _alert("b"), _alert("b"))))
    rows = store.due_alerts(NOW + 9 * S, 99)
    found = [(row.event.key, row.repeats) for row in rows]
    assert found == [("k", 5), ("another", 1), ("", 1), ("", 1), ("b", 3)]
    # A minute later it is a new message; and so it is once the first was sent.
    store.add_event("j1", _alert(), NOW + 61 * S)
    waiting = [row for row in store.due_alerts(NOW + 99 * S, 99) if row.event.key == "k"]
    assert len(waiting) == 2
    store.mark_alerts(waiting, NOW + 62 * S, 0, "")
    store.add_event("j1", _alert(), NOW + 63 * S)
    left = [row for row in store.due_alerts(NOW + 99 * S, 99) if row.event.key == "k"]
    assert [(row.repeats, row.at_us) for row in left] == [(1, NOW + 63 * S)]


def test_delivery_is_tried_again_until_it_is_marked(store: Store) -> None:
    submit(store)
    store.add_event("j1", _alert(), NOW)
    [row] = store.due_alerts(NOW, 9)
    store.mark_alerts([row], 0, NOW + 30 * S, "429")
    assert store.due_alerts(NOW + 29 * S, 9) == []
    [again] = store.due_alerts(NOW + 30 * S, 9)
    assert (again.id, again.tries) == (row.id, 1)
    store.mark_alerts([row], NOW + 62 * S, 0, "")
    assert store.due_alerts(NOW + 99 * S, 9) == []


def test_what_is_repeated_while_its_message_is_on_its_way_is_told_as_well(store: Store) -> None:
    submit(store)
    for _ in range(2):
        store.add_event("j1", _alert(), NOW)
    [told] = store.due_alerts(NOW, 9)
    for _ in range(3):
        store.add_event("j1", _alert(), NOW + S)
    # It did not arrive: all of it is told the next time.
    store.mark_alerts([told], 0, NOW + 2 * S, "429")
    [told] = store.due_alerts(NOW + 2 * S, 9)
    assert told.repeats == 5
    store.add_event("j1", _alert(), NOW + 3 * S)
    store.mark_alerts([told], NOW + 4 * S, 0, "")
    [rest] = store.due_alerts(NOW + 4 * S, 9)
    assert (rest.id, rest.repeats) == (told.id, 1)
    store.mark_alerts([rest], NOW + 5 * S, 0, "")
    assert store.due_alerts(NOW + 99 * S, 9) == []


def test_what_became_of_the_alerts_of_a_route(store: Store) -> None:
    assert store.route_rows() == []
    submit(store)
    for turn in range(3):
        store.add_event("j1", _alert(f"k{turn}"), NOW + turn * S)
    first, second, third = store.due_alerts(NOW + 9 * S, 9)
    [row] = store.route_rows()
    assert row == RouteRow(first.route, 0, 3, NOW, "")
    store.mark_alerts([first], NOW + 10 * S, 0, "")
    store.mark_alerts([second], NOW + 11 * S, 0, "below the route's min_severity")
    store.mark_alerts([third], 0, NOW + 30 * S, "429")
    [row] = store.route_rows()
    assert row == RouteRow(first.route, NOW + 10 * S, 1, NOW + 2 * S, "429")


def test_the_latest_time_that_a_daemon_had_is_known(store: Store) -> None:
    """What it held and what it did must not lie in the future of the next one."""
    assert store.newest_us() == 0
    store.take_duty("sweep", "me", lambda: NOW + 9 * S, 3600 * S)
    assert store.newest_us() == NOW + 9 * S, "not when the lease ends"
    store.take_duty("prices", "you", lambda: NOW, 10 * S)  # by a clock that is behind
    assert store.newest_us() == NOW + 9 * S
    store.take_duty("sweep", "me", lambda: NOW + 10 * S, 0)  # let go
    assert store.newest_us() == NOW + 10 * S
    placed(store, "j1", new_node(effect_armed_at_us=NOW + 11 * S))
    assert store.newest_us() == NOW + 11 * S


def test_log_offsets(store: Store) -> None:
    placed(store, "j1", new_node(number=0), replace(new_node(number=1), rank=1))
    store.record_log_offset(NODE, "rank0", 10)
    store.record_log_offset(NODE, "rank0", 30)
    store.record_log_offset(NODE, "rank0", 20)
    store.record_log_offset("j1-g1-1", "setup", 5)
    assert store.log_offsets("j1") == {(1, 0, "rank0"): 30, (1, 1, "setup"): 5}


def test_pruning_drops_what_is_old_and_nothing_else(store: Store) -> None:
    placed(store)
    store.add_event("j1", _alert("sent"), NOW)
    store.add_event("j1", _alert("waiting"), NOW)
    sent = [row for row in store.due_alerts(NOW, 9) if row.event.key == "sent"]
    store.mark_alerts(sent, NOW + 1, 0, "")
    progress = ("progress", {"from_step": 1, "to_step": 1})
    store.record_journal([said(progress, heard_at_us=NOW + S)])
    store.record_journal([said(progress, first=2, heard_at_us=NOW + 90 * S)])
    store.add_event("j1", Event("late", "late"), NOW + 90 * S)
    old = len(store.events("j1")) - 1
    assert store.prune(NOW + 60 * S) == old + 1 + 1
    assert [row.event.kind for row in store.events("j1")] == ["late"]
    assert len(store.progress("j1")) == 1
    assert [row.event.key for row in store.due_alerts(NOW + 99 * S, 9)] == ["waiting"]
    assert store.prune(NOW + 60 * S) == 0
    # The reason of the last pass is still known: the same one is not told again.
    commit(store, view(store), plan())
    assert [row.event.kind for row in store.events("j1")] == ["late"]


def test_pruning_goes_in_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.store.event_log.PRUNE_ROWS", 10)
    submit(store)
    for turn in range(35):
        store.add_event("j1", Event("x", str(turn)), NOW + turn)
    assert store.prune(NOW + 33) == 33
    assert [row.event.text for row in store.events("j1")] == ["33", "34"]


def test_text_that_no_database_can_store_is_cleaned(store: Store) -> None:
    placed(store)
    store.add_event("j1", Event("x", "a\x00b\ud800c ☃", data={"k": "\x00"}), NOW)
    assert store.events("j1")[-1].event.text == "ab?c ☃"
    assert store.events("j1")[-1].event.data == {"k": "\x00"}


def test_the_image_that_an_unfinished_job_began_with_is_not_dropped(store: Store) -> None:
    submit(store)
    digest = f"sha256:{'1' * 64}"
    store.add_event("j1", Event("image_found", "pulled", data={"digest": digest}), NOW)
    store.add_event("j1", Event("image", "it begins"), NOW)
    assert store.prune(NOW + S) > 0
    assert store.image_digest("j1") == digest
    assert [row.event.kind for row in store.events("j1")] == ["image_found"]


def test_how_long_machines_lived_and_how_many_were_taken(store: Store) -> None:
    """One that was taken away after 10 s, one that lives on and was heard after 4 s, one that never
    was, and one of another offer that its job was done with."""
    for job in ("j1", "j2", "j3"):
        placed(store, job)
    other = offer("aws-1b")
    placed(store, "j4", new_node("j4", offer=other))
    for job in ("j1", "j2", "j4"):
        store.record_launched(f"{job}-g1-0", f"i-{job}", NOW)
        move(store, f"{job}-g1-0", NodeState.BOOTING)
    for job, reason, after_s in (("j1", LeaveReason.PREEMPTED, 10), ("j4", LeaveReason.DONE, 7)):
        left = {"leave_reason": reason, "left_at_us": NOW + after_s * S}
        move(store, f"{job}-g1-0", NodeState.TERMINATING, **left)
    store.record_heard({"j2-g1-0": NOW + 4 * S})
    key = offer().key
    assert store.lives(0) == [
        ObservedLifetimes(key, 14 * S, 1),
        ObservedLifetimes(other.key, 7 * S, 0),
    ]
    assert store.lives(NOW + 2 * S) == [
        ObservedLifetimes(key, 10 * S, 1),
        ObservedLifetimes(other.key, 5 * S, 0),
    ]
    assert store.lives(NOW + 8 * S) == [ObservedLifetimes(key, 2 * S, 1)]
    assert store.lives(NOW + 20 * S) == []
