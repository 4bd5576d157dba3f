"""Who did what, who is shut out, and whom machines let in."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from spotd.domain.states import NodeState
from spotd.store.audit import AuditRow
from spotd.store.columns import clean
from spotd.store.engine import BrokenRuleError
from spotd.store.users import DisabledUser, check_heirless, transferred
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def add_audit(tx: Transaction, row: AuditRow) -> None:
    """See Store.audit.add."""
    words = {name: clean(getattr(row, name)) for name in ("user", "target", "text", "request")}
    tx.append(tx.tables.audit, replace(row, id=tx.take_ids(1), **words))


def audit(tables: Tables, since_us: int, after_id: int, limit: int) -> list[AuditRow]:
    """See Store.audit.rows."""
    rows = (row for row in tables.audit if row.at_us >= since_us and row.id > after_id)
    return list(islice(rows, limit))


def job_owners(tables: Tables) -> dict[str, str]:
    """See Store.jobs.owners."""
    return {job: tables.submissions[job].user for job in sorted(tables.unfinished.values())}


def disabled_users(tables: Tables) -> list[DisabledUser]:
    """See Store.users.disabled."""
    return [tables.disabled[name] for name in sorted(tables.disabled)]


def disable_user(tx: Transaction, row: DisabledUser) -> list[str]:
    """See Store.users.disable."""
    tables = tx.tables
    moved = [job for job, user in job_owners(tables).items() if user == row.name]
    if not row.successor:
        check_heirless(row, moved)
    tx.put(tables.disabled, row.name, row)
    for job_id in moved:
        new = replace(tables.submissions[job_id], user=row.successor)
        tx.put(tables.submissions, job_id, new)
        tx.event(job_id, transferred(row), row.disabled_at_us)
    return moved


def enable_user(tx: Transaction, name: str) -> bool:
    """See Store.users.enable."""
    known = name in tx.tables.disabled
    tx.drop(tx.tables.disabled, name)
    return known


def add_admission(tx: Transaction, node_id: str, user: str, at_us: int) -> None:
    """See Store.users.add_admission."""
    if node_id not in tx.tables.nodes:
        raise BrokenRuleError(f"there is no node {node_id}")
    tx.put(tx.tables.admissions, (node_id, user), (at_us, 0))


def shut_out(tables: Tables) -> list[tuple[str, str]]:
    """See Store.users.admitted_though_disabled."""
    return sorted(
        (node_id, user)
        for (node_id, user), (_, dismissed_at_us) in tables.admissions.items()
        if user in tables.disabled
        and not dismissed_at_us
        and tables.nodes[node_id].state is not NodeState.GONE
    )


def record_dismissed(tx: Transaction, node_id: str, user: str, at_us: int) -> None:
    """See Store.users.record_dismissed."""
    admitted_at_us, _ = tx.tables.admissions.get((node_id, user), (at_us + 1, 0))
    if admitted_at_us <= at_us:
        tx.put(tx.tables.admissions, (node_id, user), (admitted_at_us, at_us))
