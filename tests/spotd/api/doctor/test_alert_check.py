"""The doctor says whether anybody would hear of an alert, and whether the last ones arrived."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.api.doctor.alert_check import LATE_US, check_alert_routes
from spotd.api.request.request import ApiRequest, Check
from spotd.domain.events import Event
from spotd.domain.units import S
from tests.spotd.api.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    yield found
    found.close()


def told(rig: Rig) -> Check:
    context = rig.context()
    [check] = check_alert_routes(context, ApiRequest(context).now_us)
    return check


def alert(rig: Rig, text: str) -> None:
    event = Event("test", text, alert=True, key=text)
    rig.store.events.add("", event, rig.clock.now_us())


def mark(rig: Rig, error: str) -> None:
    """Everything that waits was delivered, or was not."""
    now_us = rig.clock.now_us()
    rows = rig.store.alerts.due(now_us, 100)
    assert rows
    rig.store.alerts.mark(rows, 0 if error else now_us, now_us, error)


def test_nothing_was_delivered_yet(rig: Rig) -> None:
    check = told(rig)
    assert (check.name, check.ok, check.doubtful) == ("alerts default", True, True)
    assert check.text == "reached; nothing was delivered yet"
    assert check.try_ == "spotctl doctor --send, or spotctl alerts test default"


def test_the_last_delivery_has_its_age(rig: Rig) -> None:
    alert(rig, "one")
    mark(rig, "")
    rig.clock.go_on(3 * 86_400)
    check = told(rig)
    assert (check.ok, check.doubtful) == (True, False)
    assert check.text == "reached; last delivered 3 days ago"


def test_what_failed_is_told_and_a_failure_after_a_while(rig: Rig) -> None:
    alert(rig, "one")
    mark(rig, "")
    alert(rig, "two")
    alert(rig, "three")
    mark(rig, "Slack answered 500: no")
    check = told(rig)
    assert (check.ok, check.doubtful) == (True, True)
    assert check.text.endswith("ago; 2 wait, the last attempt failed: Slack answered 500: no")
    rig.clock.go_on(LATE_US / S + 1)
    assert not told(rig).ok
    mark(rig, "")
    assert (told(rig).ok, told(rig).doubtful) == (True, False)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (("hooks.slack.com cannot be reached: timed out", False), "cannot be reached: timed out"),
        (("", True), "disabled"),
    ],
)
def test_a_route_that_takes_nothing_is_a_failure(
    rig: Rig, state: tuple[str, bool], text: str
) -> None:
    rig.routes = {"default": state}
    check = told(rig)
    assert not check.ok
    assert text in check.text


def test_without_a_route_nobody_is_told(rig: Rig) -> None:
    rig.routes = {}
    check = told(rig)
    assert (check.name, check.ok, check.doubtful) == ("alerts", True, True)
    assert "alerts.routes.default" in check.try_
