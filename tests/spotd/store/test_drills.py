"""Drills on record: one of a job at a time, and a node that one strikes says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.domain.events import Event
from spotd.domain.fault_drill import DrillEnd, DrillKind, FaultDrill, Findings
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.store.interface import Store
from tests.spotd.store.build import NOW, move, node, placed, said, submit

DRILL = FaultDrill("d1", "j1", DrillKind.KILL, "ada", NOW)
NODE = "j1-g1-0"


def aimed(store: Store) -> FaultDrill:
    placed(store)
    drill = replace(store.drills.add(DRILL), node_id=NODE, aimed_at_us=NOW + S)
    assert store.drills.update(drill)
    return drill


def test_two_drills_of_a_job_never_overlap(store: Store) -> None:
    submit(store)
    submit(store, "j2")
    assert store.drills.add(DRILL) == DRILL
    assert store.drills.add(replace(DRILL, asked_at_us=NOW + S)) == DRILL, "the same again"
    second = replace(DRILL, id="d2", asked_at_us=NOW + S)
    assert store.drills.add(second) == DRILL, "kept out"
    other = replace(second, job_id="j2")
    assert store.drills.add(other) == other
    ended = replace(DRILL, ended_at_us=NOW + S, end=DrillEnd.CALLED_OFF, text="why")
    assert store.drills.update(ended)
    third = replace(DRILL, id="d3", asked_at_us=NOW + 2 * S)
    assert store.drills.add(third) == third
    assert store.drills.rows("j1") == [ended, third]
    assert store.drills.rows(unfinished=True) == [other, third]


def test_it_ends_once_with_what_was_found(store: Store) -> None:
    drill = aimed(store)
    found = Findings(120, 118, 2, 4.5, 0.25, 1234)
    ended = replace(drill, struck_at_us=NOW + 2 * S, ended_at_us=NOW + 9 * S, found=found)
    ended = replace(ended, end=DrillEnd.PASSED)
    said = Event("drill", "it passed")
    assert store.drills.update(ended, said)
    again = replace(ended, end=DrillEnd.FAILED)
    assert not store.drills.update(again, said), "another daemon was first"
    assert store.drills.rows() == [ended]
    [row] = store.events.of_kinds("j1", ["drill"])
    assert (row.event, row.at_us) == (said, NOW + 9 * S), "with it, and once"


@pytest.mark.parametrize(
    ("kind", "struck", "leaves", "mark"),
    [
        (DrillKind.KILL, False, False, ""),
        (DrillKind.KILL, False, True, "kill"),
        (DrillKind.KILL, True, False, "kill"),  # that its program ended is still to be heard
        (DrillKind.AGENT, True, False, ""),
    ],
)
def test_a_node_that_stays_is_struck_by_no_drill_any_more(
    store: Store, kind: DrillKind, struck: bool, leaves: bool, mark: str
) -> None:
    drill = replace(aimed(store), kind=kind, struck_at_us=(NOW + 2 * S) * struck)
    assert node(store).drill == "kill"
    store.nodes.record_launched(NODE, "i-1", NOW)
    if leaves:
        why = {"leave_reason": LeaveReason.DRILL, "left_at_us": NOW + S}
        move(store, NODE, NodeState.TERMINATING, NOW + S, **why)
    store.drills.update(replace(drill, ended_at_us=NOW + 9 * S, end=DrillEnd.FAILED))
    assert node(store).drill == mark


def test_a_notice_that_a_drill_plays_is_none_of_its_cloud(store: Store) -> None:
    """Of how long clouds warn, and whether they do, it says nothing."""
    aimed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    notice = {"notice_id": "drill-d1", "kind": "preempt", "remaining_s": 120.0, "text": ""}
    store.journal.record([said(("notice", {**notice, "source": "drill"}))])
    assert [one.takes_machine for one in node(store).notices] == [True]
    why = {"leave_reason": LeaveReason.DRILL, "left_at_us": NOW + 90 * S}
    move(store, NODE, NodeState.TERMINATING, NOW + 90 * S, **why)
    [life] = store.node_history.machine_lives(0)
    assert (life.notice_us, life.interrupted, life.warning_s()) == (0, False, None)
    [stay] = store.node_history.fleet(0, NOW + 91 * S).stays
    assert stay.left is LeaveReason.DRILL
    real = {**notice, "notice_id": "n1", "source": "imds"}
    store.journal.record([said(("notice", real), first=2, heard_at_us=NOW + 70 * S)])
    [life] = store.node_history.machine_lives(0)
    assert life.notice_us, "its cloud's own is"
