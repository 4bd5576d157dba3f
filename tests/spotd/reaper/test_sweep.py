"""A round: what is ended, who is told, and what is told only once."""

from __future__ import annotations

import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from providers.base import AuthError, Instance, InstanceState, UnknownOutcome
from spotd.alert_sinks.command import CommandSink
from spotd.alert_sinks.slack import SlackSink
from spotd.domain.units import S
from spotd.reaper.notify import NotificationState, Notifier
from spotd.reaper.sweep import CALLS, Reaper, SweepReport
from tests.fixtures import slack
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.alert_sinks.test_webhook import names
from tests.spotd.planner.core.test_reaper_policy import DAY_S, HOUR_S, NOW_S, machine


class Listed:
    """A cloud that lists what it is given, and forgets what was ended."""

    name = "aws"

    def __init__(self, *instances: Instance) -> None:
        self.instances = list(instances)
        self.ended: list[str] = []
        self.error: Exception | None = None

    def list(self) -> Sequence[Instance]:
        if isinstance(self.error, AuthError):
            raise self.error
        return self.instances

    def terminate(self, instance_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.ended.append(instance_id)
        self.instances = [i for i in self.instances if i.instance_id != instance_id]


@pytest.fixture
def hook() -> Iterator[slack.Slack]:
    with slack.serving() as serving:
        yield serving


Go = Callable[..., SweepReport]


@pytest.fixture
def go(hook: slack.Slack, tmp_path: Path) -> Go:
    """A round of a reaper that has just been started, as by a timer."""

    def go_round(
        *clouds: Listed, after_s: float = 0, wait_s: float = 0, **options: bool
    ) -> SweepReport:
        reaper = Reaper(
            "d0",
            {cloud.name: cloud for cloud in clouds},  # type: ignore[misc]
            Notifier([SlackSink(hook.url)]),
            **options,
        )
        return reaper.go_round(NotificationState(tmp_path), int((NOW_S + after_s) * S), wait_s)

    return go_round


def texts(hook: slack.Slack) -> list[str]:
    return [message["text"] for message in hook.messages]


EXPIRED = machine(-HOUR_S, instance_id="i-old")
FRESH = machine(23 * HOUR_S, instance_id="i-fresh")
SILENT = machine(10 * HOUR_S, instance_id="i-silent")
BARE = machine(None, instance_id="i-bare")


def test_what_has_expired_is_ended_and_a_person_told(go: Go, hook: slack.Slack) -> None:
    cloud = Listed(EXPIRED, FRESH)
    report = go(cloud)
    assert cloud.ended == ["i-old"]
    assert [(item["instance"], item["found"], item["done"]) for item in report.items] == [
        ("i-old", "expired", "ended")
    ]
    assert report.errors == []
    [text] = texts(hook)
    assert "ended i-old in aws/z" in text
    assert "it was not renewed for 25.0 h" in text


class Changing(Listed):
    """One that lists other things when it is asked again."""

    def __init__(self, first: Instance, then: Sequence[Instance] | Exception) -> None:
        super().__init__(first)
        self.then = then

    def list(self) -> Sequence[Instance]:
        listed, then = super().list(), self.then
        if isinstance(then, Exception):
            self.error = AuthError(str(then))
        else:
            self.instances = list(then)
        return listed


FOREIGN = {"spotd-deployment": "d1"}


@pytest.mark.parametrize(
    "then",
    [
        [machine(23 * HOUR_S, instance_id="i-old")],
        [replace(EXPIRED, tags={**EXPIRED.tags, **FOREIGN})],
        [],
        UnknownOutcome("timed out"),
    ],
    ids=["renewed", "given away", "gone", "unknown"],
)
def test_who_changed_since_the_listing_is_left(
    go: Go, then: Sequence[Instance] | Exception
) -> None:
    """The daemon is back and renews, say, between the listing and the end."""
    cloud = Changing(EXPIRED, then)
    report = go(cloud)
    assert (cloud.ended, [item["done"] for item in report.items]) == ([], ["left"])
    assert bool(report.errors) == isinstance(then, Exception)


def test_a_box_that_has_been_silent_for_half_of_the_time_is_told_once(
    go: Go, hook: slack.Slack
) -> None:
    cloud = Listed(SILENT, FRESH, machine(9 * HOUR_S, instance_id="i-too"))
    go(cloud)
    assert cloud.ended == []
    [text] = texts(hook)
    assert "silent for 15.0 h" in text
    for word in ("i-silent ends at 2030-03-18T03:46:40Z", "i-too", "Start spotd"):
        assert word in text
    go(cloud, after_s=300)
    assert len(texts(hook)) == 1
    # It was renewed, and fell silent once more: that is another story.
    cloud.instances = [machine(40 * HOUR_S, instance_id="i-silent")]
    go(cloud, after_s=300)
    go(cloud, after_s=30 * HOUR_S)
    assert len(texts(hook)) == 2


def test_one_without_an_expiry_is_told_and_left_unless_it_is_asked_for(
    go: Go, hook: slack.Slack
) -> None:
    cloud = Listed(BARE)
    report = go(cloud)
    assert (cloud.ended, report.items[0]["done"]) == ([], "left")
    assert "i-bare" in texts(hook)[0]
    assert "--end-untagged" in texts(hook)[0]
    go(cloud, end_untagged=True)
    assert cloud.ended == ["i-bare"]


def test_a_clock_that_is_a_month_behind_makes_no_machine_untagged(
    go: Go, hook: slack.Slack
) -> None:
    cloud = Listed(FRESH, SILENT)
    report = go(cloud, after_s=-30 * DAY_S, end_untagged=True)
    assert cloud.ended == []
    assert [item["found"] for item in report.items] == ["strange", "strange"]
    [text] = texts(hook)
    assert "the clock here is far behind" in text
    assert "i-fresh ends at 2030-03-18T" in text


def test_a_tag_of_a_year_that_no_calendar_knows_keeps_no_other_from_its_end(
    go: Go, hook: slack.Slack
) -> None:
    cloud = Listed(machine(9e11, instance_id="i-strange"), EXPIRED)
    go(cloud)
    assert cloud.ended == ["i-old"]
    assert any("i-strange ends at an impossible time" in text for text in texts(hook))


def test_a_dry_run_ends_nothing_and_pages_nobody(go: Go, hook: slack.Slack) -> None:
    cloud = Listed(EXPIRED, SILENT)
    report = go(cloud, dry_run=True)
    assert cloud.ended == []
    assert [item["done"] for item in report.items] == ["would end", "left"]
    assert hook.requests == []
    go(cloud)
    assert len(texts(hook)) == 2, "nothing of it counts as told"


def test_one_that_cannot_be_ended_is_tried_again_and_told_once(go: Go, hook: slack.Slack) -> None:
    cloud = Listed(EXPIRED)
    cloud.error = UnknownOutcome("502")
    for _ in range(2):
        report = go(cloud)
        assert report.errors == ["aws: i-old cannot be ended: 502"]
    assert len(texts(hook)) == 1
    assert "could NOT end i-old" in texts(hook)[0]
    cloud.error = None
    go(cloud)
    assert cloud.ended == ["i-old"]


def test_a_cloud_that_does_not_answer_keeps_the_others_from_nothing(
    go: Go, hook: slack.Slack
) -> None:
    blind, cloud = Listed(), Listed(EXPIRED)
    blind.name, blind.error = "gcp", AuthError("the key has expired")
    report = go(blind, cloud)
    assert cloud.ended == ["i-old"]
    assert report.errors == ["gcp cannot be listed: the key has expired"]
    assert any("blind" in text for text in texts(hook))


def test_a_bug_of_one_adapter_keeps_the_others_from_nothing(go: Go, hook: slack.Slack) -> None:
    class Broken(Listed):
        name = "gcp"

        def list(self) -> Sequence[Instance]:
            raise KeyError("zone")

    cloud = Listed(EXPIRED)
    assert go(Broken(), cloud).errors == ["gcp cannot be listed: 'zone'"]
    assert cloud.ended == ["i-old"]


def test_a_cloud_that_hangs_keeps_neither_another_nor_a_person_waiting(
    go: Go, hook: slack.Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first machines take all of the time; the rest of them have it in the next round."""
    monkeypatch.setattr("spotd.reaper.sweep.END_S", 1.0)
    other_ended = threading.Event()

    class Hanging(Listed):
        name = "gcp"

        def terminate(self, _instance_id: str) -> None:
            assert other_ended.wait(LIMIT_S)
            time.sleep(1.1)
            raise UnknownOutcome("504")

    class Other(Listed):
        def terminate(self, instance_id: str) -> None:
            super().terminate(instance_id)
            other_ended.set()

    crowd = [machine(-HOUR_S, instance_id=f"i-{n}") for n in range(CALLS + 3)]
    other = Other(EXPIRED)
    report = go(Hanging(*crowd), other)
    assert other.ended == ["i-old"]
    assert len(report.errors) == CALLS + 3
    assert sum("has to wait for the next round" in error for error in report.errors) >= 3
    assert any("could NOT end i-0" in text for text in texts(hook))


def test_a_fleet_that_is_ended_is_one_message(go: Go, hook: slack.Slack) -> None:
    """Slack takes about one a second, and a machine that is gone is not told of again."""
    cloud = Listed(*(machine(-HOUR_S, instance_id=f"i-{n:02}") for n in range(40)))
    go(cloud)
    assert len(cloud.ended) == 40
    [text] = texts(hook)
    assert "ended i-00 in aws/z (job " in text
    assert "and 30 more" in text


def test_nothing_is_ended_by_a_clock_that_is_not_believed(go: Go, hook: slack.Slack) -> None:
    cloud = Listed(EXPIRED, SILENT)
    for _ in range(2):
        report = go(cloud, wait_s=600)
        assert report.errors[0].startswith("aws: i-old is not ended for 10 min: the clock here")
    assert cloud.ended == []
    assert report.items[0]["done"] == "waits"
    [text, _silent] = texts(hook)
    assert "in 10 min will end, for the clock here was set ahead" in text
    go(cloud)
    assert cloud.ended == ["i-old"]


def test_a_page_that_did_not_arrive_is_sent_again(go: Go, hook: slack.Slack) -> None:
    cloud = Listed(SILENT)
    hook.script.append((500, "oops", {}))
    assert go(cloud).errors == ["Slack answered 500: oops"]
    assert texts(hook) == []
    assert go(cloud).errors == []
    assert len(texts(hook)) == 1
    assert slack.SECRET not in str(Notifier([SlackSink(hook.url)]))


def test_what_was_ended_when_nobody_could_be_told_is_told_later(go: Go, hook: slack.Slack) -> None:
    """No listing shows it any more."""
    cloud = Listed(EXPIRED, SILENT)
    hook.script += [(500, "oops", {})] * 4
    assert go(cloud).errors == ["Slack answered 500: oops"]
    assert go(cloud, after_s=300).errors == ["Slack answered 500: oops"]
    assert (cloud.ended, texts(hook)) == (["i-old"], [])
    for _ in range(2):
        assert go(cloud, after_s=HOUR_S).errors == []
    silent, late = texts(hook)
    assert "silent for 15.0 h" in silent, "as it is by now"
    assert late.startswith(
        "spot-reaper: these messages could not be delivered:\nat 2030-03-17T17:46:40Z ended i-old"
    )
    assert "silent" not in late


def test_one_way_that_took_a_page_is_enough(go: Go, hook: slack.Slack, tmp_path: Path) -> None:
    pager = Notifier([SlackSink(hook.url), CommandSink(("tee", "-a", str(tmp_path / "pages")))])
    reaper = Reaper("d0", {"aws": Listed(SILENT)}, pager)  # type: ignore[dict-item]
    hook.script.append((500, "oops", {}))
    for _ in range(2):
        reaper.go_round(NotificationState(tmp_path), int(NOW_S * S))
    assert (tmp_path / "pages").read_text().count("i-silent") == 1
    assert texts(hook) == []


def test_a_page_goes_to_no_address_that_is_not_slacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the daemon's own alerts: see tests/spotd/alert_sinks/test_webhook.py."""
    names(monkeypatch, "10.0.0.1")
    took, [error] = Notifier([SlackSink("https://hooks.slack.com/services/canary")]).send("x")
    assert not took
    assert error == "hooks.slack.com leads to 10.0.0.1: nothing is sent there"


def test_a_page_command_gets_the_text_on_its_stdin(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "page"
    program.write_text(
        f"#!{sys.executable}\nimport sys; open({str(told)!r}, 'w').write(sys.stdin.read())\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert Notifier([CommandSink((str(program),))]).send("the box is dead") == (True, [])
    assert told.read_text() == "the box is dead"
    assert Notifier([CommandSink(("false",))]).send("x") == (False, ["false ended with 1"])
    _, [error] = Notifier([CommandSink((str(tmp_path / "nothing"),))]).send("x")
    assert "nothing failed: " in error


@pytest.mark.parametrize("words", ["", "{", "[1, 2]", '"a"', "[[]]"])
def test_a_memory_that_cannot_be_read_tells_again(tmp_path: Path, words: str) -> None:
    for name in ("told.json", "untold.json"):
        (tmp_path / name).write_text(words)
    assert NotificationState(tmp_path).news(["a"]) == ["a"]
    assert NotificationState(tmp_path).untold([]) == {}


def test_a_memory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    told = NotificationState(tmp_path / "not-there")
    assert "cannot be written" in told.keep(["a"])
    assert NotificationState(None).keep(["a"]) == ""


def test_a_machine_that_ends_by_itself_is_not_told_of_again(go: Go, hook: slack.Slack) -> None:
    cloud = Listed(SILENT)
    go(cloud)
    cloud.instances = [machine(1, instance_id="i-silent", state=InstanceState.TERMINATED)]
    go(cloud)
    assert len(texts(hook)) == 1
