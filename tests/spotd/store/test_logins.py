"""Tokens and sessions of the dashboard, on both databases."""

from __future__ import annotations

import pytest

from spotd.domain.units import S
from spotd.store.interface import Store
from spotd.store.logins import MOST_SESSIONS, EndedAccess, LoginSession, UserToken
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


def test_a_persons_access_ends_with_the_tokens_that_they_made(store: Store) -> None:
    of_eve = UserToken("t2", "eve", False, "admin", "d2", NOW, "ada", NOW + 9 * S)
    for token in (TOKEN, of_eve):
        store.logins.add_token(token)
    begun = [
        LoginSession(digest, name, False, "admin", token_id, NOW, NOW + 5 * S)
        for digest, name, token_id in (
            ("s1", "ada", "t1"),
            ("s2", "ada", ""),
            ("s3", "eve", "t2"),
            ("s4", "eve", ""),
        )
    ]
    for one in begun:
        assert store.logins.begin_session(one)
    assert store.logins.end_access("ada") == EndedAccess(2, [of_eve])
    assert [store.logins.find_session(one.digest, NOW) for one in begun] == [
        None,
        None,
        None,
        begun[3],
    ]
    assert store.logins.tokens() == [TOKEN], "root made it"
    assert store.logins.end_access("ada") == EndedAccess(0, [])


def test_a_persons_newest_sessions_are_kept(store: Store) -> None:
    for number in range(MOST_SESSIONS + 2):
        began_us = NOW + number
        name = "eve" if number == 1 else "ada"
        begun = LoginSession(f"s{number}", name, True, "", "", began_us, NOW + 5 * S)
        assert store.logins.begin_session(begun)
    kept = [store.logins.find_session(f"s{n}", NOW) is not None for n in range(MOST_SESSIONS + 2)]
    assert kept == [False] + [True] * (MOST_SESSIONS + 1)


def test_sessions_of_tokens_end_apart(store: Store) -> None:
    store.logins.add_token(TOKEN)
    store.logins.begin_session(session("s1", "t1"))
    store.logins.begin_session(session("s2", ""))
    store.logins.end_token_sessions()
    assert store.logins.find_session("s1", NOW) is None
    assert store.logins.find_session("s2", NOW)


@pytest.mark.parametrize("account", [True, False])
def test_whether_it_is_an_account_is_kept(store: Store, account: bool) -> None:
    store.logins.begin_session(LoginSession("s", "eve", account, "", "", NOW, NOW + S))
    found = store.logins.find_session("s", NOW)
    assert found is not None
    assert found.account is account
