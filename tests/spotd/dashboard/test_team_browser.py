"""The team's dashboard in a real browser: somebody logs in and cancels a job; a page of another
site cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spotd.dashboard import layout
from tests.fixtures.browser import Page, open_page
from tests.fixtures.waiting import until
from tests.spotd.api.rig import Rig, story
from tests.spotd.dashboard.team import Team
from tests.spotd.dashboard.test_browser import NAMELESS, PALE


@pytest.fixture
def page() -> Iterator[Page]:
    with open_page() as found:
        yield found


@pytest.fixture
def team(rig: Rig) -> Iterator[Team]:
    running = Team(rig)
    yield running
    running.stop()


def desired(rig: Rig, job_id: str) -> str:
    job = rig.store.jobs.find(job_id)
    assert job is not None
    return job.desired.value


def log_in(page: Page, team: Team, then: str) -> None:
    page.open(f"{team.url}{then}")
    assert page.js("location.pathname") == "/login"
    token = team.token("ada@example.org", "admin")
    page.js(f"document.getElementById('token').value = {token!r}")
    page.js("document.querySelector('main form button').click()")
    page.wait(f"location.pathname === {then!r} && document.readyState === 'complete'")


def test_a_person_logs_in_and_cancels_a_job(team: Team, page: Page) -> None:
    job_id = story(team.rig)
    log_in(page, team, f"/job/{job_id}")
    assert page.js("document.getElementById('visitor').textContent") == "ada@example.org"
    assert page.js("document.cookie") == "", "no script reads the session"
    page.js(f"document.querySelector('a[href=\"/job/{job_id}/cancel\"]').click()")
    page.wait("document.getElementById('confirm') !== null && document.readyState === 'complete'")
    text = page.js("document.getElementById('main').textContent")
    assert "The job ends and cannot be resumed. It has cost $" in text
    assert desired(team.rig, job_id) == "run", "until it is confirmed"
    for dark in (False, True):
        page.look(390, 800, dark=dark)
        assert page.js(PALE) == []
        assert page.js(NAMELESS) == []
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
    page.js("document.getElementById('confirm').click()")
    page.wait(
        f"location.pathname === '/job/{job_id}' && document.readyState === 'complete' && "
        "document.querySelector('.logout button') !== null"
    )
    until(lambda: desired(team.rig, job_id) == "cancel")
    rows = [row for row in team.rig.store.audit.rows(0) if row.action == "cancel"]
    assert [(row.user, row.text) for row in rows] == [
        ("ada@example.org", "dashboard"),
        ("ada@example.org", f"dashboard: id={job_id}"),
    ]
    page.js("document.querySelector('.logout button').click()")
    page.wait("location.pathname === '/login'")
    assert page.console == []


def test_a_page_of_another_site_cancels_nothing(team: Team, page: Page) -> None:
    """It is opened by somebody who is logged in, and sends itself the form that cancels a job."""
    job_id = story(team.rig)
    log_in(page, team, f"/job/{job_id}")
    csrf = page.js("document.querySelector('input[name=csrf]').value")
    form = (
        f"<form method=post action='{team.url}/job/{job_id}/cancel'>"
        f"<input name=csrf value='{csrf}'></form><script>document.forms[0].submit()</script>"
    )

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(form.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.wait(f"location.href === '{team.url}/job/{job_id}/cancel'")
        page.wait("document.body.textContent.includes('only forms of this dashboard')")
        server.shutdown()
    assert desired(team.rig, job_id) == "run"
    assert not [row for row in team.rig.store.audit.rows(0) if row.action == "cancel"]


def test_an_open_page_goes_to_the_login_when_its_session_ends(
    team: Team, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "REFRESH_S", 0.3)
    job_id = story(team.rig)
    log_in(page, team, f"/job/{job_id}")
    for token in team.rig.store.logins.tokens():
        team.rig.store.logins.revoke_token(token.id)
    page.wait("location.pathname === '/login'")
