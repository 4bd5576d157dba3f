"""Deliver alerts from the outbox: at least once, at most one message a second per sink, no flood.

A row counts as delivered only after the sink accepted it. A daemon that dies in between sends it
again; the number in the text shows the reader that it is the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import quote

import structlog

from spotd.act.alert_repeats import AlertRepeats, Folded, fold
from spotd.alert_sinks.base import Alert, AlertSink, AlertSinkError
from spotd.alert_sinks.log import LogSink
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.domain.units import S
from spotd.store.alerts import AlertRow
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

ROWS = 500  # looked at in one go
WAIT_S = 3.0  # for answers, in one call of `deliver`
ABANDON_S = 30.0  # a send that takes longer has failed, whatever its thread still waits for
TEST_S = 15.0
GIVE_UP_S = 24 * 3600
RETRY_CAP_S = 300.0
# Pauses between messages of one route, by the number of messages in the last minute: the first
# goes at once, a storm becomes one digest a minute.
WINDOW_S = 60.0
PAUSES_S = (0.0, 1.0, 5.0)
STORM_ROWS = 3

_RANK = {severity: rank for rank, severity in enumerate(Severity)}
_LOG = ""  # the name of the lane of rows that have no other


def as_alert(folded: Folded, *, spent_microusd: int = 0, dashboard_url: str = "") -> Alert:
    """Return rows of the outbox that say the same as one alert, as it is sent."""
    row = folded.newest
    page = quote(row.job_name or row.job_id, safe="")
    return Alert(
        id=folded.id,
        at_us=row.at_us,
        job_id=row.job_id,
        job_name=row.job_name,
        event=row.event,
        repeats=folded.repeats,
        spent_microusd=spent_microusd,
        link=f"{dashboard_url}/job/{page}" if dashboard_url and page else "",
        rows=tuple(row.id for row in folded.rows),
    )


class _Sending:
    """One message in progress on its own thread: a name server may hang for minutes."""

    def __init__(
        self,
        route: AlertSink,
        alerts: Sequence[Alert],
        now_s: float,
        rows: Sequence[AlertRow] = (),
    ) -> None:
        self.rows = rows
        self.started_s = now_s
        self.error: AlertSinkError | None = None
        self._done = threading.Event()
        self._route = route
        self._alerts = alerts
        threading.Thread(target=self._run, name="alert", daemon=True).start()

    def _run(self) -> None:
        try:
            self._route.send(self._alerts)
        except AlertSinkError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - a route's bug must not cost the alert
            self.error = AlertSinkError(f"the route broke: {type(error).__name__}")
        self._done.set()

    def wait(self, seconds: float) -> None:
        self._done.wait(seconds)

    def over(self, now_s: float) -> bool:
        """Return whether it has ended, by itself or because it took too long."""
        if self._done.is_set():
            return True
        if now_s - self.started_s < ABANDON_S:
            return False
        self.error = AlertSinkError(f"no answer within {ABANDON_S:.0f} s")
        return True


class DirectSend:
    """One event sent to several sinks, past the outbox."""

    def __init__(self, sendings: Sequence[_Sending], clock: Clock) -> None:
        self._sendings = sendings
        self._clock = clock

    @property
    def failed(self) -> bool:
        """Return whether every sink has refused it."""
        now_s = self._clock.monotonic_s()
        return all(sending.over(now_s) and sending.error for sending in self._sendings)


@dataclass
class _SinkQueue:
    """The traffic of one sink. It is lost with the process; the next one may send too soon."""

    route: AlertSink
    sent_s: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    not_before_s: float = 0.0
    gone: bool = False
    partly: bool = False  # some of its addresses take messages, and some do not
    sending: _Sending | None = None
    repeats: AlertRepeats = field(default_factory=AlertRepeats)

    def ready(self, waiting: int, now_s: float) -> bool:
        """Return whether a message with `waiting` alerts may be sent now."""
        if self.sending is not None or now_s < self.not_before_s:
            return False
        recent = [at_s for at_s in self.sent_s if now_s - at_s < WINDOW_S]
        if not recent or not self.route.paced:
            return True
        pause_s = PAUSES_S[min(len(recent), len(PAUSES_S) - 1)]
        if len(recent) >= len(PAUSES_S) - 1 and waiting > STORM_ROWS:
            pause_s = WINDOW_S
        return now_s - recent[-1] >= pause_s


class Delivery:
    """Sends due alerts. `deliver` belongs to the holder of the duty "alerts"."""

    def __init__(
        self,
        routes: Mapping[str, AlertSink],
        clock: Clock,
        *,
        repeat_s: float = 0.0,
        dashboard_url: str = "",
    ) -> None:
        """`repeat_s`: the same alert about a job is sent once in this time, with a count.
        `dashboard_url`: where the pages of jobs are, "" if nowhere."""
        self._clock = clock
        self._lock = threading.Lock()  # one delivery at a time, and no other routes meanwhile
        self._lanes: dict[str, _SinkQueue] = {}
        self.change(routes, repeat_s=repeat_s, dashboard_url=dashboard_url)

    def change(
        self, routes: Mapping[str, AlertSink], *, repeat_s: float = 0.0, dashboard_url: str = ""
    ) -> None:
        """Use new sinks and settings. Messages in progress continue, and an unchanged sink keeps
        its pace.

        A sink that had been given up is used again if it changed.
        """
        with self._lock:
            self._repeat_s, self._dashboard_url = repeat_s, dashboard_url
            lanes: dict[str, _SinkQueue] = {}
            for name, route in routes.items():
                known = self._lanes.get(name)
                if known is None or known.route != route:
                    known = _SinkQueue(route, sending=known.sending if known else None)
                lanes[name] = known
            self._lanes = {**lanes, _LOG: _SinkQueue(LogSink(Severity.DEBUG))}

    def deliver(self, store: Store) -> None:
        """Send due alerts, back within WAIT_S even when a route hangs. `store` is fenced for the
        duty. Raises StoreError."""
        with self._lock:
            self._deliver(store)

    def _deliver(self, store: Store) -> None:
        self._settle(store)
        waiting: dict[str, list[AlertRow]] = {}
        for row in store.alerts.due(self._clock.now_us(), ROWS):
            if not self._give_up(row, store):
                waiting.setdefault(self._lane_of(row.route), []).append(row)
        for name, rows in waiting.items():
            self._send(self._lanes[name], rows, store)
        end_s = self._clock.monotonic_s() + WAIT_S
        for lane in self._lanes.values():
            if lane.sending is not None:
                lane.sending.wait(end_s - self._clock.monotonic_s())
        self._settle(store)

    def test(self, route: str) -> Mapping[str, str]:
        """Send a test message by `route`, or by every one (""): name -> "" or the error.

        A disabled route that accepts the message is enabled again.
        """
        lanes = self._lanes
        names = [name for name in lanes if name != _LOG and route in ("", name)]
        now_s, now_us = self._clock.monotonic_s(), self._clock.now_us()
        alert = Alert(0, now_us, "", "", Event("test", "this is a test of the alert route"))
        sendings = {}
        for name in names:
            sendings[name] = _Sending(lanes[name].route, [alert], now_s)
        errors = {}
        for name, sending in sendings.items():
            sending.wait(TEST_S - (self._clock.monotonic_s() - now_s))
            if not sending.over(self._clock.monotonic_s()):
                errors[name] = f"no answer within {TEST_S:.0f} s"
            else:
                errors[name] = str(sending.error or "")
            if not errors[name]:
                lanes[name].gone = False
        return errors

    def reach(self) -> Mapping[str, tuple[str, bool]]:
        """Return, by route name, the obstacle to messages, or "", and whether the route is
        disabled."""
        lanes = [(name, lane) for name, lane in self._lanes.items() if name != _LOG]
        if not lanes:
            return {}
        with ThreadPoolExecutor(len(lanes), thread_name_prefix="reach") as pool:
            checks = [pool.submit(lane.route.reach) for _, lane in lanes]
        return {
            name: (one.result(), lane.gone) for (name, lane), one in zip(lanes, checks, strict=True)
        }

    def page(self, event: Event) -> DirectSend:
        """Send an event by every route that wants such, at once and past the outbox. Returns before
        they answer."""
        now_s, now_us = self._clock.monotonic_s(), self._clock.now_us()
        sendings = []
        for name, lane in self._lanes.items():
            if name != _LOG and _RANK[event.severity] >= _RANK[lane.route.min_severity]:
                alert = Alert(0, now_us, "", "", event)
                sendings.append(_Sending(lane.route, [alert], now_s))
        return DirectSend(sendings, self._clock)

    def _lane_of(self, route: str) -> str:
        """Return the route itself, the substitute of a disabled one, or the log."""
        lane = self._lanes.get(route)
        if lane is None:
            return _LOG
        if not lane.gone:
            return route
        others = (name for name, other in self._lanes.items() if other.route.paced)
        return next((name for name in others if not self._lanes[name].gone), _LOG)

    def _give_up(self, row: AlertRow, store: Store) -> bool:
        now_us = self._clock.now_us()
        if not row.tries or now_us - row.at_us < GIVE_UP_S * S:
            return False
        log.error("alert not delivered for a day", route=row.route, number=row.id)
        store.alerts.mark([row], now_us, 0, "not delivered for a day: given up")
        return True

    def _send(self, lane: _SinkQueue, rows: list[AlertRow], store: Store) -> None:
        now_us, now_s = self._clock.now_us(), self._clock.monotonic_s()
        lowest = _RANK[lane.route.min_severity]
        wanted = [row for row in rows if _RANK[row.event.severity] >= lowest]
        quiet = [row for row in rows if _RANK[row.event.severity] < lowest]
        if quiet:
            store.alerts.mark(quiet, now_us, 0, "below the route's min_severity")
        again = [row for row in wanted if row.tries]  # an address has not taken them
        if lane.route.paced:
            fresh = [row for row in wanted if not row.tries]
            fresh, early = lane.repeats.split(fresh, now_s, self._repeat_s)
            for left_s, rows_ in early:
                store.alerts.put_off(rows_, now_us + int(left_s * S))
            # The addresses that answer do not wait for a digest with what they have already.
            wanted = fresh if fresh and lane.partly else [*again, *fresh]
        if wanted and lane.ready(len(wanted), now_s):
            folded = fold(wanted) if lane.route.paced else [Folded([row]) for row in wanted]
            alerts = [
                as_alert(
                    item,
                    spent_microusd=self._spent(item.newest, len(folded), store),
                    dashboard_url=self._dashboard_url,
                )
                for item in folded
            ]
            store.leases.check(self._clock.now_us())  # whoever was overtaken sends nothing
            lane.sending = _Sending(lane.route, alerts, now_s, wanted)

    def _spent(self, row: AlertRow, rows: int, store: Store) -> int:
        """Return the job's cost for a message about one thing; others have no room for it."""
        if rows > 1 or not row.job_id:
            return 0
        view = store.load_view(row.job_id, self._clock.now_us())
        return view.spent_microusd if view else 0

    def _settle(self, store: Store) -> None:
        """Record the results of messages before forgetting them.

        Results that another daemon has recorded meanwhile stay.
        """
        now_s = self._clock.monotonic_s()
        for name, lane in self._lanes.items():
            sending = lane.sending
            if sending is None or not sending.over(now_s):
                continue
            error = sending.error
            rows = sending.rows
            if error is None:
                self._mark(store, rows, self._clock.now_us(), 0.0, "")
                lane.sent_s.append(now_s)
                lane.repeats.note(rows, now_s)
                lane.partly = False
            else:
                self._fail(name, lane, rows, error, store)
            lane.sending = None

    def _fail(
        self,
        name: str,
        lane: _SinkQueue,
        rows: Sequence[AlertRow],
        error: AlertSinkError,
        store: Store,
    ) -> None:
        log.warning("alerts not sent", route=name, rows=len(rows), error=str(error))
        if error.gone:
            self._report(name, str(error), store)
            self._mark(store, rows, 0, 0.0, str(error))
            lane.gone = True
            return
        tries = max(row.tries for row in rows)
        pause_s = error.retry_after_s or min(float(1 << min(tries, 10)), RETRY_CAP_S)
        self._mark(store, rows, 0, pause_s, str(error))
        now_s, lane.partly = self._clock.monotonic_s(), error.partly
        if not error.partly:
            lane.not_before_s = now_s + pause_s
        elif fresh := [row for row in rows if not row.tries]:
            lane.sent_s.append(now_s)
            lane.repeats.note(fresh, now_s)

    def _mark(
        self, store: Store, rows: Sequence[AlertRow], sent_at_us: int, pause_s: float, error: str
    ) -> None:
        next_at_us = self._clock.now_us() + int(pause_s * S)
        store.alerts.mark(rows, sent_at_us, next_at_us, error)

    def _report(self, name: str, error: str, store: Store) -> None:
        text = f"alert route {name} is disabled: {error}"
        key = f"route:{name}"
        event = Event("alert_route", text, severity=Severity.ERROR, alert=True, key=key)
        store.events.add("", event, self._clock.now_us())
