"""Names of people who log in."""

from __future__ import annotations

import os
import pwd

import pytest

from spotd.api_routes.person import is_person, uid_of


def test_names_that_are_possible_and_not() -> None:
    for name in ("ada", "ada@example.org", "a.b_c+d-e@x", "0", "daemon", "x" * 100):
        assert is_person(name), name
    for name in ("", "-x", "a b", "a/b", "ro\x00ot", "ä", "x" * 101, "root", "Root", "spotd"):
        assert not is_person(name), name


def test_the_daemons_own_user_is_no_person(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = pwd.getpwnam("daemon").pw_uid
    monkeypatch.setattr(os, "geteuid", lambda: daemon)
    assert not is_person("daemon")
    assert is_person("nobody")


def test_an_account_has_a_uid_and_others_have_none() -> None:
    assert uid_of("root") == 0
    assert [uid_of(name) for name in ("ada@example.org", "ro\x00ot")] == [-1, -1]
