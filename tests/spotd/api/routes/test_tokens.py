"""Tokens for the dashboard, and who the caller is; also for somebody whom the dashboard names."""

from __future__ import annotations

import os

import pytest

from spotd.api.http.permissions import NOBODY, Peer, Permissions, find_peer, peer_of
from spotd.api.http.refusals import ONE_BY_ONE
from spotd.api.http.route import Permission
from spotd.api.request.request import ApiError
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.api_routes.person import Person, parse_person
from spotd.base.errors import ExitCode, UserError
from tests.spotd.api.rig import Rig, story

ME = find_peer(os.getuid())


def make(rig: Rig, name: str, **body: object) -> dict[str, object]:
    return Client(rig.socket).call(routes.MAKE_TOKEN(name=name), body)


def test_a_token_is_shown_once_and_only_its_digest_is_stored(rig: Rig) -> None:
    made = make(rig, "daemon")
    token = str(made["token"])
    assert token.startswith(f"spotd_{made['id']}_")
    assert len(token.split("_")[2]) == 64
    assert (made["user"], made["role"], made["account"]) == ("daemon", "", True)
    [item] = Client(rig.socket).call(routes.LIST_TOKENS())["items"]
    assert "token" not in item
    assert item["made_by"] == ME.name
    assert not item["expired"]
    rig.clock.go_on(90 * 86_400)
    [item] = Client(rig.socket).call(routes.LIST_TOKENS())["items"]
    assert item["expired"]
    [*_, line] = [row for row in rig.store.audit.rows(0) if row.action == "user token"]
    assert (line.target, line.text) == ("daemon", f"id={made['id']} role=")
    assert token.split("_")[2] not in repr(rig.store.audit.rows(0))


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("eve@example.org", {}, "no account on the daemon's box"),
        ("eve@example.org", {"role": "root"}, "is no role"),
        ("spotd", {"role": "viewer"}, "not possible as a name"),
        ("root", {}, "not possible as a name"),
        ("root", {"role": "viewer"}, "not possible as a name"),
        ("Root", {"role": "viewer"}, "not possible as a name"),
        (ME.name, {"role": "viewer"}, "not possible as a name"),
        ("a b", {"role": "viewer"}, "not possible as a name"),
        ("x" * 101, {"role": "viewer"}, "not possible as a name"),
    ],
)
def test_what_is_wrong_with_a_token_is_named(
    rig: Rig, name: str, body: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        make(rig, name, **body)
    assert rig.store.logins.tokens() == []


def test_revoking_what_is_not_there(rig: Rig) -> None:
    with pytest.raises(UserError, match="there is no token") as caught:
        Client(rig.socket).call(routes.REVOKE_TOKEN(name="0123abcd"))
    assert caught.value.exit_code is ExitCode.NOT_FOUND


def test_the_caller_is_told_what_the_caller_may(rig: Rig) -> None:
    told = Client(rig.socket).call(routes.WHO_AM_I())
    assert (told["name"], told["permissions"]) == (ME.name, ["read", "change"])
    for role, permissions in (("viewer", ["read"]), ("admin", ["read", "change"])):
        client = Client(rig.socket, person=Person("eve@example.org", role=role))
        told = client.call(routes.WHO_AM_I())
        assert (told["name"], told["permissions"]) == ("eve@example.org", permissions)


def test_nobody_but_the_daemon_itself_speaks_for_others(rig: Rig) -> None:
    story(rig)
    rig.stop()
    rig.authority = Permissions(trusted=frozenset(), is_member=lambda *_: True)
    rig.start()
    client = Client(rig.socket, person=Person("eve@example.org", role="admin"))
    for endpoint in (routes.WHO_AM_I(), routes.CANCEL_JOB(job="gpt")):
        with pytest.raises(UserError, match=r"may not speak for eve@example\.org"):
            client.call(endpoint)
    lines = [row for row in rig.store.audit.rows(0) if row.action == "cancel"]
    assert [(row.user, row.outcome.value) for row in lines] == [(ME.name, "refused")]


def test_refusals_of_people_without_an_account_are_counted_apart(rig: Rig) -> None:
    story(rig)
    for name in ("eve@example.org", "viola@example.org"):
        client = Client(rig.socket, person=Person(name, role="viewer"))
        for _ in range(ONE_BY_ONE + 1):
            with pytest.raises(UserError, match="may read but not change"):
                client.call(routes.CANCEL_JOB(job="gpt"))
    users = [row.user for row in rig.store.audit.rows(0) if row.action == "cancel"]
    assert users.count("eve@example.org") == users.count("viola@example.org") == ONE_BY_ONE


def allowed(peer: Peer, *groups: str) -> list[str]:
    permissions = Permissions(
        viewers="spotd",
        trusted=frozenset(),
        is_member=lambda one, name: one.uid >= 0 and name in groups,
    )
    return [need.value for need in permissions.allowed(peer)]


def test_a_role_limits_an_account_and_gives_a_right_to_nobody_else() -> None:
    viewer, admin = Person("daemon", True, "viewer"), Person("daemon", True, "admin")
    groups = Person("daemon", True)
    assert allowed(peer_of(groups), "spotd-admin") == ["read", "change"]
    assert allowed(peer_of(viewer), "spotd-admin") == ["read"]
    assert allowed(peer_of(admin), "spotd-admin") == ["read", "change"]
    assert allowed(peer_of(admin), "spotd") == ["read"], "the groups count now"
    assert allowed(peer_of(admin)) == []
    assert allowed(peer_of(Person("nobody-here", True, "admin")), "spotd-admin") == []
    assert allowed(peer_of(Person("eve", role="admin"))) == ["read", "change"]
    assert allowed(peer_of(Person("root", role="viewer"))) == ["read"], "no account is meant"
    assert allowed(NOBODY) == []
    with pytest.raises(ApiError, match="no longer a user of the daemon's box"):
        Permissions().check(peer_of(Person("nobody-here", True)), Permission.READ)


def test_a_person_is_the_same_after_its_header() -> None:
    for person in (
        Person("ada"),
        Person("ada", True, "viewer"),
        Person("eve@example.org", False, "admin", "3f9a01c2"),
        Person("ä=&+%\r\n b@example.org", False, "admin"),
    ):
        assert parse_person(person.header()) == person
        assert "\n" not in person.header()
    for header in ("x", "name=", "name=a&role=root", "role=admin"):
        with pytest.raises(ValueError, match=r"."):
            parse_person(header)
