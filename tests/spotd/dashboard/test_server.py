"""Who gets in: who knows the address, by a page of ours; and all that they can do is look."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spotd.api.http.permissions import Peer, Permissions
from spotd.api_client.client import Target
from spotd.base.errors import UserError
from spotd.dashboard.api_cache import ApiCache
from spotd.dashboard.server import HEADERS, start_server
from tests.spotd.api.rig import Rig, story
from tests.spotd.dashboard.reading import ask, read

PAGES = ("", "prices", "events")


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    """The address of pages that no test here changes."""
    rig = Rig().start()
    cache = ApiCache(Target(socket=str(rig.socket)))
    server = start_server(cache)
    yield server.url
    server.stop()
    cache.close()
    rig.close()


def port(url: str) -> int:
    found = urlsplit(url).port
    assert found is not None
    return found


@pytest.mark.parametrize("path", ["/", "/x/", "/favicon.ico", "//", "/%00/"])
def test_without_the_secret_nothing_is_told(shared: str, path: str) -> None:
    reply = ask(shared, path)
    assert reply.status == 403
    assert "spotctl dashboard" in reply.text
    assert "deployment" not in reply.text


def test_a_secret_that_is_almost_right_is_wrong(shared: str) -> None:
    path = urlsplit(shared).path
    for wrong in (path[:-2] + "/", path.upper(), path.rstrip("/") + "x/"):
        assert ask(shared, wrong).status == 403
    assert ask(shared, path).status == 200


def test_each_start_has_another_secret(rig: Rig, url: str) -> None:
    cache = ApiCache(Target(socket=str(rig.socket)))
    other = start_server(cache)
    try:
        path = urlsplit(url).path
        assert len(path) > 40
        assert urlsplit(other.url).path != path
        assert ask(other.url, path).status == 403
    finally:
        other.stop()
        cache.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1", "[::1]:PORT"])
def test_another_name_that_leads_here_gets_nothing(shared: str, host: str) -> None:
    """As of DNS rebinding: the name is the attacker's, the address is ours."""
    assert ask(shared, Host=host.replace("PORT", str(port(shared)))).status == 421


def test_its_own_names_are_answered(shared: str) -> None:
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{port(shared)}"
        assert ask(shared, Host=host, Origin=f"http://{host}").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_others_may_not_ask(shared: str, origin: str) -> None:
    assert ask(shared, Origin=origin).status == 403


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),  # a link that was clicked
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_what_browsers_say_of_themselves_counts(
    shared: str, site: str, mode: str, status: int
) -> None:
    assert ask(shared, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode).status == status


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_there_is_nothing_but_get(shared: str, verb: str) -> None:
    reply = ask(shared, verb=verb)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path", ["static/server.py", "static/..%2fserver.py", "static/", "job/", "x"]
)
def test_no_other_file_or_page(shared: str, path: str) -> None:
    assert ask(shared, path).status == 404


def test_every_reply_says_what_a_browser_must_not_do(shared: str) -> None:
    for reply in (
        ask(shared),
        ask(shared, "/"),
        ask(shared, Host="x"),
        ask(shared, "static/dash.js"),
    ):
        for name, text in HEADERS.items():
            assert reply.headers[name.lower()] == text
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_who_only_connects_keeps_nobody_out(shared: str) -> None:
    """As everybody on this machine can, without the secret."""
    idle = [socket.create_connection(("127.0.0.1", port(shared)), 10) for _ in range(120)]
    assert ask(shared).status == 200
    for one in idle:
        one.close()


def test_it_listens_on_loopback_alone(shared: str) -> None:
    rows = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")).splitlines()
    listening = [line.split()[1] for line in rows if line.split()[3] == "0A"]
    mine = [one for one in listening if int(one.split(":")[1], 16) == port(shared)]
    assert mine == [f"0100007F:{port(shared):04X}"]


def test_pages_have_no_address_of_others_and_no_code_in_them(rig: Rig, url: str) -> None:
    for path in (*PAGES, f"job/{story(rig)}"):
        page = read(url, path)
        for tag, given in page.tags:
            assert not {"style", "srcset"} & given.keys(), tag
            assert not [name for name in given if name.startswith("on")], tag
            for name in ("href", "src", "action"):
                at = given.get(name) or "#"
                assert at.startswith(("#", urlsplit(url).path)), (tag, at)
        assert {tag for tag, _ in page.tags} & {"style", "iframe", "object", "base"} == set()
    for name in ("dash.css", "dash.js"):
        assert not re.search(
            r"https?://|@import|url\(|innerHTML|eval", ask(url, f"static/{name}").text
        )


def test_a_port_that_is_taken_is_told(rig: Rig) -> None:
    cache = ApiCache(Target(socket=str(rig.socket)))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1") as caught:
            start_server(cache, other.getsockname()[1])
    assert "--port" in caught.value.try_
    cache.close()


def only(group: str) -> Permissions:
    """Nobody is trusted, and everybody is a member of `group` alone."""

    def is_member(_: Peer, name: str) -> bool:
        return name == group

    return Permissions(viewers="viewers", trusted=frozenset(), is_member=is_member)


def test_who_may_only_look_sees_it_all_and_others_are_told_why_not(rig: Rig, url: str) -> None:
    job_id = story(rig)
    for group, seen in (("viewers", True), ("nobody", False)):
        rig.stop()
        rig.authority = only(group)
        rig.start()
        for path in (*PAGES, f"job/{job_id}"):
            text = read(url, path).text
            assert ("not in the group viewers" in text) is not seen, path
            assert "not in the group spotd-admin" not in text  # nothing was asked that changes
        assert ("gpt" in read(url).text) is seen
