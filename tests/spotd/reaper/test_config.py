"""The reaper's configuration: what is wrong is named, before a cloud is asked anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotd.alert_sinks.command import CommandSink
from spotd.alert_sinks.slack import SlackSink
from spotd.base.errors import UserError
from spotd.reaper.config import load

WHOLE = """\
deployment = "d"
[providers.aws]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
token_file = "/t"
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = " + "[" * 4000, "is not TOML"),
        ("every_s = " + "9" * 5000, "is not TOML"),
        (WHOLE.replace('"http://127.0.0.1:8700"', "5"), "providers.aws.url: is not text"),
        (WHOLE.replace('"/t"', "7"), "providers.aws.token_file: is not text"),
        (WHOLE + 'timeout_s = "x"', "providers.aws.timeout_s: is not a time"),
        (WHOLE + "timeout_s = nan", "providers.aws.timeout_s: is not a time"),
        (WHOLE + '[page]\nslack_url_file = "/a\\u0000b"', "page.slack_url_file: '/a"),
        (WHOLE + '[page.routes.a]\nkind = "pager"', "page.routes.a"),
        (WHOLE + '[page.routes.a]\nkind = "slack"', "page.routes.a: has no address"),
        (WHOLE + '[page]\nslack_url_credential = "a"', "page.slack_url_credential: there is no"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "reaper.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load(path, {})
    assert told in str(caught.value) + "".join(map(str, getattr(caught.value, "problems", ())))


def test_the_smallest_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "reaper.toml"
    path.write_text(WHOLE + "timeout_s = 3")
    assert load(path, {}).providers.keys() == {"aws"}


def test_pages_go_by_every_kind_of_sink_that_alerts_have(tmp_path: Path) -> None:
    path = tmp_path / "reaper.toml"
    (tmp_path / "url").write_text("https://hooks.slack.com/services/x")
    path.write_text(
        WHOLE
        + f"""
[page]
command = ["mail", "ops"]
[page.routes.chat]
kind = "slack"
url_file = "{tmp_path}/url"
[page.routes.pager]
kind = "command"
command = ["page"]
"""
    )
    assert load(path, {}).sinks == (
        CommandSink(("mail", "ops")),
        SlackSink("https://hooks.slack.com/services/x"),
        CommandSink(("page",)),
    )
