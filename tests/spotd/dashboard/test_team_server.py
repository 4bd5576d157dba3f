"""The team's dashboard: who gets in, what each may do there, and whose forms count."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme

from spotd.api.routes.tokens import digest_of
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base import connection_limit
from spotd.base.connection_limit import MOST, MOST_HALF_OPEN_OF_ADDRESS, TlsListener
from spotd.base.errors import UserError
from spotd.dashboard import team_server
from spotd.dashboard.session import LOGINS
from spotd.domain.events import AuditOutcome
from spotd.store.errors import StoreUnavailableError
from spotd.store.logins import UserToken
from spotd.store.users import DisabledUser
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.api.rig import SPOT, Rig, story
from tests.spotd.dashboard.team import Team, Visit

MakeTeam = Callable[..., Team]


@pytest.fixture
def make_team(rig: Rig) -> Iterator[MakeTeam]:
    made: list[Team] = []

    def make(**settings: Any) -> Team:
        made.append(Team(rig, **settings))
        return made[-1]

    yield make
    for team in made:
        team.stop()


@pytest.fixture
def team(make_team: MakeTeam) -> Team:
    return make_team()


def audit(rig: Rig, action: str) -> list[tuple[str, str, str]]:
    """(user, outcome, text) of each line about an action."""
    rows = rig.store.audit.rows(0)
    return [(row.user, row.outcome.value, row.text) for row in rows if row.action == action]


def desired(rig: Rig, job_id: str) -> str:
    job = rig.store.jobs.find(job_id)
    assert job is not None
    return job.desired.value


@pytest.mark.parametrize("path", ["/", "/prices", "/events", "/job/gpt", "/job/gpt/cancel"])
def test_without_a_login_nothing_is_told(team: Team, path: str) -> None:
    story(team.rig)
    reply = team.visit().get(path)
    assert (reply.status, reply.text) == (303, "")
    assert reply.headers["location"].startswith("/login")
    assert team.visit().get(path, Sec_Fetch_Mode="cors").status == 401, "a script's request"


def test_a_token_logs_in_and_the_cookie_is_for_this_site_alone(team: Team) -> None:
    story(team.rig)
    visit = team.visit()
    reply = visit.post("/login", {"token": team.token("ada", "viewer"), "next": "/job/gpt"})
    assert (reply.status, reply.headers["location"]) == (303, "/job/gpt")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Max-Age=43200" in cookie
    page = visit.get("/job/gpt")
    assert page.status == 200
    assert "ada" in page.text
    assert str(team.rig.socket) not in page.text, "the box's own paths are no help elsewhere"
    [(user, outcome, text)] = audit(team.rig, "login")
    assert (user, outcome) == ("ada", "done")
    assert text.startswith("dashboard: token ")


@pytest.mark.parametrize(
    "then", ["//evil.example/", "https://evil.example/", "/\\evil.example", "//["]
)
def test_a_login_leads_to_no_other_site(team: Team, then: str) -> None:
    token = team.token("ada", "viewer")
    reply = team.visit().post("/login", {"token": token, "next": then})
    assert reply.headers["location"] == "/"
    assert team.visit().get(f"/login?next={quote(then, safe='')}").status == 200


def test_a_token_that_is_wrong_expired_or_revoked_is_refused(team: Team) -> None:
    token = team.token("ada", "admin")
    assert team.visit().login("").status == 401
    assert team.visit().login(token[:-1] + ("0" if token[-1] != "0" else "1")).status == 401
    assert team.visit().login(token.replace("spotd_", "spotd_x")).status == 401
    visit = team.visit()
    assert visit.login(token).status == 303
    [known] = team.rig.store.logins.tokens()
    assert token.split("_")[2] not in repr(known), "only its digest is stored"
    Client(team.rig.socket).call(routes.REVOKE_TOKEN(name=known.id))
    assert visit.get("/").status == 303, "who had logged in with it is logged out"
    assert team.visit().login(token).status == 401
    later = team.token("ada", "admin")
    team.rig.clock.go_on(91 * 86_400)
    assert team.visit().login(later).status == 401


def test_a_session_ends_in_time_and_by_logging_out(team: Team) -> None:
    visit = team.login("ada", "admin")
    csrf, cookies = visit.csrf(), dict(visit.cookies)
    assert visit.post("/logout", {"csrf": csrf}).status == 303
    assert visit.cookies == {}
    visit.cookies = cookies
    assert visit.get("/").status == 303, "the cookie that was copied before is void"
    visit = team.login("ada", "admin")
    assert visit.get("/").status == 200
    team.rig.clock.go_on(12 * 3600)
    assert visit.get("/").status == 303


def test_guessing_is_slowed_down_for_one_address(team: Team) -> None:
    token = team.token("ada", "viewer")
    for _ in range(10):
        assert team.visit().login("spotd_00000000_guess").status == 401
    reply = team.visit().login(token)
    assert reply.status == 429, "also with the right one: it tells nothing"
    assert 0 < int(reply.headers["retry-after"]) <= 61


def test_logins_of_one_person_are_limited(team: Team) -> None:
    token = team.token("eve@example.org", "viewer")
    for _ in range(LOGINS):
        assert team.visit().login(token).status == 303
    reply = team.visit().login(token)
    assert reply.status == 429
    assert len(audit(team.rig, "login")) == LOGINS
    assert team.visit().login(team.token("ada", "viewer")).status == 303, "others are not meant"


def test_a_new_login_ends_the_session_that_the_browser_had(team: Team) -> None:
    visit, other = team.login("ada", "viewer"), team.visit()
    other.cookies = dict(visit.cookies)
    assert visit.login(team.token("bob", "viewer")).status == 303
    assert other.get("/").status == 303
    assert visit.get("/").status == 200


def test_without_tokens_their_sessions_end_at_the_start(make_team: MakeTeam) -> None:
    team = make_team()
    visit = team.login("ada", "admin")
    team.stop()
    provider = {"issuer": "https://provider.example", "client_id": "x", "admins": ("a",)}
    again = make_team(tokens=False, oidc=provider).visit()
    again.cookies = visit.cookies
    assert again.get("/").status == 303


def test_nobody_is_root_by_a_token_of_before(team: Team) -> None:
    now_us = team.rig.clock.now_us()
    secret = "0" * 64
    token = UserToken("0a", "root", True, "", digest_of(secret), now_us, "root", now_us + 10**12)
    team.rig.store.logins.add_token(token)
    assert team.visit().login(f"spotd_0a_{secret}").status == 401


def test_a_proxy_that_comes_by_ipv4_to_an_ipv6_socket_is_believed(make_team: MakeTeam) -> None:
    url = "https://spotd.example.org"
    team = make_team(url=url, trusted_proxies=("127.0.0.1",), address="[::]")
    told = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.7"}
    assert team.visit().get("/login", **told).status == 200


def test_the_one_that_may_changes_and_the_audit_names_them(team: Team) -> None:
    job_id = story(team.rig)
    visit = team.login("ada@example.org", "admin")
    page = visit.get(f"/job/{job_id}").text
    assert f'href="/job/{job_id}/pause"' in page
    assert f'href="/job/{job_id}/cancel"' in page
    asked = visit.get(f"/job/{job_id}/pause")
    assert "machine is terminated ($" in asked.text
    assert "If this save fails, the work since the last one, " in asked.text
    assert desired(team.rig, job_id) == "run", "a question changes nothing"
    csrf = visit.csrf()
    for name, now in (("pause", "pause"), ("resume", "run"), ("cancel", "cancel")):
        reply = visit.post(f"/job/{job_id}/{name}", {"csrf": csrf})
        assert (reply.status, reply.headers["location"]) == (303, f"/job/{job_id}")
        assert desired(team.rig, job_id) == now
        assert audit(team.rig, name) == [
            ("ada@example.org", "asked", "dashboard"),
            ("ada@example.org", "done", f"dashboard: id={job_id}"),
        ]
    assert "There is nothing to pause" in visit.get(f"/job/{job_id}/pause").text
    refused = visit.post(f"/job/{job_id}/pause", {"csrf": csrf})
    assert refused.status == 409
    assert "is being cancelled" in refused.text


def test_a_drill_says_what_it_costs_and_is_on_record(team: Team) -> None:
    team.rig.offer_them()
    job_id = team.rig.submit(ago_s=700)
    node = team.rig.launch(job_id, SPOT, ago_s=690)
    team.rig.train(node, ago_s=680, until_s=2, first=0, last=120)
    visit = team.login("ada", "admin")
    page = visit.get(f"/job/{job_id}/drill?kind=kill").text
    assert "Its program is killed (-9)" in page
    assert "It costs at most $" in page
    form = {"csrf": visit.csrf(), "kind": "kill"}
    assert visit.post(f"/job/{job_id}/drill", form).status == 303
    [drill] = team.rig.store.drills.rows(job_id)
    assert (drill.actor, drill.kind.value) == ("ada", "kill")
    assert audit(team.rig, "drill run")[0] == ("ada", "asked", "dashboard")
    assert visit.post(f"/job/{job_id}/drill", form).status == 409
    assert visit.post(f"/job/{job_id}/drill", {**form, "kind": "flood"}).status == 409


def test_a_viewer_sees_no_action_and_is_refused(team: Team) -> None:
    job_id = story(team.rig)
    visit = team.login("viola", "viewer")
    page = visit.get(f"/job/{job_id}")
    assert page.status == 200
    for name in ("pause", "resume", "cancel", "drill"):
        assert f"/job/{job_id}/{name}" not in page.text
        assert visit.get(f"/job/{job_id}/{name}").status == 403
        reply = visit.post(f"/job/{job_id}/{name}", {"csrf": visit.csrf(), "kind": "kill"})
        assert reply.status == 403
        assert "may read but not change anything" in reply.text
    assert desired(team.rig, job_id) == "run"
    [(user, outcome, text)] = audit(team.rig, "cancel")
    assert (user, outcome) == ("viola", AuditOutcome.REFUSED.value)
    assert text.startswith("dashboard: viola may read")


def test_who_is_disabled_sees_nothing_any_more(team: Team) -> None:
    visit = team.login("eve@example.org", "admin")
    row = DisabledUser("eve@example.org", -1, team.rig.clock.now_us(), "root")
    team.rig.store.users.disable(row)
    reply = visit.get("/")
    assert reply.status == 403
    assert "eve@example.org is disabled" in reply.text
    other = team.login("ada@example.org", "viewer")
    assert other.get("/").status == 200, "others without an account are not meant"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(team: Team, headers: dict[str, str]) -> None:
    """Even with the right CSRF token, which another site cannot know."""
    job_id = story(team.rig)
    visit = team.login("ada", "admin")
    reply = visit.post(f"/job/{job_id}/cancel", {"csrf": visit.csrf()}, **headers)
    assert reply.status == 403
    assert desired(team.rig, job_id) == "run"
    assert team.visit().login(team.token("eve", "admin"), **headers).status == 403, "login CSRF"


def test_a_form_without_the_token_of_its_own_session_is_refused(team: Team) -> None:
    job_id = story(team.rig)
    visit, other = team.login("ada", "admin"), team.login("eve", "admin")
    for csrf in ("", "0" * 64, other.csrf()):
        assert visit.post(f"/job/{job_id}/cancel", {"csrf": csrf}).status == 403
    assert visit.post(f"/job/{job_id}/cancel", {}).status == 403
    assert visit.post("/logout", {}).status == 403
    assert desired(team.rig, job_id) == "run"


@pytest.mark.parametrize("verb", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_there_is_nothing_but_get_and_post(team: Team, verb: str) -> None:
    visit = team.login("ada", "admin")
    assert visit._ask(verb, "/", None, {}).status == 405


def test_another_name_that_leads_here_gets_nothing(team: Team) -> None:
    visit = team.login("ada", "admin")
    assert visit.get("/", Host="evil.example").status == 421
    assert visit.get("/", Host=f"evil.example:{team.port}").status == 421


def test_a_large_form_is_not_read_to_its_end(team: Team) -> None:
    assert team.visit().post("/login", {"token": "x" * 9000}).status == 413


def test_no_proxy_is_believed_that_is_not_named(make_team: MakeTeam) -> None:
    """Behind a proxy with TLS: what comes another way, or in the clear, is refused."""
    url = "https://spotd.example.org"
    team = make_team(url=url, trusted_proxies=("10.1.2.3",))
    told = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.7"}
    assert team.visit().get("/login", **told).status == 403
    team = make_team(url=url, trusted_proxies=("127.0.0.1",))
    assert team.visit().get("/login").status == 403, "the proxy says that it came in the clear"
    visit = team.visit()
    assert visit.get("/login", **told).status == 200
    reply = visit.login(team.token("ada", "viewer"), **told)
    assert reply.status == 303
    assert "__Host-spotd-session=" in reply.headers["set-cookie"]
    assert "Secure" in reply.headers["set-cookie"]
    assert reply.headers["strict-transport-security"]
    assert audit(team.rig, "login")[-1][2].endswith("from 192.0.2.7")
    # The limit counts the people, not the proxy.
    for _ in range(10):
        team.visit().login("wrong", X_Forwarded_Proto="https", X_Forwarded_For="192.0.2.66")
    other = {**told, "X_Forwarded_For": "192.0.2.66"}
    assert team.visit().login(team.token("ada", "viewer"), **other).status == 429
    assert team.visit().login(team.token("ada", "viewer"), **told).status == 303


def write_certificate(ca: trustme.CA, folder: Path) -> None:
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(b.bytes() for b in issued.cert_chain_pems))


class TlsTeam:
    """A dashboard with TLS, whose certificate lies in `folder`."""

    def __init__(self, make_team: MakeTeam, folder: Path) -> None:
        self.folder = folder
        self.ca = self.renew()
        self.team = make_team(
            url="https://spotd.example.org",
            tls_certificate=folder / "cert.pem",
            tls_key=folder / "key.pem",
        )

    def renew(self) -> trustme.CA:
        self.ca = trustme.CA()
        write_certificate(self.ca, self.folder)
        return self.ca

    def status(self, ca: trustme.CA | None = None, source: str = "127.0.0.1") -> int:
        """The status of the login page, for somebody who trusts that authority."""
        trust = ssl.create_default_context()
        (ca or self.ca).configure_trust(trust)
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            self.team.port,
            timeout=LIMIT_S,
            context=trust,
            source_address=(source, 0),
        )
        try:
            connection.request("GET", "/login", headers={"Host": "spotd.example.org"})
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture
def tls(make_team: MakeTeam, tmp_path: Path) -> TlsTeam:
    return TlsTeam(make_team, tmp_path)


def test_tls_and_a_renewed_certificate(tls: TlsTeam) -> None:
    old = tls.ca
    assert tls.status() == 200
    tls.renew()
    tls.team.server.reload_certificate()
    assert tls.status() == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        tls.status(old)
    (tls.folder / "key.pem").write_text("nothing")
    with pytest.raises(UserError, match="cannot be read again"):
        tls.team.server.reload_certificate()
    assert tls.status() == 200


def test_a_renewal_that_is_half_done_changes_nothing(tls: TlsTeam) -> None:
    """A new certificate with the key of the old: neither is taken."""
    old, old_key = tls.ca, (tls.folder / "key.pem").read_bytes()
    new = tls.renew()
    new_key = (tls.folder / "key.pem").read_bytes()
    (tls.folder / "key.pem").write_bytes(old_key)
    with pytest.raises(UserError, match="cannot be read again"):
        tls.team.server.reload_certificate()
    assert tls.status(old) == 200
    (tls.folder / "key.pem").write_bytes(new_key)
    tls.team.server.reload_certificate()
    assert tls.status(new) == 200


def test_connections_without_a_handshake_are_limited(
    tls: TlsTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = tls.team.server.web.listener
    assert isinstance(listener, TlsListener)
    address = ("127.0.0.1", tls.team.port)
    monkeypatch.setattr(connection_limit, "HANDSHAKE_S", LIMIT_S)
    silent = [socket.create_connection(address) for _ in range(MOST_HALF_OPEN_OF_ADDRESS)]
    until(lambda: len(listener.half_open()) == MOST_HALF_OPEN_OF_ADDRESS)
    with pytest.raises(OSError, match=r"."):
        tls.status()
    assert tls.status(source="127.0.0.2") == 200
    assert len(listener.half_open()) == MOST_HALF_OPEN_OF_ADDRESS, "a handshake is no more counted"
    monkeypatch.setattr(connection_limit, "HANDSHAKE_S", 0.0)
    assert tls.status(source="127.0.0.2") == 200
    for client in silent:
        client.settimeout(LIMIT_S)
        assert client.recv(1) == b""
        client.close()
    until(lambda: not listener.half_open())
    assert tls.status() == 200


def test_only_ciphers_with_forward_secrecy(tls: TlsTeam) -> None:
    context = tls.team.server.web.server.config.ssl
    assert context is not None
    for cipher in context.get_ciphers():
        assert cipher["aead"]
        assert cipher["protocol"] == "TLSv1.3" or cipher["name"].startswith("ECDHE-")


def slow_form(team: Team) -> socket.socket:
    """A form whose body does not come."""
    client = socket.create_connection(("127.0.0.1", team.port), timeout=LIMIT_S)
    host = f"127.0.0.1:{team.port}"
    head = f"POST /login HTTP/1.1\r\nHost: {host}\r\nOrigin: {team.url}\r\nContent-Length: 9\r\n"
    client.sendall(f"{head}\r\nabc".encode())
    return client


def test_slow_forms_keep_nobody_out(team: Team) -> None:
    clients = [slow_form(team) for _ in range(MOST)]
    connections = team.server.web.server.server_state.connections
    until(lambda: sum(getattr(c, "cycle", None) is not None for c in [*connections]) == MOST)
    assert team.visit().get("/login").status == 200
    for client in clients:
        client.close()


def test_a_form_that_does_not_come_in_time_is_ended(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_server, "_FORM_S", 0.05)
    with slow_form(team) as client:
        reply = b""
        while piece := client.recv(4096):
            reply += piece
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in reply.lower()


def test_a_form_that_is_cut_off_is_no_fault(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    connections = team.server.web.server.server_state.connections
    with slow_form(team):
        until(lambda: any(getattr(c, "cycle", None) is not None for c in [*connections]))
    until(lambda: not connections and not team.server.web.server.server_state.tasks)
    assert "Traceback" not in caplog.text
    assert "Exception in ASGI" not in caplog.text


class AwayLogins:
    """Logins of a database that is away."""

    def __getattr__(self, _: str) -> Any:
        def away(*_: object) -> None:
            raise StoreUnavailableError("the database is away")

        return away


def test_every_reply_says_what_a_browser_must_not_do(team: Team) -> None:
    visit: Visit = team.login("ada", "admin")
    team.rig.store.logins = AwayLogins()  # type: ignore[assignment]
    reply = team.visit().login("spotd_00000000_x")
    assert (reply.status, "does not answer" in reply.text) == (503, True)
    replies = [visit.get(path) for path in ("/", "/login", "/static/dash.css", "/job/none")]
    for headers in (one.headers for one in (reply, *replies)):
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
