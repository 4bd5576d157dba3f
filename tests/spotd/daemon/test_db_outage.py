"""A database that takes nothing down for long: told past it, once, and when it is back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from spotd.daemon.db_outage import AGAIN_S, DatabaseOutageAlert
from spotd.domain.events import Event, Severity
from tests.spotd.fake_world import HandClock

FULL = "the database spotd.db cannot be used now: the disk under it is full: free some space"


@dataclass
class Fate:
    """Of one page."""

    failed: bool = False


class Desk:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.pages: list[Event] = []
        self.fates: list[Fate] = []
        self.outage = DatabaseOutageAlert("box-1", self.clock, 60.0, self._page)

    def _page(self, event: Event) -> Fate:
        self.pages.append(event)
        self.fates.append(Fate())
        return self.fates[-1]

    def renewals(self, seconds: float, error: str = FULL) -> None:
        """One every five seconds."""
        for _ in range(int(seconds / 5)):
            self.clock.sleep(5.0)
            self.outage.note(error)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_is_told_once_and_with_what_helps(desk: Desk) -> None:
    desk.outage.note("")
    desk.renewals(60.0)
    assert desk.pages == []
    desk.renewals(600.0)
    text = (
        "box-1: for 60 s the database accepted no writes: the database spotd.db cannot be used now:"
        " the disk under it is full: free some space. Nothing is decided, launched or restarted"
        " until it does; running training continues"
    )
    assert desk.pages == [Event("database_away", text, severity=Severity.ERROR)]


def test_a_short_one_is_not_told(desk: Desk) -> None:
    for _ in range(20):
        desk.renewals(50.0)
        desk.outage.note("")
    assert desk.pages == []


def test_its_end_is_told_and_the_next_one_again(desk: Desk) -> None:
    for _ in range(2):
        desk.renewals(100.0)
        desk.renewals(20.0, "")
    text = "box-1: the database accepts writes again after 100 s"
    back = Event("database_back", text, severity=Severity.INFO)
    assert [event.kind for event in desk.pages] == ["database_away", "database_back"] * 2
    assert desk.pages[1] == back


def test_what_no_route_took_is_told_again(desk: Desk) -> None:
    desk.renewals(65.0)
    desk.fates[0].failed = True
    desk.renewals(AGAIN_S - 5.0)
    assert len(desk.pages) == 1
    desk.renewals(10.0)
    assert [event.kind for event in desk.pages] == ["database_away"] * 2
    assert "for 120 s" in desk.pages[1].text
    desk.renewals(600.0)
    assert len(desk.pages) == 2
