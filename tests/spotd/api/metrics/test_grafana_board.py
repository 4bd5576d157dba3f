"""The board: its queries are about metrics that there are, and a real Prometheus answers them from
a real scrape, made as docs/metrics.md says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import spotd.api.metrics
from spotd.api.http.metrics_server import MetricsServer, serve_scrapes
from spotd.api.metrics.exposition import Metrics
from spotd.domain.events import Event
from spotd.domain.health import USAGE
from spotd.domain.states import LeaveReason
from tests.fixtures.prometheus import Prometheus, running
from tests.fixtures.waiting import wait_until
from tests.spotd.api.metrics.test_rules import NAMES, RULES, SERIES
from tests.spotd.api.rig import Rig, story

PAGE = Path("docs/metrics.md")
BOARD = json.loads((Path(spotd.api.metrics.__file__).parent / "grafana-board.json").read_text())
TOKEN = "0123456789abcdef" * 4


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    return [
        target["expr"].replace("$__range", "1h")
        for panel in panels()
        for target in panel["targets"]
    ]


def test_every_query_is_about_metrics_that_there_are() -> None:
    assert len(queries()) > 20
    for expr in queries():
        names = NAMES.findall(expr)
        assert names, expr
        assert set(names) <= SERIES, expr


@pytest.mark.req("MON-06")
def test_the_five_come_first_in_one_row_with_unit_and_threshold() -> None:
    row, *five = BOARD["panels"][:6]
    assert row["type"] == "row"
    assert [panel["title"] for panel in five] == [
        "GPU utilisation",
        "Longest without a checkpoint",
        "Interruptions per 100 machine-days",
        "Cost per experiment",
        "Burn rate",
    ]
    assert len({panel["gridPos"]["y"] for panel in five}) == 1
    assert max(panel["gridPos"]["y"] for panel in five) < panels()[5]["gridPos"]["y"]
    units = [panel["fieldConfig"]["defaults"]["unit"] for panel in five]
    assert units == ["percentunit", "s", "none", "currencyUSD", "currencyUSD"]
    steps = [panel["fieldConfig"]["defaults"]["thresholds"]["steps"] for panel in five]
    assert all(step[0]["value"] is None and step[-1]["value"] for step in steps)
    assert steps[0][-1] == {"color": "green", "value": 0.7}
    assert steps[2][-1] == {"color": "red", "value": 5}
    assert "percent of machines a day" in five[2]["description"]


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        mine = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not mine & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= mine
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


# --- a real scrape


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def door(rig: Rig) -> Iterator[MetricsServer]:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    used = {"window_s": 300.0, "gpu": 0.6, "data_s": 90.0, "save_s": 3.0}
    rig.store.events.add(job_id, Event(USAGE, "", node.id, data=used), rig.ago(100))
    door = serve_scrapes(Metrics(rig.context()).text, "127.0.0.1", 0, TOKEN)
    yield door
    door.stop()


def documented(folder: Path, door: MetricsServer) -> str:
    """The configuration of the page, but for what is of this test: port, files, and haste."""
    [text] = re.findall(r"```yaml\n(scrape_configs:.*?)```", PAGE.read_text(), re.DOTALL)
    document = yaml.safe_load(text)
    [job] = document["scrape_configs"]
    assert job["job_name"] == "spotd"
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{door.port}"]}]
    job["scrape_interval"] = "1s"
    (folder / "token").write_text(f"{TOKEN}\n")
    job["authorization"]["credentials_file"] = str(folder / "token")
    assert document["rule_files"] == ["/etc/prometheus/spotd-rules.yml"]
    document["rule_files"] = [str(RULES)]
    return yaml.safe_dump(document)


def scraped_twice(server: Prometheus) -> bool:
    return server.value("count_over_time(spotd_build_info[1m]) >= bool 3") == [1.0]


@pytest.mark.req("MON-06")
def test_a_real_prometheus_answers_every_query_of_the_board(
    rig: Rig, door: MetricsServer, tmp_path: Path
) -> None:
    with running(tmp_path, documented(tmp_path, door)) as server:
        wait_until("two scrapes", lambda: scraped_twice(server))
        [target] = server.get("targets")["activeTargets"]
        assert target["lastError"] == ""
        for expr in queries():
            server.get("query", query=expr)  # an error in it is one here
        shown = {
            panel["title"]: [server.value(target["expr"]) for target in panel["targets"]]
            for panel in panels()[:5]
        }
        assert shown["GPU utilisation"] == [[0.6]]
        assert shown["Longest without a checkpoint"] == [[930.0]]
        assert shown["Cost per experiment"] == [[39.6925]]
        assert shown["Burn rate"] == [[25.5]]
        [group] = server.get("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
        # Nothing was taken away while it looked, and nothing lived longer: no rate of nothing.
        assert shown["Interruptions per 100 machine-days"] == [[]]
        # Heard of for 930 s more, and then taken away: 100 machines would lose as many in a day.
        gpt = rig.store.jobs.find("gpt")
        assert gpt is not None
        rig.leave(rig.store.nodes.of_job(gpt.id)[-1], 0, LeaveReason.PREEMPTED, "preempt notice")
        wait_until("the loss", lambda: server.value("sum(spotd_interruptions_total)") == [2.0])
        [[target]] = [p["targets"] for p in panels()[:5] if "Interruptions" in p["title"]]
        # Prometheus extrapolates what rose from 0 by less than what did not.
        assert server.value(target["expr"]) == [pytest.approx(100 * 86_400 / 930, rel=0.25)]


def test_a_prometheus_without_the_token_gets_nothing(door: MetricsServer, tmp_path: Path) -> None:
    config = documented(tmp_path, door)
    (tmp_path / "token").write_text("f" * 64)
    with running(tmp_path, config) as server:
        wait_until("a scrape", lambda: server.value('up{job="spotd"}') == [0.0])
        [target] = server.get("targets")["activeTargets"]
        assert "401" in target["lastError"]
        assert server.value("spotd_build_info") == []
