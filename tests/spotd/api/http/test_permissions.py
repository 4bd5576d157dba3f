"""Who may do what, route by route, through the real door; and what the audit says of it."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Mount, Route

from spotd.api.http.app import make_app
from spotd.api.http.auth_middleware import AuthMiddleware
from spotd.api.http.permissions import (
    NOBODY,
    Peer,
    Permissions,
    find_peer,
    in_group,
)
from spotd.api.http.refusals import ONE_BY_ONE
from spotd.api.http.route import Permission
from spotd.api.http.route_table import BY_KEY
from spotd.api.request.request import ApiError
from spotd.base.errors import ExitCode, UserError
from spotd.domain.events import AuditOutcome
from spotd.store.audit import AuditRow
from spotd.store.errors import StoreUnavailableError
from tests.fixtures.path_client import PathClient
from tests.spotd.api.http.test_app import raw
from tests.spotd.api.rig import JOB_FILE, Rig, story

ME = find_peer(os.getuid())
CHANGES = sorted(key for key, row in BY_KEY.items() if row.permission is Permission.CHANGE)
READS = sorted(key for key, row in BY_KEY.items() if row.permission is Permission.READ)


def groups(*mine: str, **settings: str) -> Permissions:
    """The test's own user in these groups, and trusted for nothing else."""
    return Permissions(
        **settings, trusted=frozenset(), is_member=lambda peer, name: peer == ME and name in mine
    )


def door(rig: Rig, authority: Permissions) -> Rig:
    rig.stop()
    rig.authority = authority
    return rig.start()


def lines(rig: Rig) -> list[tuple[str, str, str, str]]:
    """Who, what, to what, with what outcome."""
    rows = rig.store.audit.rows(0)
    assert all(row.at_us == rig.clock.now_us() and row.uid in (ME.uid, -1) for row in rows)
    return [(row.user, row.action, row.target, row.outcome.value) for row in rows]


def path_of(route: str) -> str:
    return route.replace("{job}", "gpt").replace("{digest}", "0" * 64).replace("{name}", "NAME")


# --- the table


def test_every_route_of_the_application_is_in_the_table(rig: Rig) -> None:
    found = set()
    for route in make_app(rig.context(), Permissions()).routes:
        assert isinstance(route, Route)
        methods = route.methods or set()
        implied = {"HEAD"} if ("HEAD", route.path) not in BY_KEY else set()  # of a GET
        found |= {(method, route.path) for method in methods - implied}
    assert found == set(BY_KEY)
    actions = [row.action for row in BY_KEY.values() if row.action]
    assert len(set(actions)) == len(actions)


@pytest.mark.parametrize(
    "route", [Route("/v1/new", lambda _: Response(), methods=["POST"]), Mount("/m", routes=[])]
)
def test_a_route_outside_the_table_does_not_even_start(rig: Rig, route: Any) -> None:
    with pytest.raises(ValueError, match=r"not a route"):
        AuthMiddleware(rig.server, rig.context(), Permissions(), [route], lambda *_: Response())  # type: ignore[arg-type]


@pytest.mark.parametrize(("verb", "route"), CHANGES)
def test_a_viewer_changes_nothing(rig: Rig, verb: str, route: str) -> None:
    """403, the group by name, on record, and nothing done."""
    story(rig)
    door(rig, groups("spotd"))
    before = (rig.store.jobs.rows(), len(rig.store.events.rows(None)), list(rig.objects.list("")))
    status, data = raw(rig, verb, path_of(route))
    assert status == 403
    assert data["error"]["code"] == "auth"
    assert "not in the group spotd-admin" in data["error"]["text"]
    assert f"usermod -aG spotd-admin {ME.name}" in data["error"]["try"]
    assert (
        rig.store.jobs.rows(),
        len(rig.store.events.rows(None)),
        list(rig.objects.list("")),
    ) == before
    [line] = lines(rig)
    assert (line[0], line[1], line[3]) == (ME.name, BY_KEY[verb, route].action, "refused")


@pytest.mark.parametrize(("verb", "route"), READS)
def test_a_viewer_looks_at_everything_else(rig: Rig, verb: str, route: str) -> None:
    story(rig)
    door(rig, groups("spotd"))
    assert raw(rig, verb, path_of(route))[0] not in (401, 403, 500)
    assert lines(rig) == []


@pytest.mark.parametrize(("verb", "route"), sorted(BY_KEY))
def test_who_is_in_no_group_that_is_asked_for_gets_nothing(rig: Rig, verb: str, route: str) -> None:
    door(rig, groups("users", viewers="ml-viewers"))
    assert raw(rig, verb, path_of(route))[0] == 403
    [line] = lines(rig)
    assert line[3] == "refused"


def test_a_path_that_no_database_could_store_is_refused_and_on_record_all_the_same(
    rig: Rig,
) -> None:
    door(rig, groups("users", viewers="ml-viewers"))
    assert raw(rig, "GET", "/v1/jobs/a%00b")[0] == 403
    assert lines(rig) == [(ME.name, "GET /v1/jobs/ab", "ab", "refused")]


@pytest.mark.parametrize(("verb", "route"), CHANGES)
def test_each_change_of_an_admin_is_on_record_before_and_after(
    rig: Rig, verb: str, route: str
) -> None:
    """Whatever becomes of it."""
    door(rig, groups("spotd-admin", viewers="ml-viewers"))
    assert raw(rig, verb, path_of(route))[0] != 403
    first, second = lines(rig)
    target = "/".join(part for part in path_of(route).split("/") if part not in route.split("/"))
    assert first == (ME.name, BY_KEY[verb, route].action, target, "asked")
    assert second[:3] == first[:3]
    assert second[3] in ("done", "refused", "failed")


# --- who is who


@pytest.mark.parametrize(
    ("mine", "settings", "look", "change"),
    [
        ((), {}, True, False),
        (("spotd-admin",), {}, True, True),
        ((), {"viewers": "v"}, False, False),
        (("v",), {"viewers": "v"}, True, False),
        (("spotd-admin",), {"viewers": "v"}, True, True),
        (("spotd-admin",), {"admins": "ops"}, True, False),
        (("ops",), {"admins": "ops", "viewers": "v"}, True, True),
    ],
)
def test_groups_decide(
    mine: tuple[str, ...], settings: dict[str, str], look: bool, change: bool
) -> None:
    authority = groups(*mine, **settings)
    for need, allowed in ((Permission.READ, look), (Permission.CHANGE, change)):
        if allowed:
            authority.check(ME, need)
        else:
            with pytest.raises(ApiError, match="not in the group"):
                authority.check(ME, need)


def test_root_and_the_daemons_own_user_need_no_group() -> None:
    nobody = Permissions(is_member=lambda *_: False)
    for uid in (0, os.geteuid()):
        nobody.check(find_peer(uid), Permission.CHANGE)
    with pytest.raises(ApiError):
        nobody.check(Peer(4_000_000, "stranger"), Permission.CHANGE)


def test_whom_the_kernel_does_not_vouch_for_gets_nothing() -> None:
    everybody = Permissions(is_member=lambda *_: True)
    for need in Permission:
        with pytest.raises(ApiError, match="unix socket only"):
            everybody.check(NOBODY, need)


def test_groups_are_those_of_this_machine() -> None:
    """The primary one and the others; a group that is not there has nobody."""
    first = next(g for g in grp.getgrall() if g.gr_mem and _exists(g.gr_mem[0]))
    user = pwd.getpwnam(first.gr_mem[0])
    assert in_group(Peer(user.pw_uid, user.pw_name), first.gr_name)
    own = grp.getgrgid(pwd.getpwuid(os.getuid()).pw_gid).gr_name
    assert in_group(ME, own)
    assert not in_group(ME, "no-such-group")
    assert not in_group(Peer(4_000_000, "uid:4000000"), own)
    assert find_peer(4_000_000).name == "uid:4000000"


def _exists(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


# --- the record


@pytest.fixture
def admin(rig: Rig) -> PathClient:
    return PathClient(rig.socket)


def test_the_record_names_what_came_of_it(rig: Rig, admin: PathClient) -> None:
    job = admin.post("/v1/jobs", {"yaml": JOB_FILE})
    admin.post("/v1/jobs/gpt/pause")
    with pytest.raises(UserError, match="no machine"):
        admin.post("/v1/jobs/gpt/ssh")
    rows = [row for row in rig.store.audit.rows(0) if row.outcome is not AuditOutcome.ASKED]
    told = [(row.action, row.target, row.outcome.value, row.text) for row in rows]
    assert told[0] == ("run", "", "done", f"name=gpt id={job['id']}")
    assert told[1] == ("pause", "gpt", "done", f"id={job['id']}")
    assert told[2][:3] == ("ssh", "gpt", "refused")
    assert "no machine" in told[2][3]
    requests = [row.request for row in rig.store.audit.rows(0)]
    assert len(requests) == 6
    assert len(set(requests)) == 3


def test_a_key_that_is_handed_out_is_on_record_without_the_key(rig: Rig, admin: PathClient) -> None:
    node = rig.store.nodes.of_job(story(rig))[-1]
    rig.address(node, "127.0.0.9", 2222)
    admin.post("/v1/jobs/gpt/ssh")
    last = rig.store.audit.rows(0)[-1]
    assert (last.action, last.outcome, last.text) == (
        "ssh",
        AuditOutcome.DONE,
        f"node_id={node.id}",
    )
    assert "PRIVATE" not in repr(rig.store.audit.rows(0))


def test_what_cannot_be_put_on_record_is_not_done(
    rig: Rig, admin: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit()

    monkeypatch.setattr(rig.store.audit, "add", _away)
    with pytest.raises(UserError, match="the disk is full"):
        admin.post("/v1/jobs/gpt/cancel")
    job = rig.store.jobs.find("gpt")
    assert job is not None
    assert job.desired.value == "run"


def test_a_bug_is_on_record_as_one(
    rig: Rig, admin: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.store.jobs, "set_desired", broken)
    with pytest.raises(UserError, match="the daemon failed"):
        admin.post("/v1/jobs/gpt/cancel")
    assert [line[3] for line in lines(rig)] == ["asked", "failed"]


def test_who_is_refused_again_and_again_does_not_fill_the_disk(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a minute are on record one by one, and of the others how many there were."""
    rig.submit()
    door(rig, groups("spotd"))
    for _ in range(ONE_BY_ONE + 7):
        assert raw(rig, "POST", "/v1/jobs/gpt/cancel")[0] == 403
    assert lines(rig) == [(ME.name, "cancel", "gpt", "refused")] * ONE_BY_ONE
    rig.clock.go_on(60.0)
    with monkeypatch.context() as patch:
        patch.setattr(rig.store.audit, "add", _away)
        assert raw(rig, "GET", "/v1/jobs")[0] == 200
    assert raw(rig, "GET", "/v1/jobs")[0] == 200
    last = rig.store.audit.rows(0)[-1]
    assert (last.user, last.action, last.outcome.value) == (ME.name, "refusals", "refused")
    assert last.text == "7 more in one minute, the last of them: cancel"
    for _ in range(2):
        rig.clock.go_on(60.0)
        assert raw(rig, "POST", "/v1/jobs/gpt/cancel")[0] == 403
    assert len(rig.store.audit.rows(0)) == ONE_BY_ONE + 3, "one by one again, and no number of none"


def _away(_row: AuditRow) -> None:
    raise StoreUnavailableError("the disk is full")


def test_a_viewer_is_told_by_spotctl(rig: Rig) -> None:
    rig.submit()
    client = PathClient(door(rig, groups("spotd")).socket)
    assert client.get("/v1/jobs")["total"] == 1
    with pytest.raises(UserError, match="may read but not change") as caught:
        client.post("/v1/jobs/gpt/cancel")
    assert caught.value.exit_code is ExitCode.AUTH


def test_the_audit_is_read_by_pages(
    rig: Rig, admin: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.api.routes.events.PAGE", 2)
    row = AuditRow(rig.clock.now_us(), 7, "ada", "cancel", "gpt", AuditOutcome.REFUSED, "no")
    for at in range(3):
        rig.store.audit.add(dataclasses.replace(row, text=str(at)))
    rig.store.audit.add(dataclasses.replace(row, at_us=rig.ago(7200), text="old"))
    page = admin.get("/v1/audit", since_s=3600)
    assert [item["text"] for item in page["items"]] == ["0", "1"]
    page = admin.get("/v1/audit", since_s=3600, after=page["cursor"])
    assert ([item["text"] for item in page["items"]], page["cursor"]) == (["2"], "")
