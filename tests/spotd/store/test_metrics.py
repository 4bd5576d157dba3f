"""What metrics are counted from, on both databases."""

from __future__ import annotations

from providers.base import Notice, NoticeKind, Scope
from spotd.domain.events import Event
from spotd.domain.health import USAGE
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.store.metrics import SpentRow
from spotd.store.sql_store import SqlStore
from spotd.store.storage_costs import StorageCost
from tests.spotd.store.build import NOW, instance, move, new_node, node, placed, said, submit
from tests.spotd.store.test_node_history import STEP

KEY = new_node().offer.key
CLOUD = KEY.partition("/")[0]


def test_a_machine_that_was_taken_away(sql_store: SqlStore) -> None:
    placed(sql_store)
    sql_store.nodes.record_launched("j1-g1-0", "i-1", NOW + S)
    move(sql_store, "j1-g1-0", NodeState.BOOTING, NOW + S, chosen=True)
    saved = {"step": 1, "manifest": "m", "bytes": 7, "write_s": 3.0, "stage_s": 0.02}
    heard = (("hello", {"agent": "1", "wire": 1}), STEP, ("checkpoint", saved))
    sql_store.journal.record([said(*heard, heard_at_us=NOW + 60 * S)])
    sql_store.instances.record_listing(
        CLOUD, [instance(node(sql_store))], NOW + 90 * S, NOW + 90 * S
    )
    use = Event(USAGE, "", "j1-g1-0", data={"window_s": 300.0, "gpu": 0.5})
    sql_store.events.add("j1", use, NOW + 90 * S)
    told = Notice("p", NoticeKind.PREEMPT, NOW + 220 * S, instance_id="i-1")
    sql_store.instances.record_notices(CLOUD, [told], NOW + 100 * S)

    [row] = sql_store.metrics.read(NOW + 100 * S).pools
    assert (row.offer_key, row.outcome, row.reason, row.noticed) == (KEY, "launched", "", True)
    assert (row.count, row.seconds) == (1, 89.0)
    assert (row.provision.count, row.provision.total, row.notice.count) == (1, 60.0, 0)

    left = {"leave_reason": LeaveReason.PREEMPTED, "left_at_us": NOW + 101 * S}
    move(sql_store, "j1-g1-0", NodeState.TERMINATING, NOW + 101 * S, **left)
    found = sql_store.metrics.read(NOW + 102 * S)
    [row] = found.pools
    assert (row.reason, row.noticed, row.seconds) == ("preempted", True, 100.0)
    assert (row.notice.count, row.notice.total) == (1, 120.0)
    assert row.notice.below == [0, 0, 0, 0, 0, 1, 1]
    assert row.margin.count == 0  # nothing was given back
    [save] = found.saves
    assert (save.trigger, save.count, save.bytes, save.write.total) == ("unknown", 1, 7, 3.0)
    assert save.stall.count == 1
    assert found.saved_at_us == {"j1": NOW + 60 * S}
    assert found.usage["j1"] == [{"window_s": 300.0, "gpu": 0.5}]
    [spent] = found.spent
    assert spent.job_id == "j1"
    assert (spent.kind, spent.invoiced) == ("machines", False)
    assert spent.microusd > 0
    assert found.projects == {"j1": ""}
    assert sql_store.metrics.read(NOW + 2000 * S).usage == {}


def test_an_empty_record(sql_store: SqlStore) -> None:
    found = sql_store.metrics.read(NOW)
    assert (found.pools, found.saves, found.spent, found.rates) == ([], [], [], [])
    assert (found.recoveries, found.overdue_us) == ([], 0)


def test_a_refusal_counts_once_no_machine_can_come_of_the_request_any_more(
    sql_store: SqlStore,
) -> None:
    """Else it would be taken back where the first call's answer was lost, and that one worked."""
    placed(sql_store)
    move(sql_store, "j1-g1-0", NodeState.LAUNCHING, NOW + 9 * S, effect_armed_at_us=NOW + 9 * S)
    sql_store.nodes.record_launch_refused(
        "j1-g1-0", "QuotaError", "none", Scope.REGION, NOW + 10 * S
    )
    assert [row.outcome for row in sql_store.metrics.read(NOW + 11 * S).pools] == [""]
    sql_store.nodes.record_launched("j1-g1-0", "i-1", NOW + 12 * S)
    assert [row.outcome for row in sql_store.metrics.read(NOW + 13 * S).pools] == ["launched"]


def test_a_final_refusal_counts_at_once(sql_store: SqlStore) -> None:
    placed(sql_store)
    sql_store.nodes.record_launch_refused(
        "j1-g1-0", "QuotaError", "none", Scope.REGION, NOW + 10 * S
    )
    assert [row.outcome for row in sql_store.metrics.read(NOW + 11 * S).pools] == ["QuotaError"]


def test_checkpoints_and_data_are_told_apart_from_machines(sql_store: SqlStore) -> None:
    submit(sql_store)
    for number in (1, 2):
        sql_store.storage_costs.record(StorageCost("j1", number, 3 * number, 0, NOW))
    assert sql_store.metrics.read(NOW).spent == [SpentRow("j1", "carriage", False, 9)]
