"""Tokens and sessions of the dashboard."""

from __future__ import annotations

from spotd.store.logins import LoginSession, UserToken
from tests.sim.memory.transaction import Transaction


def add_token(tx: Transaction, token: UserToken) -> None:
    """See Store.logins.add_token."""
    tx.put(tx.tables.user_tokens, token.id, token)


def revoke_token(tx: Transaction, token_id: str) -> bool:
    """See Store.logins.revoke_token."""
    for session in [*tx.tables.login_sessions.values()]:
        if session.token_id == token_id:
            tx.drop(tx.tables.login_sessions, session.digest)
    if token_id not in tx.tables.user_tokens:
        return False
    tx.drop(tx.tables.user_tokens, token_id)
    return True


def begin_session(tx: Transaction, session: LoginSession) -> bool:
    """See Store.logins.begin_session."""
    for older in [*tx.tables.login_sessions.values()]:
        if older.expires_at_us <= session.began_at_us:
            tx.drop(tx.tables.login_sessions, older.digest)
    if session.token_id and session.token_id not in tx.tables.user_tokens:
        return False
    tx.put(tx.tables.login_sessions, session.digest, session)
    return True


def end_session(tx: Transaction, digest: str) -> None:
    """See Store.logins.end_session."""
    if digest in tx.tables.login_sessions:
        tx.drop(tx.tables.login_sessions, digest)


def end_provider_sessions(tx: Transaction) -> None:
    """See Store.logins.end_provider_sessions."""
    for session in [*tx.tables.login_sessions.values()]:
        if not session.token_id:
            tx.drop(tx.tables.login_sessions, session.digest)
