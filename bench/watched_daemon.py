"""The daemon as it is, watched: when was each notice handed to the store, when was it planned for.

    python bench/watched_daemon.py CONFIG FOLDER [PIPE]

Writes plans.jsonl (one line per replacement that was committed after a notice) into FOLDER, and on
SIGUSR1 threads.json, the names of its threads. With PIPE its nodes are reached through that unix
socket instead of SSH; nothing else is replaced.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipe_link import PipeLink

import spotd.daemon.daemon
from spotd import wire
from spotd.base import log
from spotd.config.load import load_config
from spotd.domain.plan import AddNode, Plan
from spotd.store.commit import CommitResult, CommitStatus
from spotd.store.journal import JournalBatch


def watch(store: Any, path: Path) -> None:
    """Note the moments on their way through the store's own methods."""
    record_journal, commit_many = store.journal.record, store.commit_many
    handed_us: dict[str, int] = {}

    def noted_journal(batches: Sequence[JournalBatch]) -> None:
        now_us = time.time_ns() // 1_000
        for batch in batches:
            if any(entry.kind == wire.NOTICE for entry in batch.entries):
                handed_us.setdefault(batch.node_id.partition("-")[0], now_us)
        record_journal(batches)

    def noted_commit(plans: Sequence[tuple[Any, Plan]], now_us: int) -> list[CommitResult]:
        results: list[CommitResult] = commit_many(plans, now_us)
        done_us = time.time_ns() // 1_000
        for (view, plan), result in zip(plans, results, strict=True):
            launches = any(isinstance(change, AddNode) for change in plan.changes)
            if launches and result.status is CommitStatus.DONE and view.job.id in handed_us:
                line = {"job": view.job.id, "handed_us": handed_us.pop(view.job.id)}
                with path.open("a") as file:
                    file.write(json.dumps({**line, "planned_us": done_us}) + "\n")
        return results

    store.journal.record, store.commit_many = noted_journal, noted_commit


def main() -> None:
    config, folder = load_config(Path(sys.argv[1])), Path(sys.argv[2])
    if len(sys.argv) > 3:
        spotd.daemon.daemon.SshLink = partial(PipeLink, sys.argv[3])  # type: ignore[misc,assignment]
    log.configure(level=config.file.log.level, form=config.file.log.format)
    daemon = spotd.daemon.daemon.Daemon(config)
    watch(daemon.store, folder / "plans.jsonl")

    def tell_threads(_number: int, _frame: object) -> None:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        (folder / "threads.part").write_text(json.dumps(names))
        (folder / "threads.part").rename(folder / "threads.json")

    signal.signal(signal.SIGUSR1, tell_threads)
    daemon.run()


if __name__ == "__main__":
    main()
