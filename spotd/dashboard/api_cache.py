"""A cache of API replies for the dashboard's pages.

Replies are reused for a moment, and for as long as the daemon does not answer.
"""

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
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.base.errors import ExitCode, UnreachableError, UserError

NOW_S = 2.0  # data that every page view fetches, however many browsers are open
SOON_S = 15.0  # data that costs the daemon more, or changes slowly
SELDOM_S = 60.0  # prices and checkpoints; for the latter the daemon reads a store
MOST_KEPT = 400  # replies
MOST_EVENTS = 500
_REPLY_S = 20.0
_AT_ONCE = 8
_RETRY_S = 5.0  # pause before the next request to a daemon that did not answer


@dataclass(frozen=True)
class Query:
    """A request of an operation that only reads, and the maximum age of its reply in seconds.

    `body`: set for the reading operations that use POST.
    """

    endpoint: Endpoint
    query: Mapping[str, object] = field(default_factory=dict)
    fresh_s: float = NOW_S
    body: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        return repr((self.endpoint.path, sorted(self.query.items()), self.body))


@dataclass
class Answer:
    data: dict[str, Any]
    at_s: float  # by time.monotonic


@dataclass
class PageData:
    """The failures while the data of one page was fetched.

    `refused`: refused requests, as (message, what to try). `away`: the same, when the daemon does
    not answer. `old_s`: age in seconds of the oldest reply shown.
    """

    refused: list[tuple[str, str]] = field(default_factory=list)
    away: tuple[str, str] | None = None
    old_s: float = 0.0


class ApiCache:
    """The cached replies of one daemon. Thread-safe.

    `age_factor` multiplies the maximum age of every reply.
    """

    def __init__(self, target: Target, age_factor: float = 1.0) -> None:
        self.target = target
        self._age_factor = age_factor
        self._link = _DaemonLink(target)
        self._replies: OrderedDict[str, Answer] = OrderedDict()
        self._events: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dashboard")
        self._problem: tuple[str, str] | None = None
        self._retry_at_s = 0.0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._link.close()

    def fetch(self, page_data: PageData, *queries: Query) -> list[dict[str, Any] | None]:
        """Return the replies in order, fetched in parallel; None for a missing one.

        `page_data` says why a reply is missing.
        """
        return list(self._pool.map(lambda query: self._get(page_data, query), queries))

    def events(self, page_data: PageData, job_id: str = "") -> list[dict[str, Any]]:
        """Return the newest events of one job or of all, oldest first, at most MOST_EVENTS.

        After the first time only newer events are fetched.
        """
        cursor, events = self._events.get(job_id, (0, []))
        query = {"after": cursor, "job": job_id} if cursor else {"last": MOST_EVENTS, "job": job_id}
        newer = self._get(page_data, Query(routes.READ_EVENTS(), query))
        if newer is None:
            return events
        with self._lock:
            cursor, events = self._events.get(job_id, (0, []))
            events = [*events, *(event for event in newer["items"] if event["id"] > cursor)][
                -MOST_EVENTS:
            ]
            cursor = max(cursor, newer["cursor"])
            if len(self._events) > MOST_KEPT:
                self._events.clear()
            self._events[job_id] = (cursor, events)
        return events

    def _get(self, page_data: PageData, query: Query) -> dict[str, Any] | None:
        with self._lock:
            cached = self._replies.get(query.key)
            problem = self._problem if time.monotonic() < self._retry_at_s else None
        fresh_s = query.fresh_s * self._age_factor
        if cached is not None and time.monotonic() - cached.at_s < fresh_s and problem is None:
            return cached.data
        if problem is None:
            try:
                return self._fetch(query)
            except UnreachableError as error:
                problem = (error.text, error.try_)
                with self._lock:
                    self._problem, self._retry_at_s = problem, time.monotonic() + _RETRY_S
            except UserError as error:
                page_data.refused.append((error.text, error.try_))
                if error.exit_code in (ExitCode.NOT_FOUND, ExitCode.AUTH):
                    return None
                return self._stale(page_data, cached)
        page_data.away = problem
        return self._stale(page_data, cached)

    def _fetch(self, query: Query) -> dict[str, Any]:
        requested_s = time.monotonic()
        with self._link.client() as client:
            data = client.call(query.endpoint, query.body, query=query.query)
        with self._lock:
            self._problem = None
            self._replies[query.key] = Answer(data, requested_s)
            self._replies.move_to_end(query.key)
            while len(self._replies) > MOST_KEPT:
                self._replies.popitem(last=False)
        return data

    @staticmethod
    def _stale(page_data: PageData, cached: Answer | None) -> dict[str, Any] | None:
        if cached is None:
            return None
        page_data.old_s = max(page_data.old_s, time.monotonic() - cached.at_s)
        return cached.data


class _DaemonLink:
    """The connection to the daemon: its socket, or an ssh tunnel.

    A tunnel that has ended is started again; it ends, for example, while a laptop sleeps.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
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
        self._stack.close()

    def _connect(self) -> Client:
        if not self._target.host:
            return Client(local_socket(self._target.socket), reply_s=_REPLY_S)
        from spotd.api_client.tunnel import forward
        from spotd.base.paths import SYSTEM_SOCKET

        remote = self._target.socket or str(SYSTEM_SOCKET)
        path = self._stack.enter_context(forward(self._target.host, remote))
        return Client(path, f"{self._target.host}:{remote}", _REPLY_S)
