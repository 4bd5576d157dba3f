"""Shutting a user out: of the door, of machines, and out of the ownership of jobs."""

from __future__ import annotations

import os
import pwd
import threading
from urllib.parse import quote

import pytest

from spotd.api.http.permissions import Permissions, find_peer
from spotd.base.errors import ExitCode, UserError
from spotd.domain.events import Event
from spotd.domain.node import Node
from spotd.store.logins import LoginSession, UserToken
from spotd.store.users import DisabledUser
from tests.fixtures.path_client import PathClient
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.api.rig import JOB_FILE, Rig, story

ME = find_peer(os.getuid())
HEIR, OTHER = "daemon", "nobody"  # two that every machine has


@pytest.fixture
def node(rig: Rig) -> Node:
    """A machine of ada's job that can be reached."""
    found = rig.store.nodes.of_job(story(rig))[-1]
    rig.address(found, "127.0.0.9", 2222)
    return found


def shut_out(rig: Rig, name: str, uid: int = -1) -> None:
    rig.store.users.disable(DisabledUser(name, uid, rig.clock.now_us(), "root"))


def as_an_ordinary_admin(rig: Rig, asked: threading.Event | None = None) -> None:
    """The test's own user is otherwise trusted: root, or the daemon's own. `asked` is set when the
    door looks at his groups, the last that it looks at."""

    def is_member(*_: object) -> bool:
        if asked is not None:
            asked.set()
        return True

    rig.stop()
    rig.authority = Permissions(trusted=frozenset(), is_member=is_member)
    rig.start()


@pytest.mark.parametrize("how", ["name", "uid"])
def test_a_disabled_user_gets_nothing_not_even_to_look(
    rig: Rig, client: PathClient, how: str
) -> None:
    as_an_ordinary_admin(rig)
    rig.submit()
    assert client.get("/v1/jobs")["total"] == 1
    shut_out(rig, *((ME.name, -1) if how == "name" else ("an old name", ME.uid)))
    for ask in (lambda: client.get("/v1/jobs"), lambda: client.post("/v1/jobs/gpt/cancel")):
        with pytest.raises(UserError, match=f"{ME.name} is disabled") as caught:
            ask()
        assert caught.value.exit_code is ExitCode.AUTH
    assert [(row.user, row.outcome.value) for row in rig.store.audit.rows(0)] == [
        (ME.name, "refused")
    ] * 2


def test_who_is_disabled_while_he_waits_hears_no_more(rig: Rig, client: PathClient) -> None:
    inside = threading.Event()  # past the door: who is disabled before that is refused there
    as_an_ordinary_admin(rig, inside)
    rig.submit()
    start = client.get("/v1/events")["cursor"]
    heard: list[object] = []
    inside.clear()

    def wait() -> None:
        try:
            heard.append(client.get("/v1/events", after=start, wait_s=20))
        except UserError as error:
            heard.append(error.exit_code)

    thread = threading.Thread(target=wait)
    thread.start()
    assert inside.wait(LIMIT_S)
    shut_out(rig, ME.name)
    rig.store.events.add("", Event("news", "not for him"), rig.clock.now_us())
    thread.join(LIMIT_S)
    assert heard == [ExitCode.AUTH]
    assert rig.store.audit.rows(0) == [], "not at the door, which puts it on record"


def test_root_and_the_daemons_own_user_are_not_shut_out(rig: Rig, client: PathClient) -> None:
    shut_out(rig, ME.name, ME.uid)
    assert client.get("/v1/health")["ok"]
    with pytest.raises(UserError, match="cannot be disabled"):
        client.post("/v1/users/root/disable")


def test_each_login_has_a_key_of_its_own(rig: Rig, client: PathClient, node: Node) -> None:
    """Never the daemon's."""
    first, second = (client.post("/v1/jobs/gpt/ssh")["private_key"] for _ in range(2))
    assert "PRIVATE KEY" in first
    assert first != second
    inside = rig.hosts.inside[node.id, ME.name]
    assert len(set(inside)) == 2


def test_jobs_go_on_as_the_heirs_and_machines_forget_the_keys(
    rig: Rig, client: PathClient, node: Node
) -> None:
    rig.visitors.admit(rig.store, node, "ada", "ssh-ed25519 AAAA")
    with pytest.raises(UserError, match="ada has 1 unfinished jobs") as caught:
        client.post("/v1/users/ada/disable")
    assert "--transfer-to" in caught.value.try_
    for heir in ("ada", "no-such-user"):
        with pytest.raises(UserError, match="cannot take over jobs"):
            client.post("/v1/users/ada/disable", {"transfer_to": heir})
    assert rig.store.users.disabled() == []
    done = client.post("/v1/users/ada/disable", {"transfer_to": HEIR})
    assert (done["jobs"], done["machines"], done["unreachable"]) == ([node.job_id], [node.id], {})
    assert rig.hosts.inside == {}
    assert rig.store.jobs.owners() == {node.job_id: HEIR}
    assert rig.store.events.rows(node.job_id)[-1].event.text.startswith(
        f"now {HEIR}'s: ada was disabled"
    )
    [row] = [row for row in rig.store.audit.rows(0) if row.outcome.value == "done"]
    assert (row.action, row.target) == ("user disable", "ada")
    assert HEIR in row.text


def test_a_machine_that_does_not_answer_is_asked_until_it_does(
    rig: Rig, client: PathClient, node: Node
) -> None:
    rig.visitors.admit(rig.store, node, OTHER, "ssh-ed25519 AAAA")
    rig.hosts.away.add(node.id)
    done = client.post(f"/v1/users/{OTHER}/disable")
    assert done["unreachable"] == {node.id: "the machine does not answer"}
    assert rig.visitors.end_access_of_disabled_users(rig.store) == done["unreachable"]
    rig.hosts.away.clear()
    assert rig.visitors.end_access_of_disabled_users(rig.store) == {node.id: ""}
    assert rig.hosts.inside == {}
    assert rig.visitors.end_access_of_disabled_users(rig.store) == {}


def test_who_is_disabled_while_a_machine_lets_them_in_gets_no_key(
    rig: Rig, client: PathClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rig.hosts.admit

    def slow(*asked: object) -> None:
        real(*asked)  # type: ignore[arg-type]
        shut_out(rig, ME.name)

    monkeypatch.setattr(rig.hosts, "admit", slow)
    with pytest.raises(UserError, match="is disabled"):
        client.post("/v1/jobs/gpt/ssh")
    assert rig.hosts.inside == {}


def test_who_is_disabled_while_a_job_is_on_its_way_leaves_none(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rig.store.jobs.submit

    def late(*asked: object) -> object:
        shut_out(rig, ME.name)
        return real(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.store.jobs, "submit", late)
    with pytest.raises(UserError, match=f"{ME.name} is disabled") as caught:
        client.post("/v1/jobs", {"yaml": JOB_FILE})
    assert caught.value.exit_code is ExitCode.AUTH
    assert rig.store.jobs.owners() == {}


def test_a_machine_that_lets_nobody_in_says_so(rig: Rig, client: PathClient, node: Node) -> None:
    rig.hosts.away.add(node.id)
    with pytest.raises(UserError, match="accepts no login now: the machine does not answer"):
        client.post("/v1/jobs/gpt/ssh")


def test_users_are_listed_and_let_in_again(rig: Rig, client: PathClient, node: Node) -> None:
    client.post(f"/v1/users/{OTHER}/disable")
    items = client.get("/v1/users")["items"]
    found = {item["name"]: (item["disabled"], item["jobs"]) for item in items}
    assert found == {"ada": (False, 1), OTHER: (True, 0)}
    client.post(f"/v1/users/{OTHER}/enable")
    assert [item["name"] for item in client.get("/v1/users")["items"]] == ["ada"]
    with pytest.raises(UserError, match="is not disabled") as caught:
        client.post(f"/v1/users/{OTHER}/enable")
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    for name in ("spotd", "-x", "a b"):
        with pytest.raises(UserError, match="there is no user"):
            client.post(f"/v1/users/{quote(name)}/disable")
    assert pwd.getpwnam(OTHER)


def test_a_person_without_an_account_is_disabled_and_logged_out(
    rig: Rig, client: PathClient
) -> None:
    """Known by a token, by a session, or not at all: a provider may send them at any time."""
    now_us, ends_us = rig.clock.now_us(), rig.clock.now_us() + 10**12
    logins = rig.store.logins
    logins.add_token(UserToken("t1", "eve@x", False, "admin", "d", now_us, "ada", ends_us))
    for digest, name, token_id in (("s1", "eve@x", "t1"), ("s2", "eve@x", ""), ("s3", "bob@x", "")):
        session = LoginSession(digest, name, False, "admin", token_id, now_us, ends_us)
        assert logins.begin_session(session)
    done = client.post("/v1/users/eve@x/disable")
    assert (done["disabled"], done["known"], done["sessions"]) == (True, True, 2)
    assert [logins.find_session(digest, now_us) is None for digest in ("s1", "s2")] == [True] * 2
    assert logins.find_session("s3", now_us)
    assert client.post("/v1/users/bob@x/disable")["known"]
    assert logins.find_session("s3", now_us) is None
    assert client.post("/v1/users/nobody-yet@x/disable")["known"] is False
    names = [row.name for row in rig.store.users.disabled()]
    assert names == ["bob@x", "eve@x", "nobody-yet@x"]


def test_tokens_that_a_disabled_admin_has_made_are_void(rig: Rig, client: PathClient) -> None:
    now_us, ends_us = rig.clock.now_us(), rig.clock.now_us() + 10**12
    logins = rig.store.logins
    for token_id, maker in (("t1", OTHER), ("t2", "ada")):
        token = UserToken(token_id, "made-up@x", False, "admin", "d", now_us, maker, ends_us)
        logins.add_token(token)
        session = LoginSession(
            f"s-{token_id}", "made-up@x", False, "admin", token_id, now_us, ends_us
        )
        assert logins.begin_session(session)
    done = client.post(f"/v1/users/{OTHER}/disable")
    assert [(item["id"], item["user"]) for item in done["revoked_tokens"]] == [("t1", "made-up@x")]
    assert [token.id for token in logins.tokens()] == ["t2"]
    assert logins.find_session("s-t1", now_us) is None
    assert logins.find_session("s-t2", now_us)
