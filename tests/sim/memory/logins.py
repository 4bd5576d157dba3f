"""Tokens and sessions of the dashboard."""

from __future__ import annotations

from spotd.store.logins import MOST_SESSIONS, EndedAccess, LoginSession, UserToken
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
    mine = [older for older in tx.tables.login_sessions.values() if older.name == session.name]
    mine.sort(key=lambda older: (older.began_at_us, older.digest), reverse=True)
    for older in mine[MOST_SESSIONS - 1 :]:
        tx.drop(tx.tables.login_sessions, older.digest)
    tx.put(tx.tables.login_sessions, session.digest, session)
    return True


def end_session(tx: Transaction, digest: str) -> None:
    """See Store.logins.end_session."""
    if digest in tx.tables.login_sessions:
        tx.drop(tx.tables.login_sessions, digest)


def end_access(tx: Transaction, name: str) -> EndedAccess:
    """See Store.logins.end_access."""
    mine = [one.digest for one in tx.tables.login_sessions.values() if one.name == name]
    for digest in mine:
        tx.drop(tx.tables.login_sessions, digest)
    tokens = [token for token in tx.tables.user_tokens.values() if token.made_by == name]
    tokens.sort(key=lambda token: (token.name, token.id))
    for token in tokens:
        revoke_token(tx, token.id)
    return EndedAccess(len(mine), tokens)


def end_token_sessions(tx: Transaction) -> None:
    """See Store.logins.end_token_sessions."""
    for session in [*tx.tables.login_sessions.values()]:
        if session.token_id:
            tx.drop(tx.tables.login_sessions, session.digest)


def end_provider_sessions(tx: Transaction) -> None:
    """See Store.logins.end_provider_sessions."""
    for session in [*tx.tables.login_sessions.values()]:
        if not session.token_id:
            tx.drop(tx.tables.login_sessions, session.digest)
