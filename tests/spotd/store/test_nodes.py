"""What calls and listings say about nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, select

from providers.base import Instance, InstanceState, Notice, NoticeKind, Scope
from spotd.domain.job import HeadSnapshot
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind
from spotd.domain.plan import ChangeNode
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store import schema
from spotd.store.interface import Store
from spotd.store.sql_store import SqlStore
from spotd.wire.parts import values_of
from tests.spotd.store.build import (
    NOW,
    Bell,
    commit,
    instance,
    kinds,
    move,
    new_node,
    node,
    offer,
    placed,
    plan,
    said,
    submission,
    submit,
    view,
)

NODE = "j1-g1-0"


def _notes(store: Store) -> int:
    return view(store).job.wakeup.notes


def test_outcomes_of_calls(store: Store) -> None:
    placed(store)
    notes = _notes(store)
    store.nodes.record_launched(NODE, "i-1", NOW + 1)
    store.nodes.record_launched(NODE, "i-1", NOW + 2)  # told twice: the first time counts
    store.nodes.record_booted(NODE, NOW + 3)
    store.nodes.record_acknowledged(NODE, EffectKind.START, NOW + 4, "after_release")
    store.nodes.record_acknowledged(NODE, EffectKind.START, NOW + 5, "now")
    told = (EffectKind.RELEASE, EffectKind.DRAIN, EffectKind.SAVE, EffectKind.TERMINATE)
    for at_us, effect in enumerate(told, start=NOW + 6):
        store.nodes.record_acknowledged(NODE, effect, at_us)
    now = node(store)
    assert (now.instance_id, now.machine.launched_at_us, now.startup.booted_at_us) == (
        "i-1",
        NOW + 1,
        NOW + 3,
    )
    assert (now.startup.started_at_us, now.startup.started_claim) == (NOW + 5, "now")
    times = (now.agent.told_release_at_us, now.agent.told_drain_at_us, now.agent.told_save_at_us)
    assert (*times, now.machine.terminated_at_us) == (NOW + 6, NOW + 7, NOW + 8, NOW + 9)
    assert _notes(store) == notes + 9
    with pytest.raises(ValueError, match="boot"):
        store.nodes.record_acknowledged(NODE, EffectKind.BOOT, NOW)


def test_a_refusal_is_remembered_with_its_scope(store: Store) -> None:
    placed(store)
    store.nodes.record_launch_refused(NODE, "QuotaError", "no quota", Scope.REGION, NOW + S)
    assert (node(store).machine.launch_error, node(store).machine.launch_error_code) == (
        "no quota",
        "QuotaError",
    )
    expected = Refusal(offer().key, Scope.REGION, "QuotaError", NOW + S, NODE)
    assert store.market.load(NOW + S).refusals == (expected,)


def test_a_late_refusal_does_not_unmake_a_machine(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.nodes.record_launch_refused(NODE, "CapacityError", "none", Scope.OFFER, NOW + S)
    store.nodes.record_absent(NODE, NOW + S)
    assert (node(store).machine.launch_error, node(store).machine.gone_at_us) == ("", 0)
    assert store.ledger.segments()[0].state == "open"


def test_failures_count_in_a_row_and_per_effect(store: Store) -> None:
    placed(store)

    def arm(effect: EffectKind) -> None:
        commit(store, view(store), plan(ChangeNode(NODE, {"effect": effect})))

    arm(EffectKind.BOOT)
    for turn in range(3):
        store.nodes.record_effect_failed(NODE, EffectKind.BOOT, "refused", NOW + turn)
    failed = node(store)
    assert (failed.call.effect_failures, failed.call.effect_failed_at_us) == (3, NOW + 2)
    assert failed.call.effect_error == "refused"
    arm(EffectKind.START)
    assert node(store).call.effect_failures == 0
    store.nodes.record_effect_failed(NODE, EffectKind.START, "late", NOW + 9)
    assert node(store).call.effect_failures == 1
    store.nodes.record_acknowledged(NODE, EffectKind.START, NOW + 10, "now")
    assert (node(store).call.effect_failures, node(store).call.effect_error) == (0, "")


def test_a_launch_that_answers_late_takes_no_failure_of_the_boot_back(store: Store) -> None:
    """A listing told of the machine first. Without the failure the boot counts as in flight, and is
    not made again for a minute."""
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    armed = {"effect": EffectKind.BOOT, "effect_armed_at_us": NOW}
    commit(store, view(store), plan(ChangeNode(NODE, armed)))
    store.nodes.record_effect_failed(NODE, EffectKind.BOOT, "refused", NOW + S)
    store.nodes.record_launched(NODE, "i-1", NOW + 2 * S)
    failed = node(store)
    assert (failed.call.effect_failures, failed.call.effect_failed_at_us) == (1, NOW + S)
    assert failed.machine.launched_at_us == NOW


def test_a_failure_counts_from_the_end_of_the_pause_that_the_cloud_asked_for(
    store: Store,
) -> None:
    placed(store)
    armed = {"effect": EffectKind.SURVEY, "effect_armed_at_us": NOW}
    commit(store, view(store), plan(ChangeNode(NODE, armed)))
    store.nodes.record_effect_failed(NODE, EffectKind.SURVEY, "slow down", NOW + S, 30.0)
    assert node(store).call.effect_failed_at_us == NOW + 31 * S
    # What is armed next has not failed.
    armed = {"effect": EffectKind.TERMINATE, "effect_armed_at_us": NOW + 2 * S}
    commit(store, view(store), plan(ChangeNode(NODE, armed)))
    assert node(store).call.effect_failed_at_us == 0


def test_unknown_nodes_are_passed_over(store: Store, bell: Bell) -> None:
    rings = bell.rings
    store.nodes.record_launched("nope", "i", NOW)
    store.nodes.record_booted("nope", NOW)
    store.nodes.record_heartbeats({"nope": NOW})
    store.nodes.record_heartbeats({})
    store.nodes.record_link("nope", NOW)
    store.logs.record_offset("nope", "rank0", 5)
    store.jobs.record_head(
        "nope", HeadSnapshot(1, 1, "m", released=False, final=False, seen_at_us=NOW)
    )
    store.nodes.record_effect_failed("nope", EffectKind.BOOT, "x", NOW)
    assert store.jobs.rows() == []
    assert bell.rings == rings


# --- the link


def test_heartbeats_make_nobody_decide(store: Store, bell: Bell) -> None:
    placed(store)
    notes, rings = _notes(store), bell.rings
    store.nodes.record_heartbeats({NODE: NOW + 5 * S})
    store.nodes.record_heartbeats({NODE: NOW + 4 * S})
    assert node(store).agent.heard_at_us == NOW + 5 * S
    assert (_notes(store), bell.rings) == (notes, rings)


def test_a_lost_link_and_its_return_make_the_job_due(store: Store, bell: Bell) -> None:
    placed(store)
    notes = _notes(store)
    store.nodes.record_link(NODE, NOW + S)
    store.nodes.record_link(NODE, NOW + 2 * S)
    assert node(store).agent.link_down_at_us == NOW + S
    assert _notes(store) == notes + 1
    store.nodes.record_heartbeats({NODE: NOW + 3 * S})
    assert node(store).agent.link_down_at_us == 0
    assert _notes(store) == notes + 2
    store.nodes.record_link(NODE, NOW + 4 * S)
    store.nodes.record_link(NODE, 0)
    store.nodes.record_link(NODE, 0)
    assert (node(store).agent.link_down_at_us, _notes(store)) == (0, notes + 4)


def test_the_silent_are_noted(store: Store) -> None:
    names = ("heard", "silent", "unbooted", "exited", "leaving")
    for name in names:
        placed(store, name)
        if name != "unbooted":
            store.nodes.record_booted(f"{name}-g1-0", NOW)
    store.nodes.record_heartbeats({"heard-g1-0": NOW + 60 * S})
    store.journal.record([said(("exited", {"code": 1}), node_id="exited-g1-0", heard_at_us=NOW)])
    move(store, "leaving-g1-0", NodeState.TERMINATING)
    before = {name: view(store, name).job.wakeup.notes for name in names}
    store.nodes.mark_silent_due(NOW + 30 * S)
    noted = [name for name in names if view(store, name).job.wakeup.notes > before[name]]
    assert noted == ["silent"]
    store.jobs.mark_due(["heard"])
    assert view(store, "heard").job.wakeup.notes == before["heard"] + 1


# --- listings


def test_a_listing_updates_what_it_shows(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    notes = _notes(store)
    found = instance(node(store))
    assert store.instances.record_listing("aws", [found], NOW + S, NOW + 2 * S) == []
    now = node(store)
    assert (now.address.host, now.address.port, now.address.ssh_user) == (
        "127.0.0.1",
        2222,
        "spotd",
    )
    assert (now.machine.cloud_state, now.machine.seen_at_us, now.machine.surveyed_at_us) == (
        "running",
        NOW + S,
        NOW + S,
    )
    assert _notes(store) == notes + 1
    # The same again is no news.
    store.instances.record_listing("aws", [found], NOW + 5 * S, NOW + 6 * S)
    assert (node(store).machine.surveyed_at_us, _notes(store)) == (NOW + 5 * S, notes + 1)
    # It is, when it was asked for.
    armed = {"effect": EffectKind.SURVEY, "effect_armed_at_us": NOW + 7 * S}
    commit(store, view(store), plan(ChangeNode(NODE, armed)))
    store.instances.record_listing("aws", [found], NOW + 8 * S, NOW + 9 * S)
    assert _notes(store) == notes + 2


def test_a_listing_without_news_costs_no_more_for_more_machines(sql_store: SqlStore) -> None:
    names = [f"j{number}" for number in range(12)]
    for number, name in enumerate(names):
        placed(sql_store, name)
        sql_store.nodes.record_launched(f"{name}-g1-0", f"i-{number}", NOW)
    found = [instance(node(sql_store, f"{name}-g1-0"), f"i-{n}") for n, name in enumerate(names)]
    counted: list[str] = []
    engine = sql_store.session.database._writer
    event.listen(engine, "after_cursor_execute", lambda _c, _u, text, *_: counted.append(text))

    def statements(shown: list[Instance], asked_s: int) -> int:
        counted.clear()
        sql_store.instances.record_listing("aws", shown, NOW + asked_s * S, NOW + asked_s * S)
        return len(counted)

    assert statements(found, 1) > 12  # the first time, all is news
    quiet = statements(found, 5)
    notes = [view(sql_store, name).job.wakeup.notes for name in names]
    assert statements(found, 9) == quiet < 8
    times = {
        (
            node(sql_store, f"{n}-g1-0").machine.surveyed_at_us,
            node(sql_store, f"{n}-g1-0").machine.seen_at_us,
        )
        for n in names
    }
    assert times == {(NOW + 9 * S, NOW + 9 * S)}
    assert [view(sql_store, name).job.wakeup.notes for name in names] == notes
    # An answer that was asked for earlier, and comes late, takes nothing back.
    statements(found, 7)
    assert node(sql_store, "j0-g1-0").machine.seen_at_us == NOW + 9 * S
    # One that is missing was asked about and not seen; the others are as they were.
    sql_store.instances.record_listing("aws", found[1:], NOW + 20 * S, NOW + 20 * S)
    assert (
        node(sql_store, "j0-g1-0").machine.surveyed_at_us,
        node(sql_store, "j0-g1-0").machine.seen_at_us,
    ) == (
        NOW + 20 * S,
        NOW + 9 * S,
    )
    assert node(sql_store, "j1-g1-0").machine.seen_at_us == NOW + 20 * S
    assert [view(sql_store, name).job.wakeup.notes > notes[n] for n, name in enumerate(names)] == [
        True,
        *[False] * 11,
    ]


@pytest.mark.parametrize("change", [{"port": 2223}, {"ssh_user": "ubuntu"}, {"host": "127.0.0.2"}])
def test_a_machine_with_another_address_is_news(store: Store, change: dict[str, Any]) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    found = instance(node(store))
    store.instances.record_listing("aws", [found], NOW + S, NOW + S)
    notes = _notes(store)
    store.instances.record_listing("aws", [replace(found, **change)], NOW + 2 * S, NOW + 2 * S)
    assert values_of(node(store), tuple(change)) == change
    assert _notes(store) == notes + 1


def test_a_machine_that_was_taken_for_gone_and_lives_is_news(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    found = instance(node(store))
    for shown in ([found], [], [found]):
        store.instances.record_listing("aws", shown, NOW + 60 * S, NOW + 60 * S)
    for at_us in (NOW + 90 * S, NOW + 120 * S, NOW + 150 * S):
        store.instances.record_listing("aws", [], at_us, at_us)
    assert node(store).machine.gone_at_us == NOW + 150 * S
    store.instances.record_listing("aws", [], NOW + 155 * S, NOW + 155 * S)
    assert (node(store).machine.gone_at_us, node(store).machine.surveyed_at_us) == (
        NOW + 150 * S,
        NOW + 155 * S,
    )
    store.instances.record_listing("aws", [found], NOW + 159 * S, NOW + 159 * S)
    assert (node(store).machine.gone_at_us, node(store).machine.cloud_state) == (0, "running")
    assert store.ledger.segments()[-1].state == "open"


@pytest.mark.parametrize("state", [InstanceState.TERMINATED])
def test_a_terminated_machine_is_gone(store: Store, state: InstanceState) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    found = instance(node(store), state=state)
    assert store.instances.record_listing("aws", [found], NOW + S, NOW + 2 * S) == []
    assert (node(store).machine.gone_at_us, node(store).machine.cloud_state) == (
        NOW + 2 * S,
        "terminated",
    )
    store.instances.record_listing("aws", [found], NOW + 9 * S, NOW + 9 * S)
    assert node(store).machine.gone_at_us == NOW + 2 * S


def test_a_lost_reply_is_made_good_by_the_token(store: Store) -> None:
    placed(store)
    store.instances.record_listing("aws", [instance(node(store), "i-7")], NOW + S, NOW + 2 * S)
    assert (node(store).instance_id, node(store).machine.launched_at_us) == ("i-7", NOW + 2 * S)
    assert store.ledger.segments()[0].state == "open"


def test_of_two_machines_for_one_token_one_is_an_orphan(store: Store) -> None:
    placed(store)
    dead = instance(node(store), "i-0", state=InstanceState.TERMINATED)
    mine, other = instance(node(store), "i-1"), instance(node(store), "i-2")
    assert store.instances.record_listing("aws", [dead, other, mine], NOW + S, NOW + S) == [other]
    assert node(store).instance_id == "i-1"
    assert store.instances.record_listing("aws", [other, mine], NOW + 2 * S, NOW + 2 * S) == [other]


def test_a_late_failure_is_a_refusal(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    failed = instance(
        node(store), state=InstanceState.FAILED, error="no capacity", error_code="QuotaError"
    )
    for turn in (1, 2):
        assert store.instances.record_listing("aws", [failed], NOW + turn * S, NOW + turn * S) == []
    now = node(store)
    assert (now.machine.launch_error, now.machine.launch_error_code) == (
        "no capacity",
        "QuotaError",
    )
    assert now.machine.gone_at_us == NOW + S
    assert store.ledger.segments()[0].state == "void"
    expected = Refusal(offer().key, Scope.REGION, "QuotaError", NOW + S, NODE)
    assert store.market.load(NOW + S).refusals == (expected,)


def test_a_create_that_failed_was_never_seen_alive(store: Store) -> None:
    placed(store)
    failed = instance(node(store), state=InstanceState.FAILED, error_code="CapacityError")
    for turn in (1, 2):
        store.instances.record_listing("aws", [failed], NOW + turn * S, NOW + turn * S)
    assert node(store).machine.seen_at_us == 0
    # The cloud takes it back: what it cost counts from its launch, not from when we heard.
    lives = instance(node(store), launched_at_us=NOW + S)
    store.instances.record_listing("aws", [lives], NOW + 30 * S, NOW + 30 * S)
    [segment] = [row for row in store.ledger.segments() if row.state == "open"]
    assert segment.start_us == NOW + S


def test_a_machine_that_ran_was_no_refusal_and_is_paid_for(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.nodes.record_booted(NODE, NOW + S)
    failed = instance(node(store), state=InstanceState.FAILED, error="broken")
    store.instances.record_listing("aws", [failed], NOW + 9 * S, NOW + 9 * S)
    assert (node(store).machine.gone_at_us, node(store).machine.launch_error) == (NOW + 9 * S, "")
    assert store.ledger.segments()[0].state == "closed"
    assert store.market.load(NOW + 9 * S).refusals == ()


def test_a_refusal_that_a_listing_told_of_is_not_told_twice(store: Store) -> None:
    placed(store)
    failed = instance(node(store), state=InstanceState.FAILED, error_code="CapacityError")
    store.instances.record_listing("aws", [failed], NOW + S, NOW + S)
    store.nodes.record_launch_refused(NODE, "QuotaError", "none left", Scope.REGION, NOW + 2 * S)
    expected = Refusal(offer().key, Scope.OFFER, "CapacityError", NOW + S, NODE)
    assert store.market.load(NOW + 2 * S).refusals == (expected,)
    assert node(store).machine.launch_error_code == "CapacityError"


@pytest.mark.parametrize("seen", [False, True], ids=["never-seen", "seen-once"])
@pytest.mark.parametrize(
    ("asked_s", "visibility_s", "counts"),
    [(-1, 0, False), (0, 0, False), (9, 0, False), (11, 0, True), (29, 30, False), (31, 30, True)],
)
def test_a_fresh_machine_may_be_missing_for_a_while(
    store: Store, asked_s: int, visibility_s: float, counts: bool, seen: bool
) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    if seen:
        store.instances.record_listing("aws", [instance(node(store))], NOW, NOW)
    asked_us = NOW + asked_s * S
    store.instances.record_listing("aws", [], asked_us, NOW + 40 * S, visibility_s)
    assert node(store).machine.missed_at_us == (asked_us if counts else 0)
    for later_s in (30, 60):
        store.instances.record_listing(
            "aws", [], asked_us + later_s * S, NOW + 99 * S, visibility_s
        )
    assert bool(node(store).machine.gone_at_us) is counts
    listed = "running" if seen else ""
    assert node(store).machine.cloud_state == ("absent" if counts else listed)


def test_a_silent_machine_is_gone_when_listings_lack_it_for_a_minute(store: Store) -> None:
    """However many they are: the copy that a cloud answers from may lag."""
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.nodes.record_booted(NODE, NOW + S)
    found = instance(node(store))
    store.instances.record_listing("aws", [found], NOW + 15 * S, NOW + 15 * S)
    store.nodes.record_link(NODE, NOW + 18 * S)
    for asked_s in (20, 21, 40, 79):
        store.instances.record_listing("aws", [], NOW + asked_s * S, NOW + asked_s * S)
        seen = node(store)
        assert (seen.machine.gone_at_us, seen.machine.cloud_state) == (0, "running")
    store.instances.record_listing("aws", [found], NOW + 79 * S, NOW + 79 * S)
    assert node(store).machine.missed_at_us == 0, "it is there: from the beginning"
    for asked_s in (90, 149):
        store.instances.record_listing("aws", [], NOW + asked_s * S, NOW + asked_s * S)
    assert node(store).machine.gone_at_us == 0
    notes = _notes(store)
    store.instances.record_listing("aws", [], NOW + 150 * S, NOW + 150 * S)
    assert (node(store).machine.gone_at_us, _notes(store)) == (NOW + 150 * S, notes + 1)


def test_listings_that_lie_far_apart_say_nothing_of_the_time_between(store: Store) -> None:
    """Each lacked it for a moment; nobody asked in between, for the daemon was dead."""
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.nodes.record_booted(NODE, NOW + S)
    store.nodes.record_link(NODE, NOW + 18 * S)
    for asked_s in (20, 80, 200, 259):
        store.instances.record_listing("aws", [], NOW + asked_s * S, NOW + asked_s * S)
        assert node(store).machine.gone_at_us == 0, f"after {asked_s} s"
    assert node(store).machine.missed_at_us == NOW + 200 * S, (
        "since when it was asked for again and again"
    )
    store.instances.record_listing("aws", [], NOW + 260 * S, NOW + 260 * S)
    assert node(store).machine.gone_at_us == NOW + 260 * S


@pytest.mark.parametrize(
    ("down_s", "terminated", "asked_s", "gone"),
    [(0, False, 90, False), (20, False, 30, False), (20, False, 90, True), (0, True, 30, True)],
)
def test_a_machine_whose_link_is_up_is_gone_when_we_ended_it(
    store: Store, down_s: int, terminated: bool, asked_s: int, gone: bool
) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.nodes.record_booted(NODE, NOW + S)
    store.journal.record([said(("hello", {}), heard_at_us=NOW + 19 * S)])
    store.instances.record_listing("aws", [], NOW + 20 * S, NOW + 20 * S)
    if down_s:
        store.nodes.record_link(NODE, NOW + down_s * S)
    if terminated:
        store.nodes.record_acknowledged(NODE, EffectKind.TERMINATE, NOW + 20 * S)
    for between_s in range(50, asked_s, 40):
        store.instances.record_listing("aws", [], NOW + between_s * S, NOW + between_s * S)
    notes = _notes(store)
    store.instances.record_listing("aws", [], NOW + asked_s * S, NOW + asked_s * S)
    assert bool(node(store).machine.gone_at_us) is gone
    assert node(store).machine.surveyed_at_us == NOW + asked_s * S
    assert (_notes(store) > notes) is gone, "otherwise it is no news"


def test_a_listing_asked_for_before_proves_nothing(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.instances.record_listing("aws", [instance(node(store))], NOW + 85 * S, NOW + 86 * S)
    store.instances.record_listing(
        "aws", [], NOW + 84 * S, NOW + 87 * S
    )  # an older answer, longer on its way
    assert node(store).machine.missed_at_us == 0
    store.instances.record_listing("aws", [], NOW + 88 * S, NOW + 89 * S)
    assert node(store).machine.missed_at_us == NOW + 88 * S


def test_a_launch_in_flight_is_not_judged(store: Store) -> None:
    placed(store)
    store.instances.record_listing("aws", [], NOW + 60 * S, NOW + 60 * S)
    now = node(store)
    assert (now.machine.gone_at_us, now.machine.cloud_state, now.machine.surveyed_at_us) == (
        0,
        "",
        NOW + 60 * S,
    )


def test_orphans(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    mine = instance(node(store))
    stranger = instance(node(store), "i-9", token="t-unknown")
    dead = replace(stranger, instance_id="i-8", state=InstanceState.TERMINATED)
    assert store.instances.record_listing("aws", [mine, stranger, dead], NOW + S, NOW + S) == [
        stranger
    ]
    # A node that is gone wants no machine; one that is terminating still owns it.
    move(store, NODE, NodeState.TERMINATING)
    assert store.instances.record_listing("aws", [mine], NOW + 2 * S, NOW + 2 * S) == []
    move(store, NODE, NodeState.GONE)
    assert store.instances.record_listing("aws", [mine], NOW + 3 * S, NOW + 3 * S) == [mine]


def test_one_clouds_listing_says_nothing_about_another(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    store.instances.record_listing("gcp", [], NOW + 60 * S, NOW + 60 * S)
    assert node(store).machine.gone_at_us == 0


def test_cloud_notices_are_matched_by_instance(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    mine = Notice("n1", NoticeKind.PREEMPT, NOW + 120 * S, "queue", "i-1")
    stranger = Notice("n2", NoticeKind.PREEMPT, NOW, "queue", "i-9")
    store.instances.record_notices("gcp", [mine], NOW + S)
    assert node(store).notices == ()
    store.instances.record_notices("aws", [mine, stranger, mine], NOW + S)
    # The node says the same later, with less time left: one row, the earlier deadline.
    heard = ("notice", {"notice_id": "n1", "kind": "preempt", "remaining_s": 100, "source": "imds"})
    store.journal.record([said(heard, heard_at_us=NOW + 10 * S)])
    [notice] = node(store).notices
    assert (notice.heard_at_us, notice.deadline_us) == (NOW + S, NOW + 110 * S)
    assert kinds(store).count("notice_heard") == 1


# --- HEAD


def _head(generation: int, step: int, at_us: int, **fields: object) -> HeadSnapshot:
    base = HeadSnapshot(generation, step, f"m{step}", released=False, final=False, seen_at_us=at_us)
    return replace(base, **fields)  # type: ignore[arg-type]


def test_a_reading_that_finds_nothing_new_is_no_sign_of_life(store: Store) -> None:
    submit(store)
    store.jobs.record_head("j1", _head(1, 5, NOW, read_at_us=NOW))
    store.jobs.record_head("j1", _head(1, 5, NOW + S, read_at_us=NOW + S))
    head = view(store).job.head
    assert head is not None
    assert (head.seen_at_us, head.read_at_us) == (NOW, NOW + S)
    store.jobs.record_head("j1", _head(1, 6, NOW + 2 * S, read_at_us=NOW + 2 * S))
    assert view(store).job.head == _head(1, 6, NOW + 2 * S, read_at_us=NOW + 2 * S)


def test_head_never_goes_back(store: Store) -> None:
    submit(store)
    store.jobs.record_head("j1", _head(2, 9, NOW))
    for older in (_head(1, 20, NOW + S), _head(2, 8, NOW + S)):
        store.jobs.record_head("j1", older)
        assert view(store).job.head == _head(2, 9, NOW)
    store.jobs.record_head("j1", _head(2, 9, NOW, released=True, final=True))
    store.jobs.record_head("j1", _head(2, 9, NOW + S))  # read before, recorded after
    head = view(store).job.head
    assert head is not None
    assert (head.released, head.final) == (True, True)
    store.jobs.record_head("j1", _head(3, 9, NOW + 2 * S))
    assert view(store).job.head == _head(3, 9, NOW + 2 * S)


def test_candidates_of_one_attempt_are_all_seen(store: Store) -> None:
    placed(store, "j1", new_node(number=1), new_node(number=0))
    assert [n.id for n in view(store).nodes] == ["j1-g1-0", "j1-g1-1"]
    assert store.nodes.active() == store.nodes.of_job("j1")


def test_booted_nodes_are_those_whose_agent_was_started_and_that_are_not_gone(
    store: Store,
) -> None:
    for name in ("fresh", "booted", "ending", "over"):
        placed(store, name, new_node(name))
        if name != "fresh":
            store.nodes.record_booted(f"{name}-g1-0", NOW)
    move(store, "ending-g1-0", NodeState.TERMINATING)
    move(store, "over-g1-0", NodeState.GONE)
    found = store.nodes.booted()
    assert found == {"booted-g1-0": NodeState.LAUNCHING, "ending-g1-0": NodeState.TERMINATING}


def test_nodes_are_found_by_their_ids(store: Store) -> None:
    placed(store, "j1", new_node(number=1), new_node(number=0))
    found = store.nodes.find(["j1-g1-1", "j1-g1-0", "jnone-g1-0"])
    assert found == store.nodes.of_job("j1")
    assert store.nodes.find([]) == []


def test_more_nodes_are_found_than_one_statement_takes(sql_store: SqlStore, url: str) -> None:
    """Of parameters PostgreSQL takes 65,535, and SQLite 32,766, or as Debian builds it 250,000."""
    there, asked = 1_200, 260_000
    placed(sql_store, "j1")
    engine = create_engine(url)
    with engine.begin() as conn:
        row = conn.execute(select(schema.nodes)).mappings().one()
        for n in range(1, there):
            fresh = {"id": f"j1-g1-{n}", "token": f"t-{n}", "candidate": n}
            conn.execute(insert(schema.nodes), {**row, **fresh, "requested_at_us": NOW + n})
    engine.dispose()
    found = sql_store.nodes.find([f"j1-g1-{n}" for n in reversed(range(asked))])
    assert [node.id for node in found] == [f"j1-g1-{n}" for n in range(there)], "oldest first"
    assert sql_store.jobs.users([f"j{n}" for n in range(asked)]) == {"j1": submission("j1").user}


def test_a_machine_keeps_the_address_of_its_network(store: Store) -> None:
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    for number, (told, kept) in enumerate((("", ""), ("10.0.0.1", "10.0.0.1"), ("", "10.0.0.1"))):
        listed = instance(node(store), private_host=told)
        store.instances.record_listing("aws", [listed], NOW + number * S, NOW + number * S)
        assert node(store).address.private_host == kept


def test_a_machine_is_known_by_the_key_that_its_cloud_told_first(store: Store) -> None:
    """Whoever is on it may be able to tell another one later."""
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    for number, told in enumerate(("", "ssh-ed25519 A", "ssh-ed25519 B", "")):
        listed = instance(node(store), host_public_key=told)
        store.instances.record_listing("aws", [listed], NOW + number * S, NOW + number * S)
        assert node(store).address.host_public_key == ("ssh-ed25519 A" if number else "")


def test_the_newest_machines_of_a_provider(store: Store) -> None:
    placed(store, "j1", new_node("j1", 1, 0), new_node("j1", 1, 1, requested_at_us=NOW + S))
    assert [one.id for one in store.nodes.of_provider("aws", 9)] == ["j1-g1-0", "j1-g1-1"]
    assert [one.id for one in store.nodes.of_provider("aws", 1)] == ["j1-g1-1"]
    assert store.nodes.of_provider("gcp", 9) == []
