"""Alembic's environment. `spotd db upgrade` gives it the connection, already in a transaction.

For writing a new revision, `-x url=...` names a database to compare with; CONTRIBUTING.md has the
commands.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from spotd.store.columns import metadata
from spotd.store.engine import Database


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_server_default=True,
        # SQLite rolls back DDL as well; and it can alter a table only by copying it.
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    url = context.get_x_argument(as_dictionary=True).get("url")
    if not url:
        raise SystemExit(
            "use `spotd db upgrade`, or name a database: alembic -x url=sqlite:///FILE"
        )
    database = Database(url)
    try:
        database.write(_run)
    finally:
        database.close()
