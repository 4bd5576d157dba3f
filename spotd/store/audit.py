"""The audit log of users' actions. Lines are added and read, never changed."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from spotd.domain.events import AuditOutcome
from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class AuditRow:
    """One line of the audit log. `uid` is -1 for an actor without one, such as spotd itself; rows
    of one `request` belong together."""

    at_us: int
    uid: int
    user: str
    action: str
    target: str
    outcome: AuditOutcome
    text: str = ""
    request: str = ""
    id: int = 0


_audit = schema.audit.c


class AuditRepository(Repository):
    """The audit log."""

    @write
    def add(self, tx: Transaction, row: AuditRow) -> None:
        """Append a line; its id is assigned here. Nothing changes or deletes a line later."""
        values = {
            "id": tx.take_ids(1),
            "at_us": row.at_us,
            "uid": row.uid,
            "user_name": row.user,
            "action": row.action,
            "target": row.target,
            "outcome": row.outcome.value,
            "text": row.text,
            "request": row.request,
        }
        tx.conn.execute(schema.audit.insert().values(**values))

    @read
    def rows(
        self, conn: Connection, since_us: int, after_id: int = 0, limit: int = 500
    ) -> list[AuditRow]:
        """Lines since `since_us` and after id `after_id`, oldest first; at most `limit`."""
        query = (
            select(schema.audit)
            .where(_audit.at_us >= since_us, _audit.id > after_id)
            .order_by(_audit.id)
            .limit(limit)
        )
        return [
            AuditRow(
                at_us=row.at_us,
                uid=row.uid,
                user=row.user_name,
                action=row.action,
                target=row.target,
                outcome=AuditOutcome(row.outcome),
                text=row.text,
                request=row.request,
                id=row.id,
            )
            for row in conn.execute(query)
        ]
