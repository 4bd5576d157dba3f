"""The alert rules, as Prometheus' own promtool judges them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import spotd.api.metrics
from spotd.api.metrics.metric_table import METRICS
from tests.fixtures.prometheus import promtool

RULES = Path(spotd.api.metrics.__file__).parent / "rules.yml"
PLAYED = Path(__file__).parent / "played.yml"
NAMES = re.compile(r"\bspotd_[a-z_]+")
SERIES = {
    f"{metric.name}{end}"
    for metric in METRICS
    for end in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


def rules() -> list[dict[str, str]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, str]] = group["rules"]
    return found


def test_promtool_takes_the_rules() -> None:
    code, said = promtool("check", "rules", str(RULES))
    assert code == 0, said
    assert f"{len(rules())} rules found" in said


def test_each_rule_is_about_a_metric_that_there_is() -> None:
    for rule in rules():
        assert set(NAMES.findall(rule["expr"])) <= SERIES, rule["alert"]
        assert set(re.findall(r"\$labels\.(\w+)", str(rule))) <= {
            label for metric in METRICS if metric.name in rule["expr"] for label in metric.labels
        }, rule["alert"]


def played(folder: Path, rules_text: str) -> tuple[int, str]:
    (folder / "rules.yml").write_text(rules_text)
    (folder / "played.yml").write_text(PLAYED.read_text())
    return promtool("test", "rules", str(folder / "played.yml"))


def test_each_rule_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    code, said = played(tmp_path, RULES.read_text())
    assert code == 0, said
    cases = yaml.safe_load(PLAYED.read_text())["tests"]
    asked = [one for case in cases for one in case["alert_rule_test"]]
    fires = {one["alertname"] for one in asked if one.get("exp_alerts")}
    quiet = {one["alertname"] for one in asked if not one.get("exp_alerts")}
    names = {rule["alert"] for rule in rules()}
    assert fires == quiet == names


@pytest.mark.parametrize("rule", [rule["alert"] for rule in rules()])
def test_a_rule_that_never_fires_is_found(tmp_path: Path, rule: str) -> None:
    text = RULES.read_text()
    [expr] = [one["expr"] for one in rules() if one["alert"] == rule]
    document = yaml.safe_load(text)
    for one in document["groups"][0]["rules"]:
        if one["alert"] == rule:
            one["expr"] = "vector(0) > 1"
    assert expr not in yaml.safe_dump(document)
    code, said = played(tmp_path, yaml.safe_dump(document))
    assert code != 0
    assert rule in said
