"""Tokens for the dashboard, and the sessions of people who have logged in there.

Only the SHA-256 of a token or of a session's cookie is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, delete, insert, select

from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction

MOST_SESSIONS = 20  # of one person; those that began before end


@dataclass(frozen=True)
class UserToken:
    """A token of a person. `account` and `role`: see `spotd.api_routes.person.Person`."""

    id: str
    name: str
    account: bool
    role: str
    digest: str
    made_at_us: int
    made_by: str
    expires_at_us: int


@dataclass(frozen=True)
class LoginSession:
    """The session of a person, valid until `expires_at_us`.

    `token_id` is the token of the login, "" after a login at an identity provider.
    """

    digest: str
    name: str
    account: bool
    role: str
    token_id: str
    began_at_us: int
    expires_at_us: int


@dataclass(frozen=True)
class EndedAccess:
    """A person's access that was ended: `sessions` of the person, and `tokens` that they made."""

    sessions: int
    tokens: list[UserToken]


_tokens, _sessions = schema.user_tokens.c, schema.login_sessions.c


class LoginRepository(Repository):
    """Tokens and sessions of the dashboard."""

    @write
    def add_token(self, tx: Transaction, token: UserToken) -> None:
        """Store a token."""
        tx.conn.execute(insert(schema.user_tokens).values(**vars(token)))

    @read
    def tokens(self, conn: Connection) -> list[UserToken]:
        """All tokens, by name and age; those that have expired, too."""
        query = select(schema.user_tokens).order_by(_tokens.name, _tokens.made_at_us, _tokens.id)
        return [_token(row) for row in conn.execute(query).mappings()]

    @read
    def token(self, conn: Connection, token_id: str) -> UserToken | None:
        """The token with that id."""
        query = select(schema.user_tokens).where(_tokens.id == token_id)
        row = conn.execute(query).mappings().one_or_none()
        return _token(row) if row else None

    @write
    def revoke_token(self, tx: Transaction, token_id: str) -> bool:
        """Delete a token and end the sessions that began with it; False if there is none."""
        tx.conn.execute(delete(schema.login_sessions).where(_sessions.token_id == token_id))
        where = _tokens.id == token_id
        return tx.conn.execute(delete(schema.user_tokens).where(where)).rowcount > 0

    @write
    def begin_session(self, tx: Transaction, session: LoginSession) -> bool:
        """Store a session; delete those that have expired, and a person's oldest.

        False if its token was revoked meanwhile.
        """
        expired = _sessions.expires_at_us <= session.began_at_us
        tx.conn.execute(delete(schema.login_sessions).where(expired))
        if session.token_id:
            token = select(_tokens.id).where(_tokens.id == session.token_id).with_for_update()
            if tx.conn.execute(token).one_or_none() is None:
                return False
        newest = (_sessions.began_at_us.desc(), _sessions.digest.desc())
        mine = select(_sessions.digest).where(_sessions.name == session.name).order_by(*newest)
        oldest = tx.conn.execute(mine).scalars().all()[MOST_SESSIONS - 1 :]
        tx.conn.execute(delete(schema.login_sessions).where(_sessions.digest.in_(oldest)))
        tx.conn.execute(insert(schema.login_sessions).values(**vars(session)))
        return True

    @read
    def find_session(self, conn: Connection, digest: str, now_us: int) -> LoginSession | None:
        """The session with that digest, unless it has expired."""
        where = (_sessions.digest == digest) & (_sessions.expires_at_us > now_us)
        row = conn.execute(select(schema.login_sessions).where(where)).mappings().one_or_none()
        if row is None:
            return None
        return LoginSession(**{**row, "account": bool(row["account"])})

    @write
    def end_session(self, tx: Transaction, digest: str) -> None:
        """Log out."""
        tx.conn.execute(delete(schema.login_sessions).where(_sessions.digest == digest))

    @write
    def end_access(self, tx: Transaction, name: str) -> EndedAccess:
        """End the sessions of a person, and revoke the tokens that this person has made.

        Sessions that began with those tokens end, too.
        """
        made = _tokens.made_by == name
        query = select(schema.user_tokens).where(made).order_by(_tokens.name, _tokens.id)
        tokens = [_token(row) for row in tx.conn.execute(query).mappings()]
        ids = [token.id for token in tokens]
        where = _sessions.name == name
        ended = tx.conn.execute(delete(schema.login_sessions).where(where)).rowcount
        tx.conn.execute(delete(schema.login_sessions).where(_sessions.token_id.in_(ids)))
        tx.conn.execute(delete(schema.user_tokens).where(_tokens.id.in_(ids)))
        return EndedAccess(ended, tokens)

    @write
    def end_token_sessions(self, tx: Transaction) -> None:
        """End all sessions that began with a token."""
        tx.conn.execute(delete(schema.login_sessions).where(_sessions.token_id != ""))

    @write
    def end_provider_sessions(self, tx: Transaction) -> None:
        """End all sessions that began at an identity provider."""
        tx.conn.execute(delete(schema.login_sessions).where(_sessions.token_id == ""))


def _token(row: RowMapping) -> UserToken:
    return UserToken(**{**row, "account": bool(row["account"])})
