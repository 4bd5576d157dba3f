"""Upload the rest of the output to the job's store, where it is too much for the daemon to fetch.

The daemon fetches the output of a running script slowly, and holds the machine only for a short
time when the script has ended. In that time the machine can send far more to a store near it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from providers.stores import open_store
from spotd.wire import STORED_FROM_BYTES, STORED_S, StartDocument, last_output_key
from trainer.agent.base.context import AgentContext
from trainer.agent.base.paths import write_private
from trainer.agent.base.pythons import add_saver_packages
from trainer.agent.base.stop_timing import FINAL_S, Stopping
from trainer.agent.base.streams import LogReader

_LOG = logging.getLogger(__name__)
READ_BYTES = 1 << 20
STOPPED_S = 2.0  # for the upload after a program that used up its time to stop


class _LateError(Exception):
    """The machine is not held any longer."""


class LastOutput:
    """Uploads one generation's rest of the output. `start` returns at once; `done` comes by
    `post`, after STORED_S at the latest."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    def start(
        self,
        start: StartDocument,
        stopping: Stopping | None,
        notice_deadline: float | None,
        *,
        done: Callable[[], None],
    ) -> bool:
        """Upload in a thread, if more than STORED_FROM_BYTES were not sent; return whether so."""
        if sum(end - begin for _, begin, end in self._left()) <= STORED_FROM_BYTES:
            return False
        kill_at = stopping.kill_at if stopping else None
        deadline = upload_deadline(self._context.monotonic(), kill_at, notice_deadline)
        over = threading.Event()

        def end() -> None:
            if not over.is_set():
                over.set()
                self._context.post(done)

        def run() -> None:
            try:
                self._upload(start, deadline)
            except _LateError:
                _LOG.warning("the rest of the output is not uploaded: it took too long")
            except Exception:  # noqa: BLE001 - a program ends whatever becomes of its output
                _LOG.exception("the rest of the output cannot be uploaded")
            finally:
                self._context.post(end)

        threading.Thread(target=run, name="last-output", daemon=True).start()
        late = threading.Timer(
            max(deadline - self._context.monotonic(), 0.0), self._context.post, (end,)
        )
        late.daemon = True
        late.start()
        return True

    def _left(self) -> list[tuple[Path, int, int]]:
        """Return each log with the bytes of it that were not sent."""
        try:
            sent = json.loads(self._context.paths.sent_logs.read_bytes())
        except (OSError, ValueError):
            sent = {}
        left = []
        for path in sorted(self._context.paths.logs.glob("*.log")):
            first, end = LogReader(path).bounds()
            left.append((path, min(max(first, sent.get(path.stem, 0)), end), end))
        return left

    def _upload(self, start: StartDocument, deadline: float) -> None:
        """Raises StoreError, OSError, and _LateError at the deadline."""
        add_saver_packages(self._context.paths.home)
        store = open_store(start.storage.store_url, start.storage.store_options)
        config = self._context.config
        for path, sent, end in self._left():
            # What was sent last may not have arrived.
            begin = LogReader(path).unbroken_from(max(sent - STORED_FROM_BYTES, 0))
            if begin >= end:
                continue
            key = last_output_key(
                config.job_id, generation=config.generation, rank=config.rank, stream=path.stem
            )
            store.put(key, self._content(path, begin=begin, end=end, deadline=deadline))
            stored_range = json.dumps([begin, end]).encode()
            write_private(self._context.paths.stored_log(path.stem), stored_range)

    def _content(self, path: Path, *, begin: int, end: int, deadline: float) -> Iterator[bytes]:
        reader = LogReader(path)
        while begin < end:
            if self._context.monotonic() >= deadline:
                raise _LateError
            offset, data = reader.read(begin, min(READ_BYTES, end - begin))
            if offset != begin or not data:
                raise OSError(f"{path.name} has lost byte {begin}")
            yield data
            begin += len(data)


def upload_deadline(now: float, kill_at: float | None, notice_deadline: float | None) -> float:
    """Return when the upload must end: after STORED_S, and in time for a stop and a notice."""
    until = now + STORED_S
    if kill_at is not None:
        until = min(until, max(kill_at, now + STOPPED_S))
    return until if notice_deadline is None else min(until, notice_deadline - FINAL_S)
