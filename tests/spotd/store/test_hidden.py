"""What clouds, nodes and object stores say is on record without secrets: pages, alerts and backups
show the record."""

from __future__ import annotations

from providers.base import Notice, NoticeKind, Scope
from spotd.base.log import redactor
from spotd.domain.events import Event
from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store import columns
from spotd.store.journal_fields import MAX_TEXT
from spotd.store.sql_store import SqlStore
from tests.spotd.store.build import NOW, move, node, placed, said

CANARY = "canary-of-a-value-that-spotd-was-given"
LOOKS = ("ghr_canaryCANARY99", "sig=canaryCANARY99%3D", "AccountKey=canaryCANARY99==")
TEXT = f"refused {CANARY}, {' and '.join(LOOKS)}; the rest is told"


def on_record(store: SqlStore) -> str:
    """Every row of every table, whole: a row of SQLAlchemy's shows the ends of long texts alone."""

    def rows(table: str) -> list[tuple[object, ...]]:
        query = f"SELECT * FROM {table}"
        return store.session.database.read(
            lambda c: [tuple(row) for row in c.exec_driver_sql(query)]
        )

    return "\n".join(f"{name}: {row}" for name in columns.metadata.tables for row in rows(name))


def test_what_others_say_is_on_record_without_secrets(sql_store: SqlStore) -> None:
    store = sql_store
    redactor.register(CANARY)
    placed(store)
    placed(store, "j2")
    store.nodes.record_launch_refused("j2-g1-0", "Auth", TEXT, Scope.PROVIDER, NOW)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    move(store, "j1-g1-0", NodeState.BOOTING)
    store.nodes.record_effect_failed("j1-g1-0", EffectKind.TERMINATE, TEXT, NOW)
    store.market.record_provider("aws", TEXT, NOW)
    store.market.record_provider("aws", TEXT, NOW + 600 * S)  # now it is told
    notice = Notice("n1", NoticeKind.PREEMPT, NOW + S, "queue", "i-1", TEXT)
    store.instances.record_notices("aws", [notice], NOW)
    tail = {"tail": TEXT}
    store.journal.record(
        [
            said(
                ("setup", {"status": "failed", "code": 1, **tail}),
                ("warning", {"text": TEXT}),
                ("checkpoint_failed", {"step": 1, "error": TEXT}),
                ("exited", {"code": 1, "ranks": {"0": 1}, **tail}),
            )
        ]
    )
    store.events.add("j1", Event("ssh", TEXT, alert=True), NOW)
    alerts = store.alerts.due(NOW + 601 * S, 9)
    assert alerts
    store.alerts.mark(alerts, 0, NOW + 700 * S, TEXT)

    found = on_record(store)
    assert found.count("the rest is told") >= 9, "each of them is kept, but for its secrets"
    assert [line for line in found.splitlines() if CANARY in line or "canaryCANARY" in line] == []
    assert node(store).training.exit_tail.startswith(
        "refused [hidden], ghr_[hidden] and sig=[hidden]"
    )


def test_a_secret_that_the_cut_runs_through_is_hidden(sql_store: SqlStore) -> None:
    """What is left of it would look like none."""
    redactor.register(CANARY)
    placed(sql_store)
    entries: list[tuple[str, dict[str, object]]] = []
    for left in range(len(CANARY) - 1, 3, -4):  # of the secret before the cut
        text = "." * (MAX_TEXT - left) + CANARY
        entries += [
            ("warning", {"text": text}),
            ("checkpoint_failed", {"step": 1, "error": text}),
            ("checkpoint_failed", {"step": 1, "error": text[len("saving step 1 failed: ") :]}),
            ("setup", {"status": "failed", "code": 1, "tail": text}),
            ("exited", {"code": 1, "tail": text}),
        ]
    sql_store.journal.record([said(*entries)])
    found = on_record(sql_store)
    assert found.count("." * (MAX_TEXT - 100)) > len(entries) / 2, "it is kept, but for the secret"
    assert CANARY[:4] not in found
    assert all(len(row.event.text) <= MAX_TEXT for row in sql_store.events.rows("j1"))
