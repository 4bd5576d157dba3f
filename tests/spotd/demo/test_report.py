"""The demo's report: honest verdicts, the keys that others read, a page that needs nothing."""

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

from spotd.demo.report import LOST_MAX_STEPS, lines, spans, table, verdicts, write_report
from spotd.demo.story import Ended
from tests.spotd.demo.story import NODES, PROGRESS, REFERENCE, at, evidence, node, progress

# What the issue promises to whoever reads report.json.
KEYS = {"preemptions", "weights_equal", "losses_equal", "zombie_commits_accepted"}
KEYS |= {
    "on_demand_best_cost_usd",
    "orphan_instance_seconds",
    "cost_usd",
    "on_demand_cost_usd",
    "wall_s",
}
EACH = {"cloud", "kind", "notice_s", "notice_to_request_s", "notice_to_first_step_s", "steps_lost"}


def test_a_story_that_went_well_is_proven() -> None:
    found = evidence()
    assert found.losses_equal
    assert found.proven()
    assert all(good for good, _ in verdicts(found))


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
    "the zombie was not fenced": {"zombie": Ended(0, at(46.5))},
    "the zombie never came back": {"zombie": None},
    "steps were lost in spite of a notice": {
        "recoveries": [replace(r, steps_lost=3) for r in evidence().recoveries]
    },
    "a machine was not replaced": {"recoveries": evidence().recoveries[:2]},
    "a death lost more than its cadence": {
        "recoveries": [
            replace(evidence().recoveries[0], steps_lost=LOST_MAX_STEPS + 1),
            *evidence().recoveries[1:],
        ]
    },
    "a machine leaked": {"orphan_s": 3.0},
    "a machine was kept that nobody wanted": {"giving_back_s": {"j1-g1": 0.0, "j1-g2": 15.1}},
}


def test_what_a_death_may_cost_is_still_proven() -> None:
    worst = replace(evidence().recoveries[0], steps_lost=LOST_MAX_STEPS)
    found = evidence(recoveries=[worst, *evidence().recoveries[1:]], giving_back_s={"j1-g2": 15.0})
    assert LOST_MAX_STEPS == 50, "four seconds between checkpoints, one between reports"
    assert found.proven()


@pytest.mark.parametrize("fields", BROKEN.values(), ids=list(BROKEN))
def test_a_story_that_did_not_is_not(fields: dict[str, Any]) -> None:
    found = evidence(**fields)
    assert not found.proven()
    assert not all(good for good, _ in verdicts(found))


def test_a_refusal_is_drawn_when_there_was_one_and_when_it_was() -> None:
    assert [span.refused_s for span in spans(evidence())] == [46.5, None, None, None]
    for ended in (None, Ended(0, at(46.5)), Ended(-9, at(46.5))):
        assert not any(span.refused_s for span in spans(evidence(zombie=ended)))


def test_the_report_has_how_long_machines_were_given_back(tmp_path: Path) -> None:
    write_report(tmp_path, evidence())
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["giving_back_s"] == {"j1-g1": 0.0, "j1-g2": 0.25}
    assert data["giving_back_max_s"] == 0.25
    assert any("not wanted any more ended within 0.25 s" in line for line in lines(evidence()))


def test_report_json_has_what_was_promised(tmp_path: Path) -> None:
    write_report(tmp_path, evidence())
    data = json.loads((tmp_path / "report.json").read_text())
    assert data.keys() >= KEYS
    assert [row["kind"] for row in data["preemptions"]] == ["death", "notice", "notice"]
    assert all(row.keys() >= EACH for row in data["preemptions"])
    assert (data["cost_usd"], data["on_demand_cost_usd"]) == (0.25, 1.0)
    assert (data["steps"], data["proven"], data["local"]) == (38, True, True)


class Links(HTMLParser):
    """Everything that a page would fetch."""

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


def test_the_ribbon_has_every_machine_that_trained() -> None:
    refused = node(2, "azure", 19, 0, first_step_at_us=0)
    found = spans(evidence(nodes=[NODES[0], refused, *NODES[1:]]))
    assert [span.label for span in found] == [
        "g1 aws aws-1a",
        "g2 gcp gcp-1a",
        "g3 azure azure-1a",
        "g4 aws aws-1a",
    ]
    first, second, *_ = found
    assert (first.asked_s, first.first_s, first.last_s) == (0.0, 5.0, 14.0)
    assert (first.died, first.lost_steps, first.refused_s) == (True, 2, 46.5)
    assert (second.died, second.notice_s, second.lost_steps) == (False, 31.0, 0)
    assert second.checkpoints_s == (33.5,)
    assert all("local machine" in span.note for span in found)


def test_the_terminal_gets_a_row_a_recovery_and_a_line_a_verdict() -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(table(evidence().recoveries))
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines() if "aws" in line]
    assert [row[-1] for row in rows] == ["2", "0"], "steps lost, of those from and to aws"
    told = lines(evidence(orphan_s=2.5))
    assert sum(line.startswith("✔") for line in told) == 7
    assert any(line.startswith("✘") and "2.5 machine-seconds leaked" in line for line in told)
    assert told[-2].startswith(
        "$0.25 paid; the same training on demand: $1.00 at the prices of the"
    )
    assert "$0.60 in the cheapest place (pretend prices" in told[-2]
    assert told[-1] == "123 s for the preempted job; the undisturbed one came on top"
