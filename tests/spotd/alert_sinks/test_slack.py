"""The section of a Slack webhook."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from spotd.alert_sinks.registry import AnyAlertRoute
from spotd.alert_sinks.slack import SlackSink
from spotd.base.errors import Problem
from spotd.base.validation import problems_of
from spotd.config.file import ConfigFile
from spotd.domain.events import Severity
from tests.fixtures.slack import Slack
from tests.spotd.alert_sinks.samples import samples

_ROUTES: TypeAdapter[AnyAlertRoute] = TypeAdapter(AnyAlertRoute)


def sink(slack: Slack, **keys: Any) -> SlackSink:
    section = {"kind": "slack", "url_env": "HOOK", "allow_hosts": [slack.host], **keys}
    built = _ROUTES.validate_python(section).build({"HOOK": slack.url})
    assert isinstance(built, SlackSink)
    return built


def test_who_is_mentioned_is_written_as_one_likes(slack: Slack) -> None:
    mention = {"error": ["here", "<!subteam^S0614TZR7>", "@U024BE7LH"], "warning": "<!channel>"}
    assert sink(slack, mention=mention).mentions == {
        Severity.ERROR: ["<!here>", "<!subteam^S0614TZR7>", "<@U024BE7LH>"],
        Severity.WARNING: ["<!channel>"],
    }


def test_a_mention_is_posted_with_alerts_of_its_severity(slack: Slack) -> None:
    of_kind = {alert.event.kind: alert for alert in samples()}
    built = sink(slack, mention={"error": "U024BE7LH"})
    built.send([of_kind["failed"]])
    built.send([of_kind["notice"]])
    assert slack.messages[0]["blocks"][1]["text"]["text"] == "<@U024BE7LH>"
    assert "U024BE7LH" not in str(slack.messages[1])


@pytest.mark.parametrize("name", ["ada", "@ada", "#general", "C024BE7LH", "<!here|x>", "", "u024"])
def test_nobody_whom_slack_would_not_mention(name: str) -> None:
    (problem,) = problems({"alerts": {"routes": {"a": route(mention={"error": [name]})}}})
    assert problem.where == "alerts.routes.a.mention.error[0]"
    assert "cannot be mentioned in Slack" in problem.text
    assert "U024BE7LH" in problem.text + problem.fix


def test_a_severity_that_there_is_not() -> None:
    (problem,) = problems({"alerts": {"routes": {"a": route(mention={"critical": "here"})}}})
    assert "critical" in problem.where
    assert "'error'" in problem.text + problem.fix


def route(**keys: Any) -> dict[str, Any]:
    return {"kind": "slack", "url_env": "HOOK", **keys}


def problems(data: dict[str, Any]) -> list[Problem]:
    with pytest.raises(ValidationError) as caught:
        ConfigFile.model_validate(data)
    return [problem for _, problem in problems_of(caught.value, ConfigFile)]
