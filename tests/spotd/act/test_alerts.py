"""The outbox's way out: at least once, few messages, honest about what did not arrive."""

from __future__ import annotations

import io
import itertools
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from spotd.act import alerts
from spotd.act.alerts import Delivery
from spotd.alert_sinks import webhook
from spotd.alert_sinks.base import Alert, AlertSink, AlertSinkError
from spotd.alert_sinks.log import LogSink
from spotd.alert_sinks.slack import RETRY_AFTER_CAP_S, SlackSink
from spotd.base import log as logs
from spotd.base.clock import SystemClock
from spotd.domain.events import Event, Severity
from spotd.domain.units import S
from spotd.store.alerts import AlertRepository
from spotd.store.errors import LostLeaseError, StoreUnavailableError
from spotd.store.sql_store import SqlStore
from tests.fixtures import slack as rig
from tests.fixtures.slack import SECRET, Slack
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.store import build
from tests.spotd.store.build import NOW

TTL_US = 30 * S


class HandClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_us(self) -> int:
        return NOW + int(self.passed_s * S)

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer may take longer than the daemon has time for."""
    monkeypatch.setattr(alerts, "WAIT_S", 60.0)
    monkeypatch.setattr(webhook, "READ_S", 60.0)


class Desk:
    """A delivery over a store, with its own time and the duty's lease."""

    def __init__(self, store: SqlStore, **routes: AlertSink) -> None:
        self.store = store
        self.clock = HandClock()
        self.delivery = Delivery(routes, self.clock)
        self.count = 0

    def happen(self, text: str = "m1 is gone", job_id: str = "", **fields: object) -> None:
        self.count += 1
        base: dict[str, object] = {"severity": Severity.WARNING, "key": f"k{self.count}"}
        kind = str(fields.pop("kind", "lost"))
        event = Event(kind, text, alert=True, **{**base, **fields})  # type: ignore[arg-type]
        self.store.events.add(job_id, event, self.clock.now_us())

    def tick(self, seconds: float = 0.0) -> None:
        """`seconds` later, one call of `deliver`."""
        self.clock.passed_s += seconds
        self.deliver("me")

    def deliver(self, holder: str) -> None:
        """As `holder` of the duty, who takes it if need be."""
        now_us = self.delivery._clock.now_us()
        epoch = self.store.leases.take("alerts", holder, lambda: now_us, TTL_US)
        assert epoch is not None
        self.delivery.deliver(self.store.fenced("alerts", epoch))

    def waiting(self) -> int:
        return len(self.store.alerts.due(1 << 60, 1000))


def events(store: SqlStore) -> list[str]:
    return [row.event.text for row in store.events.rows(None)]


def test_delivered_once(store: SqlStore, slack: Slack) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen("m1 is gone")
    desk.tick()
    assert desk.waiting() == 0
    for _ in range(3):
        desk.tick(60)
    assert len(slack.messages) == 1
    assert "m1 is gone" in slack.messages[0]["text"]


def test_a_message_says_what_the_job_has_cost(store: SqlStore, slack: Slack) -> None:
    view = build.placed(store)
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen(job_id="j1")
    desk.tick(3600)
    spent = store.load_view("j1", desk.clock.now_us())
    assert spent is not None
    assert spent.spent_microusd > view.spent_microusd
    assert f"${spent.spent_microusd / 1e6:.2f} spent" in slack.requests[0].decode()


@pytest.mark.req("MON-07")
@pytest.mark.parametrize("over_s", [1, 10, 55])
def test_a_storm_of_100_is_at_most_3_messages(store: SqlStore, slack: Slack, over_s: int) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    for second in range(over_s):
        for number in range(second, 100, over_s):
            desk.happen(f"m{number} is gone")
        desk.tick(1)
    for _ in range(120):
        desk.tick(1)
    assert desk.waiting() == 0
    assert 1 <= len(slack.messages) <= 3
    told = sum(_told(message["text"]) for message in slack.messages)
    assert told == 100


def _told(text: str) -> int:
    """How many alerts a message says it stands for."""
    found = re.search(r"(\d+) alerts: ", text)
    return int(found[1]) if found else 1


@pytest.mark.req("MON-07")
def test_never_more_than_one_message_a_second(store: SqlStore, slack: Slack) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    for number in range(3):
        desk.happen(f"m{number} is gone")
        desk.tick(0.4)
    assert len(slack.messages) == 1
    desk.tick(0.4)
    assert len(slack.messages) == 2


def test_a_few_alerts_do_not_wait_for_one_another(store: SqlStore, slack: Slack) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    for text in ("notice", "recovered", "notice again"):
        desk.happen(text)
        desk.tick(6)
    assert len(slack.messages) == 3


@pytest.mark.req("MON-07")
def test_429_is_obeyed(store: SqlStore, slack: Slack) -> None:
    slack.script = [(429, "rate_limited", {"Retry-After": "7"})]
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen("first")
    desk.tick()
    desk.happen("second")
    for _ in range(6):
        desk.tick(1)
    assert len(slack.requests) == 1, "asked again before Retry-After"
    desk.tick(1)
    assert len(slack.messages) == 1
    assert _told(slack.messages[0]["text"]) == 2


@pytest.mark.parametrize("said", ["nan", "-nan", "inf", "-1", "soon", "1e999"])
def test_a_429_that_makes_no_sense_ends_nothing(store: SqlStore, slack: Slack, said: str) -> None:
    slack.script = [(429, "rate_limited", {"Retry-After": said})]
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen("first")
    desk.tick()
    desk.tick(RETRY_AFTER_CAP_S + 1)
    assert len(slack.messages) == 1


def test_other_errors_are_tried_again_ever_more_rarely(store: SqlStore, slack: Slack) -> None:
    slack.script = [(500, "trouble", {})] * 12
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen()
    asked_s = []
    while len(slack.messages) < 1 and desk.clock.passed_s < 4000:
        before = len(slack.requests)
        desk.tick(1)
        if len(slack.requests) > before:
            asked_s.append(desk.clock.passed_s)
    pauses = [b - a for a, b in itertools.pairwise(asked_s)]
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert max(pauses) == 300
    assert len(slack.messages) == 1


@pytest.mark.parametrize(("status", "said"), [(404, "no_service"), (410, "channel_is_archived")])
def test_a_dead_webhook_is_reported_and_another_route_takes_over(
    store: SqlStore, slack: Slack, status: int, said: str
) -> None:
    with rig.serving() as spare:
        desk = Desk(store, default=SlackSink(slack.url), spare=SlackSink(spare.url))
        slack.script = [(status, said, {})] * 5
        desk.happen("m1 is gone")
        for _ in range(5):
            desk.tick(6)
        assert len(slack.requests) == 1, "asked a dead webhook again"
        assert "m1 is gone" in str(spare.requests)
        assert said in str(spare.requests)
        assert desk.waiting() == 0
        assert f"alert route default is disabled: Slack answered {status}: {said}" in str(
            events(store)
        )
        slack.script = []
        assert desk.delivery.test("default") == {"default": ""}
        desk.happen("m2 is gone")
        desk.tick(60)
        assert "m2 is gone" in slack.messages[-1]["text"], "a route that works again is not used"


def test_without_another_route_the_log_takes_over(
    store: SqlStore, slack: Slack, caplog: pytest.LogCaptureFixture
) -> None:
    slack.script = [(410, "channel_is_archived", {})]
    desk = Desk(store, default=SlackSink(slack.url))
    with logged() as out:
        desk.happen("m1 is gone")
        desk.tick()
        desk.tick(1)
    assert desk.waiting() == 0
    assert "m1 is gone" in out.getvalue()


def test_an_unknown_route_is_a_log_line(store: SqlStore, slack: Slack) -> None:
    desk = Desk(store, other=SlackSink(slack.url))
    with logged() as out:
        desk.happen("m1 is gone")
        desk.tick()
    assert desk.waiting() == 0
    assert "m1 is gone" in out.getvalue()
    assert slack.requests == []


def test_what_a_route_does_not_want_is_not_sent(store: SqlStore, slack: Slack) -> None:
    desk = Desk(store, default=SlackSink(slack.url, Severity.ERROR))
    desk.happen("small", severity=Severity.WARNING)
    desk.happen("large", severity=Severity.ERROR)
    desk.tick()
    assert desk.waiting() == 0
    assert len(slack.messages) == 1
    assert "small" not in slack.requests[0].decode()


@pytest.mark.req("MON-07")
def test_a_hanging_route_holds_up_nothing(
    store: SqlStore, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real clock: the call comes back, the other route is served, nothing is told twice."""
    monkeypatch.setattr(alerts, "WAIT_S", 1.0)
    view = build.submit(store, alerts=("default", "spare"))
    go_on = threading.Event()
    slack.before_answer = lambda: go_on.wait(LIMIT_S) and None
    with rig.serving() as spare:
        desk = Desk(store, default=SlackSink(slack.url), spare=SlackSink(spare.url))
        desk.delivery = Delivery(
            {"default": SlackSink(slack.url), "spare": SlackSink(spare.url)},
            SystemClock(),
        )
        desk.happen(job_id=view.job.id)
        desk.tick()
        assert under_way(desk), "the call came back before the route did"
        until(lambda: spare.messages)
        desk.tick()
        assert under_way(desk)
        assert desk.waiting() == 1, "that of the route which hangs"
        go_on.set()
        monkeypatch.setattr(alerts, "WAIT_S", 60.0)
        desk.tick()
        assert desk.waiting() == 0
        assert len(slack.requests) == 1


def under_way(desk: Desk) -> bool:
    """Whether a message by the default route is."""
    return desk.delivery._lanes["default"].sending is not None


def test_a_send_that_never_ends_is_given_up(
    store: SqlStore, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that drips a byte now and then outlives every time-out of the socket."""
    monkeypatch.setattr(alerts, "WAIT_S", 0.2)
    hung = threading.Event()

    class Stuck:
        min_severity = Severity.INFO
        paced = True

        def send(self, alerts: object) -> None:
            hung.wait(LIMIT_S)

    desk = Desk(store)
    desk.delivery = Delivery({"default": Stuck()}, desk.clock)
    desk.happen()
    desk.tick()
    assert under_way(desk), "the call came back before the route did"
    desk.tick(31)
    row = store.alerts.due(1 << 60, 1)[0]
    assert row.tries == 1
    hung.set()


def overtake(desk: Desk) -> None:
    """Its lease has run out, and another daemon has the duty."""
    later_us = desk.clock.now_us() + TTL_US + 1
    assert desk.store.leases.take("alerts", "another", lambda: later_us, TTL_US) == 2


def test_who_lost_the_duty_sends_nothing(store: SqlStore, slack: Slack) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    epoch = store.leases.take("alerts", "me", desk.clock.now_us, TTL_US)
    assert epoch is not None
    desk.happen()
    overtake(desk)
    with pytest.raises(LostLeaseError):
        desk.delivery.deliver(store.fenced("alerts", epoch))
    assert slack.messages == []
    assert desk.waiting() == 1


def test_who_lost_the_duty_while_a_message_was_on_its_way_marks_nothing(
    store: SqlStore, slack: Slack
) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen()
    slack.before_answer = lambda: overtake(desk)
    with pytest.raises(LostLeaseError):
        desk.tick()
    assert len(slack.messages) == 1
    assert desk.waiting() == 1, "a daemon that had lost the duty marked a row"


def test_what_was_told_is_not_told_again_when_the_store_fails(
    store: SqlStore, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen()

    def fail(*_: object) -> bool:
        raise StoreUnavailableError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(AlertRepository, "mark", fail)
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                desk.tick(10)
    desk.tick(10)
    assert desk.waiting() == 0
    assert len(slack.requests) == 1


def test_a_day_is_long_enough(store: SqlStore, slack: Slack) -> None:
    slack.script = [(500, "trouble", {})] * 3
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen()
    desk.tick()
    desk.tick(24 * 3600 + 1)
    assert desk.waiting() == 0
    assert len(slack.requests) == 1


def test_blocks_that_slack_does_not_like_come_as_plain_text(store: SqlStore, slack: Slack) -> None:
    slack.script = [(400, "invalid_blocks", {})]
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen("m1 is gone")
    desk.tick()
    assert desk.waiting() == 0
    assert "blocks" not in slack.messages[0]
    assert "m1 is gone" in slack.messages[0]["text"]


def test_a_200_that_is_not_ok_is_no_delivery(store: SqlStore, slack: Slack) -> None:
    slack.script = [(200, "<html>log in to the network</html>", {})]
    desk = Desk(store, default=SlackSink(slack.url))
    desk.happen()
    desk.tick()
    assert desk.waiting() == 1


def test_no_redirect_and_no_proxy(
    store: SqlStore, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with rig.serving() as thief:
        slack.script = [(307, "", {"Location": thief.url})]
        desk = Desk(store, default=SlackSink(slack.url))
        assert "307" in desk.delivery.test("default")["default"]
        assert thief.requests == []
    assert len(slack.requests) == 1


def test_test_says_what_is_wrong(store: SqlStore, slack: Slack) -> None:
    with closed_port() as port:
        nobody = SlackSink(f"http://127.0.0.1:{port}{SECRET}")
        desk = Desk(store, default=SlackSink(slack.url), nobody=nobody, lines=LogSink())
        found = desk.delivery.test("")
    assert found["default"] == ""
    assert found["lines"] == ""
    assert "Connection refused" in found["nobody"]
    assert desk.delivery.test("default") == {"default": ""}
    assert desk.delivery.test("unknown") == {}


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on and nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Everything that the process logs, as it is written, down to debug."""
    root, out = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure(level="debug", form="json", stream=out, hide=logs.Redactor())
        yield out
    finally:
        root.handlers[:], root.level = handlers, level
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()


@pytest.mark.parametrize(
    "answer",
    [(200, "ok", {}), (404, SECRET, {}), (500, SECRET, {}), (429, "", {}), (302, "", {}), None],
)
def test_the_url_is_nowhere(
    store: SqlStore,
    slack: Slack,
    answer: tuple[int, str, dict[str, str]] | None,
    quick_folder: Path,
) -> None:
    """Not in a log with a redactor that has never heard of it, nor in the database."""
    slack.script = [answer] if answer else []
    with closed_port() as port, logged() as out:
        route = SlackSink(slack.url if answer else f"http://127.0.0.1:{port}{SECRET}")
        desk = Desk(store, default=route)
        desk.happen()
        desk.tick()
        desk.tick(10)
        found = str(desk.delivery.test("default"))
    assert "canary" not in out.getvalue()
    assert "canary" not in found
    assert "canary" not in repr(route)
    assert "canary" not in f"{[str(row) for row in store.events.rows(None)]}"
    files = list(quick_folder.glob("spotd.db*"))
    assert files
    assert not any(b"canary" in file.read_bytes() for file in files)


class TwoAddresses:
    """A sink of two addresses, of which the second takes nothing while `dead`."""

    min_severity = Severity.DEBUG
    paced = True

    def __init__(self) -> None:
        self.dead = True
        self.took: tuple[list[int], list[int]] = ([], [])

    def send(self, told: Sequence[Alert]) -> None:
        rows = [row for alert in told for row in alert.rows]
        for took in self.took[: 1 if self.dead else 2]:
            took.extend(row for row in rows if row not in took)
        if self.dead:
            raise AlertSinkError("URL 2 of 2 did not take it", partly=True)

    def send_text(self, text: str) -> None:
        raise AssertionError(text)

    def reach(self) -> str:
        return ""


def test_a_dead_address_delays_no_message_to_the_others(store: SqlStore) -> None:
    sink = TwoAddresses()
    desk = Desk(store, default=sink)
    for number in range(1, 12):
        desk.happen(f"machine {number} is gone")
        desk.tick(10.0)  # a sink that fails altogether waits for minutes by now
        assert len(sink.took[0]) == number
    sink.dead = False
    for _ in range(10):
        desk.tick(70.0)
    assert sorted(sink.took[1]) == sink.took[0], "nothing is lost to the one that was dead"
    assert store.alerts.due(desk.clock.now_us() + 3600 * S, 100) == []


class Folding(Desk):
    """One that folds repeats for 300 s, over a store with the job j1."""

    def __init__(self, store: SqlStore, **routes: SlackSink | LogSink) -> None:
        super().__init__(store, **routes)
        build.submit(store)
        self.delivery = Delivery(
            routes, self.clock, repeat_s=300, dashboard_url="https://spotd.example.org"
        )


def test_the_same_alert_about_a_job_comes_once_in_an_interval(
    store: SqlStore, slack: Slack
) -> None:
    desk = Folding(store, default=SlackSink(slack.url))
    for number in range(4):
        desk.happen(f"the program exited with code 1; restart {number}", "j1", kind="crashed")
        desk.tick(70)
    assert [message["text"].count("restart") for message in slack.messages] == [1]
    assert desk.waiting() == 3
    desk.tick(299 - 3 * 70)
    assert len(slack.messages) == 1, "before the interval was over"
    desk.tick(1)
    assert len(slack.messages) == 2
    assert "restart 3 (alert" in slack.messages[1]["text"]
    assert ", 3 times)" in slack.messages[1]["text"]
    assert desk.waiting() == 0


def test_what_is_not_the_same_is_sent_at_once(store: SqlStore, slack: Slack) -> None:
    desk = Folding(store, default=SlackSink(slack.url))
    desk.happen("code 1", "j1", kind="crashed")
    desk.tick(2)
    desk.happen("code 1 for want of memory", "j1", kind="crashed")
    desk.tick(2)
    desk.happen("code 1", "j1", kind="crashed", severity=Severity.ERROR)
    desk.tick(6)
    desk.happen("code 1", "j1", kind="failed")
    desk.tick(6)
    assert len(slack.messages) == 4


def test_repeats_about_no_job_are_not_held_back(store: SqlStore, slack: Slack) -> None:
    desk = Folding(store, default=SlackSink(slack.url))
    for _ in range(2):
        desk.happen("m1 is gone")
        desk.tick(6)
    assert len(slack.messages) == 2


def test_repeats_that_wait_together_are_one_alert_of_a_digest(
    store: SqlStore, slack: Slack
) -> None:
    desk = Folding(store, default=SlackSink(slack.url))
    for number in range(5):
        desk.happen(f"m{number} is gone", "j1")
    desk.happen("the disk is full", "j1", kind="disk")
    desk.tick()
    assert "6 alerts: 5 lost, 1 disk" in slack.messages[0]["text"]
    assert "m4 is gone (alert" in str(slack.messages[0]["blocks"])
    assert "m0 is gone" not in str(slack.messages[0]["blocks"])


def test_the_log_has_each_repeat(store: SqlStore) -> None:
    desk = Folding(store, default=LogSink())
    with logged() as out:
        for _ in range(3):
            desk.happen("m1 is gone", "j1")
            desk.tick(1)
    assert out.getvalue().count("m1 is gone") == 3


def test_an_alert_links_to_the_page_of_its_job(store: SqlStore, slack: Slack) -> None:
    desk = Folding(store, default=SlackSink(slack.url))
    desk.happen("m1 is gone", "j1")
    desk.tick()
    view = store.load_view("j1", NOW)
    assert view is not None
    page = f"<https://spotd.example.org/job/{view.job.name}|dashboard>"
    assert page in slack.requests[0].decode()
    desk.happen("the box")
    desk.tick(60)
    assert "example.org" not in slack.requests[1].decode()


SENDER = """
import sys
from spotd.act.alerts import Delivery
from spotd.alert_sinks.slack import SlackSink
from spotd.base.clock import SystemClock
from spotd.store.sql_store import open_store

database, url = sys.argv[1], sys.stdin.readline().strip()
clock = SystemClock()
store = open_store(database, now=clock.now_us, notify=lambda: None, deployment_factory=lambda: "d0")
delivery = Delivery({"default": SlackSink(url)}, clock)
while store.alerts.due(clock.now_us(), 1):
    epoch = store.leases.take("alerts", "me", clock.now_us, 30_000_000)
    delivery.deliver(store.fenced("alerts", epoch))
store.close()
"""


@pytest.mark.req("MON-07")
def test_kill_between_post_and_mark(store: SqlStore, slack: Slack, quick_folder: Path) -> None:
    """A sender killed after Slack has the message and before the row is marked sends it again,
    with the same number; one that is not killed sends it once."""
    event = Event("lost", "m1 is gone", severity=Severity.WARNING, alert=True)
    store.events.add("", event, SystemClock().now_us())
    number = store.alerts.due(1 << 60, 1)[0].id
    taken, go_on = threading.Event(), threading.Event()
    slack.before_answer = lambda: (taken.set(), go_on.wait(LIMIT_S))[0]

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SENDER, f"sqlite:///{quick_folder}/spotd.db"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(slack.url.encode() + b"\n")
        process.stdin.close()
        return process

    first = start()
    assert taken.wait(LIMIT_S)
    first.send_signal(signal.SIGKILL)
    assert first.wait(LIMIT_S) == -signal.SIGKILL
    go_on.set()
    assert len(store.alerts.due(1 << 60, 10)) == 1
    assert start().wait(LIMIT_S) == 0
    assert start().wait(LIMIT_S) == 0
    assert store.alerts.due(1 << 60, 10) == []
    assert len(slack.messages) == 2
    assert all(f"(alert {number})" in message["text"] for message in slack.messages)


def test_a_page_goes_past_the_outbox_by_every_route_that_wants_it(
    store: SqlStore, slack: Slack
) -> None:
    with rig.serving() as spare:
        loud = SlackSink(spare.url, min_severity=Severity.ERROR)
        desk = Desk(store, default=SlackSink(slack.url), loud=loud)
        quiet = desk.delivery.page(Event("database_back", "it is back"))
        page = desk.delivery.page(Event("database_away", "it is away", severity=Severity.ERROR))
        until(lambda: len(slack.messages) == 2 and spare.messages)
        assert "it is away" in spare.messages[0]["text"]
        assert not quiet.failed
        assert not page.failed
    assert events(store) == []
    assert desk.waiting() == 0


def test_a_page_has_failed_when_no_route_took_it(store: SqlStore, slack: Slack) -> None:
    with rig.serving() as spare:
        desk = Desk(store, default=SlackSink(slack.url), spare=SlackSink(spare.url))
        slack.script = [(503, "later", {})] * 2
        page = desk.delivery.page(Event("database_away", "it is away"))
        until(lambda: slack.requests and spare.messages)
        assert not page.failed, "one of them did"
        spare.script = [(503, "later", {})]
        page = desk.delivery.page(Event("database_away", "it is away"))
        until(lambda: page.failed)
