"""Tokens and sessions of the dashboard, on both databases."""

from __future__ import annotations

import pytest

from spotd.domain.units import S
from spotd.store.interface import Store
from spotd.store.logins import LoginSession, UserToken
from tests.spotd.store.build import NOW

TOKEN = UserToken("t1", "ada", True, "viewer", "d1", NOW, "root", NOW + 9 * S)


def session(digest: str, token_id: str, ends_us: int = NOW + 5 * S) -> LoginSession:
    return LoginSession(digest, "ada", True, "viewer", token_id, NOW, ends_us)


def test_a_token_comes_back_as_it_was(store: Store) -> None:
    store.logins.add_token(TOKEN)
    assert store.logins.token("t1") == TOKEN
    assert store.logins.tokens() == [TOKEN]
    assert store.logins.token("t2") is None


def test_a_session_ends_with_its_token_and_no_other_does(store: Store) -> None:
    store.logins.add_token(TOKEN)
    mine, other = session("s1", "t1"), session("s2", "")
    assert store.logins.begin_session(mine)
    assert store.logins.begin_session(other)
    assert store.logins.find_session("s1", NOW) == mine
    assert store.logins.revoke_token("t1")
    assert store.logins.find_session("s1", NOW) is None
    assert store.logins.find_session("s2", NOW) == other
    assert not store.logins.revoke_token("t1")
    assert not store.logins.begin_session(session("s3", "t1")), "revoked meanwhile"
    store.logins.end_provider_sessions()
    assert store.logins.find_session("s2", NOW) is None


def test_a_session_ends_in_time_and_is_deleted_with_the_next(store: Store) -> None:
    store.logins.begin_session(session("s1", ""))
    assert store.logins.find_session("s1", NOW + 5 * S - 1)
    assert store.logins.find_session("s1", NOW + 5 * S) is None
    later = LoginSession("s2", "eve", False, "admin", "", NOW + 6 * S, NOW + 9 * S)
    store.logins.begin_session(later)
    assert store.logins.find_session("s1", NOW) is None
    store.logins.end_session("s2")
    assert store.logins.find_session("s2", NOW) is None


@pytest.mark.parametrize("account", [True, False])
def test_whether_it_is_an_account_is_kept(store: Store, account: bool) -> None:
    store.logins.begin_session(LoginSession("s", "eve", account, "", "", NOW, NOW + S))
    found = store.logins.find_session("s", NOW)
    assert found is not None
    assert found.account is account
