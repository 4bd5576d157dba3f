"""What pages show: answers of the daemon's API, kept for a moment, and for as long as the daemon is
away."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from spotd.api_client.client import Client, Target, local_socket
from spotd.base.errors import ExitCode, UnreachableError, UserError

NOW_S = 2.0  # what is asked for each time that a page is shown, by however many
SOON_S = 15.0  # what costs the daemon more, or moves little
SELDOM_S = 60.0  # prices and checkpoints: of the latter the daemon asks a store
MOST_KEPT = 400  # answers
MOST_EVENTS = 500
_REPLY_S = 20.0
_AT_ONCE = 8
_AGAIN_S = 5.0  # before a daemon that did not answer is asked anew


@dataclass(frozen=True)
class Query:
    """One question: a route that only reads, and how old its answer may be. `body`: it is one of
    the routes that are asked with POST."""

    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    fresh_s: float = NOW_S
    body: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        return repr((self.path, sorted(self.query.items()), self.body))


@dataclass
class Answer:
    data: dict[str, Any]
    at_s: float  # by time.monotonic


@dataclass
class PageData:
    """What one page was made of. `refused`: what the daemon said no to, as (text, what to try).
    `away`: it does not answer, and why; `old_s`: the age of the oldest answer that is shown."""

    refused: list[tuple[str, str]] = field(default_factory=list)
    away: tuple[str, str] | None = None
    old_s: float = 0.0


class ApiCache:
    """Answers of one daemon. Several threads may ask. `kept`: how many times as long as they may
    be old they are kept."""

    def __init__(self, target: Target, kept: float = 1.0) -> None:
        self.target = target
        self._times = kept
        self._link = _DaemonLink(target)
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._events: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dashboard")
        self._away: tuple[str, str] | None = None
        self._again_s = 0.0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._link.close()

    def ask(self, reading: PageData, *asks: Query) -> list[dict[str, Any] | None]:
        """The answers in order, several asked for at once; None for one that there is not, which
        `reading` says."""
        return list(self._pool.map(lambda one: self._ask(reading, one), asks))

    def events(self, reading: PageData, job_id: str = "") -> list[dict[str, Any]]:
        """The newest of one job or of all, oldest first, at most MOST_EVENTS. After the first time
        only those since are asked for."""
        cursor, known = self._events.get(job_id, (0, []))
        query = {"after": cursor, "job": job_id} if cursor else {"last": MOST_EVENTS, "job": job_id}
        news = self._ask(reading, Query("/v1/events", query))
        if news is None:
            return known
        with self._lock:
            cursor, known = self._events.get(job_id, (0, []))
            known = [*known, *(one for one in news["items"] if one["id"] > cursor)][-MOST_EVENTS:]
            cursor = max(cursor, news["cursor"])
            if len(self._events) > MOST_KEPT:
                self._events.clear()
            self._events[job_id] = (cursor, known)
        return known

    def _ask(self, reading: PageData, ask: Query) -> dict[str, Any] | None:
        with self._lock:
            kept = self._kept.get(ask.key)
            away = self._away if time.monotonic() < self._again_s else None
        fresh_s = ask.fresh_s * self._times
        if kept is not None and time.monotonic() - kept.at_s < fresh_s and away is None:
            return kept.data
        if away is None:
            try:
                return self._fetch(ask)
            except UnreachableError as error:
                away = (error.text, error.try_)
                with self._lock:
                    self._away, self._again_s = away, time.monotonic() + _AGAIN_S
            except UserError as error:
                reading.refused.append((error.text, error.try_))
                if error.exit_code in (ExitCode.NOT_FOUND, ExitCode.AUTH):
                    return None
                return self._old(reading, kept)
        reading.away = away
        return self._old(reading, kept)

    def _fetch(self, ask: Query) -> dict[str, Any]:
        asked_s = time.monotonic()
        with self._link.client() as client:
            if ask.body is not None:
                data = client.post(ask.path, ask.body)
            else:
                data = client.get(ask.path, **ask.query)
        with self._lock:
            self._away = None
            self._kept[ask.key] = Answer(data, asked_s)
            self._kept.move_to_end(ask.key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return data

    @staticmethod
    def _old(reading: PageData, kept: Answer | None) -> dict[str, Any] | None:
        if kept is None:
            return None
        reading.old_s = max(reading.old_s, time.monotonic() - kept.at_s)
        return kept.data


class _DaemonLink:
    """The way to the daemon: its socket, or an ssh that is started anew where one has ended, as it
    does when a laptop slept."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        self._client: Client | None = None

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            client = self._client
        try:
            yield client
        except UnreachableError:
            with self._lock:
                if self._client is client:
                    self._close()
            raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._client = None
        self._open.close()

    def _connect(self) -> Client:
        if not self._target.host:
            return Client(local_socket(self._target.socket), reply_s=_REPLY_S)
        from spotd.api_client.tunnel import forward
        from spotd.base.paths import SYSTEM_SOCKET

        remote = self._target.socket or str(SYSTEM_SOCKET)
        path = self._open.enter_context(forward(self._target.host, remote))
        return Client(path, f"{self._target.host}:{remote}", _REPLY_S)
