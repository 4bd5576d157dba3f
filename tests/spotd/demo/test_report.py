"""Test the demo's report: honest checks, stable JSON keys, and a self-contained page."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from spotd.demo.report import (
    LOST_MAX_STEPS,
    checks,
    recovery_table,
    summary_lines,
    timeline_spans,
    write_report,
)
from spotd.demo.story import ProgramExit
from tests.fixtures.browser import open_page
from tests.spotd.demo.story import NODES, PROGRESS, REFERENCE, at, evidence, node, progress

# Keys of report.json that are documented.
CREDENTIALS = {"preemptions", "weights_equal", "losses_equal", "zombie_commits_accepted"}
CREDENTIALS |= {
    "on_demand_best_cost_usd",
    "orphan_instance_seconds",
    "cost_usd",
    "on_demand_cost_usd",
    "wall_s",
}
EACH = {"cloud", "kind", "notice_s", "notice_to_request_s", "notice_to_first_step_s", "steps_lost"}


def test_a_good_run_passes_all_checks() -> None:
    report = evidence()
    assert report.losses_equal
    assert report.proven()
    assert all(passed for passed, _ in checks(report))


BROKEN: dict[str, dict[str, Any]] = {
    "weights differ": {"weights_equal": False},
    "losses differ": {"reference": [*REFERENCE[:-1], progress(1, 29, 150, losses=(0.0,) * 10)]},
    "a loss differs in its last bit": {
        "reference": [
            progress(1, 1, 101, losses=(10 * (1 + 2**-52), *PROGRESS[0].losses[1:])),
            *REFERENCE[1:],
        ]
    },
    "a step is missing": {"reference": REFERENCE[:-1]},
    "nothing was trained": {"progress": [], "reference": []},
    "the zombie committed": {"zombie_commits": 1},
    "the zombie was not fenced": {"zombie_exit": ProgramExit(0, at(46.5))},
    "the zombie never came back": {"zombie_exit": None},
    "steps were lost in spite of a notice": {
        "recoveries": [replace(recovery, steps_lost=3) for recovery in evidence().recoveries]
    },
    "a machine was not replaced": {"recoveries": evidence().recoveries[:2]},
    "a death lost more than its cadence": {
        "recoveries": [
            replace(evidence().recoveries[0], steps_lost=LOST_MAX_STEPS + 1),
            *evidence().recoveries[1:],
        ]
    },
    "a machine leaked": {"orphan_s": 3.0},
    "a machine was kept that nobody wanted": {"release_delay_s": {"j1-g1": 0.0, "j1-g2": 15.1}},
}


def test_the_maximum_loss_of_a_death_passes() -> None:
    worst = replace(evidence().recoveries[0], steps_lost=LOST_MAX_STEPS)
    report = evidence(
        recoveries=[worst, *evidence().recoveries[1:]], release_delay_s={"j1-g2": 15.0}
    )
    assert LOST_MAX_STEPS == 50, "four seconds between checkpoints, one between reports"
    assert report.proven()


@pytest.mark.parametrize("fields", BROKEN.values(), ids=list(BROKEN))
def test_a_bad_run_fails_a_check(fields: dict[str, Any]) -> None:
    report = evidence(**fields)
    assert not report.proven()
    assert not all(passed for passed, _ in checks(report))


def test_a_refusal_is_drawn_when_there_was_one_and_when_it_was() -> None:
    assert [span.refused_s for span in timeline_spans(evidence())] == [46.5, None, None, None]
    for ended in (None, ProgramExit(0, at(46.5)), ProgramExit(-9, at(46.5))):
        assert not any(span.refused_s for span in timeline_spans(evidence(zombie_exit=ended)))


def test_the_report_has_the_release_delays(tmp_path: Path) -> None:
    write_report(tmp_path, evidence())
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["giving_back_s"] == {"j1-g1": 0.0, "j1-g2": 0.25}
    assert data["giving_back_max_s"] == 0.25
    assert any("no longer needed ended within 0.25 s" in line for line in summary_lines(evidence()))


def test_report_json_has_what_was_promised(tmp_path: Path) -> None:
    write_report(tmp_path, evidence())
    data = json.loads((tmp_path / "report.json").read_text())
    assert data.keys() >= CREDENTIALS
    assert [row["kind"] for row in data["preemptions"]] == ["death", "notice", "notice"]
    assert all(row.keys() >= EACH for row in data["preemptions"])
    assert (data["cost_usd"], data["on_demand_cost_usd"]) == (0.25, 1.0)
    assert (data["steps"], data["proven"], data["local"]) == (38, True, True)


class Links(HTMLParser):
    """Collects the URLs that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_and_says_that_it_is_local(tmp_path: Path) -> None:
    write_report(tmp_path, evidence())
    page = (tmp_path / "report.html").read_text()
    links = Links()
    links.feed(page)
    assert links.found == []
    assert page.count("<svg") == 2
    assert "processes on one machine" in page
    assert "nothing was rented" in page
    for name in ("ribbon.svg", "loss.svg"):
        ET.fromstring((tmp_path / name).read_text())


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_of_the_page_overruns_and_json_is_folded(tmp_path: Path, width: int) -> None:
    write_report(tmp_path, evidence())
    with open_page() as page:
        page.look(width, 900)
        page.open((tmp_path / "report.html").as_uri())
        assert page.js("document.querySelector('pre').checkVisibility()") is False
        for opened in ("false", "true"):
            page.js(f"document.querySelector('details').open = {opened}")
            assert page.js("document.documentElement.scrollWidth") <= width
            inner = "[...document.querySelectorAll('pre, p, ul, svg, .wide')]"
            right = f"Math.max(...{inner}.map(e => e.getBoundingClientRect().right))"
            assert page.js(right) <= width
        page.picture(tmp_path / f"{width}.png", whole=True)


def test_the_ribbon_has_every_machine_that_trained() -> None:
    refused = node(2, "azure", 19, 0, first_step_at_us=0)
    report = timeline_spans(evidence(nodes=[NODES[0], refused, *NODES[1:]]))
    assert [span.label for span in report] == [
        "g1 aws aws-1a",
        "g2 gcp gcp-1a",
        "g3 azure azure-1a",
        "g4 aws aws-1a",
    ]
    first, second, *_ = report
    assert (first.asked_s, first.first_s, first.last_s) == (0.0, 5.0, 14.0)
    assert (first.died, first.lost_steps, first.refused_s) == (True, 2, 46.5)
    assert (second.died, second.notice_s, second.lost_steps) == (False, 31.0, 0)
    assert second.checkpoints_s == (33.5,)
    assert all("local machine" in span.note for span in report)


def test_the_terminal_gets_a_row_a_recovery_and_a_line_a_verdict() -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(recovery_table(evidence().recoveries))
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines() if "aws" in line]
    assert [row[-1] for row in rows] == ["2", "0"], "steps lost, of those from and to aws"
    output = summary_lines(evidence(orphan_s=2.5))
    assert sum(line.startswith("✔") for line in output) == 7
    assert any(line.startswith("✘") and "2.5 machine-seconds leaked" in line for line in output)
    assert output[-2].startswith(
        "$0.2500 paid; the same training on demand: $1.00 at the prices of the"
    )
    assert "$0.6000 in the cheapest place (made-up prices" in output[-2]
    assert (
        output[-1] == "123 s for the preempted job, and additional time for the uninterrupted one"
    )
