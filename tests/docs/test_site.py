"""The documentation site: every link leads somewhere, and browsers fetch nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spotd.api.metrics.metric_table import METRICS
from spotd.api_routes import routes
from spotd.api_routes.operation import Operation
from tests.architecture.frozen import commands
from tests.fixtures.browser import open_page
from tests.trainer.rig import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Fetched(HTMLParser):
    """The addresses that a browser fetches for a page, and the page's text."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source"} and given.get("src"):
            self.addresses.append(str(given["src"]))
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(str(given.get("href")))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: Path) -> Fetched:
    parser = Fetched()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def pages(site: Path) -> Iterator[Path]:
    return (path for path in site.rglob("*.html") if "files" not in path.relative_to(site).parts)


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    found = {str(path): read(path).addresses for path in pages(site)}
    assert len(found) > 50
    strangers = {
        address
        for addresses in found.values()
        for address in addresses
        if re.match(r"(https?:)?//", address)
    }
    assert strangers == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", styles)
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def test_diagrams_are_drawn_without_the_internet(site: Path) -> None:
    with open_page() as page:
        page.open(f"file://{site}/architecture/index.html")
        # The theme draws each in a shadow root of its own, which scripts of the page cannot see.
        page.wait("document.querySelectorAll('div.mermaid').length === 2")
        heights = "[...document.querySelectorAll('div.mermaid')].map(d => d.offsetHeight)"
        page.wait(f"{heights}.every(height => height > 200)")
        assert "stateDiagram" not in page.js("document.body.innerText")
        assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
        page.asked.clear()
        page.open(f"file://{site}/index.html")
        assert not any("mermaid" in url for url in page.asked), "only where it draws"


def test_a_whole_program_is_in_its_guide(site: Path) -> None:
    for name in ("loop", "trainer", "lightning", "ddp", "fsdp"):
        text = read(site / "guides" / name / "index.html").text
        for path in (ROOT / "examples" / "newcomer" / name).iterdir():
            assert path.read_text().strip() in text, path


def test_the_reference_has_all_of_the_code(site: Path) -> None:
    def text(page: str) -> str:
        return read(site / "reference" / page / "index.html").text

    shown = text("cli")
    names = re.findall(r"^(spot(?:ctl|d)[\w -]*)$", commands(), re.MULTILINE)
    assert len(names) > 80
    assert [name for name in names if name not in shown] == []
    shown = text("metrics")
    assert [metric.name for metric in METRICS if metric.name not in shown] == []
    shown = text("api")
    operations = [value for value in vars(routes).values() if isinstance(value, Operation)]
    assert len(operations) > 30
    assert [item.path for item in operations if item.path not in shown] == []
    shown = text("events")
    for kind in ("requested", "launched", "notice", "recovered", "restarted", "succeeded", "gone"):
        assert kind in shown
    assert "max_usd_per_hour" in text("configuration")
    assert "max_cost_usd" in text("job-file")
