"""Upload the files that a program leaves on this machine, before the machine is terminated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from providers.stores import open_store
from providers.stores.base import StoreError
from spotd import wire
from spotd.wire import OutputRules, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.pythons import add_saver_packages
from trainer.directory.units import Rules
from trainer.outputs.files import Selection, format_size, select_changed, select_matching
from trainer.outputs.upload import StoredOutputs, Upload, join_problems, upload_outputs

_LOG = logging.getLogger(__name__)
PATIENCE_S = 3600.0  # without an answer of the store, after a program that has finished
IMPATIENCE_S = 120.0  # the same after any other end
FAILED_S = 60.0  # for the upload after a program that failed: its restart waits for it
DONE = f"{wire.OUTPUTS}:done"


class _EndedError(Exception):
    """The agent ends."""


class OutputsCollector:
    """Uploads the outputs of one generation. `start` returns at once; `done` comes by `post`.

    `deadline` of `start` returns at any time when the upload must end, on the monotonic clock, or
    None for no limit.
    """

    def __init__(self, context: AgentContext, *, is_done: bool) -> None:
        self._context = context
        self.is_done = is_done
        self.files = 0  # stored by this agent

    def start(
        self,
        start: StartDocument,
        *,
        since_ns: int,
        finished: bool,
        deadline: Callable[[], float | None],
        done: Callable[[bool], None],
    ) -> None:
        """Upload in a thread; `done` receives whether everything that can be stored is stored.

        `finished` says that the program ended with success: then the machine waits for the upload.
        """
        monotonic = self._context.monotonic

        def cancelled() -> bool:
            until_s = deadline()
            return until_s is not None and monotonic() >= until_s

        upload = Upload(
            job_id=self._context.config.job_id,
            generation=self._context.config.generation,
            rank=self._context.config.rank,
            cancelled=cancelled,
            patience_s=PATIENCE_S if finished else IMPATIENCE_S,
            pause=self._pause,
            monotonic=monotonic,
            now_us=self._context.now_us,
        )

        def run() -> None:
            complete = True
            try:
                complete = self._collect(start, since_ns=since_ns, upload=upload)
            except _EndedError:
                return
            except Exception as error:  # noqa: BLE001 - a program ends whatever its upload does
                _LOG.exception("the outputs cannot be uploaded")
                self._report_failure(f"{type(error).__name__}: {error}")
            self._context.post(lambda: self._finish(done, complete=complete))

        threading.Thread(target=run, name="outputs", daemon=True).start()

    def _finish(self, done: Callable[[bool], None], *, complete: bool) -> None:
        self.is_done = True
        done(complete)

    def _pause(self, seconds: float) -> None:
        if self._context.ended.wait(seconds):
            raise _EndedError

    def _collect(self, start: StartDocument, *, since_ns: int, upload: Upload) -> bool:
        """Select and upload the files, and record both in the journal. Raises _EndedError."""
        rules = start.files.outputs
        if rules is None:
            return True
        selection = select_outputs(self._context, start, rules, since_ns=since_ns)
        stored, began_s = StoredOutputs(), upload.monotonic()
        if selection.files:
            begin = {
                "status": "begin",
                "files": len(selection.files),
                "bytes": selection.size,
            }
            self._context.journal.append(wire.OUTPUTS, begin)
            add_saver_packages(self._context.paths.home)
            try:
                open_ = partial(open_store, start.storage.store_url, start.storage.store_options)
                stored = upload_outputs(open_, selection.files, upload)
            except StoreError as error:
                size = format_size(selection.size)
                left = f"{len(selection.files)} files ({size}) stay on the machine"
                self._report_failure(f"{left}: {error}")
                return True
        self._report_stored(stored, selection, seconds=upload.monotonic() - began_s)
        return stored.complete

    def _report_stored(
        self, stored: StoredOutputs, selection: Selection, *, seconds: float
    ) -> None:
        problems = [*selection.problems, *stored.problems]
        if not stored.complete:
            missing = len(selection.files) - stored.files
            problems.insert(0, f"{missing} files are left out: the machine had to go")
        if not (stored.files or problems):
            return
        self.files = stored.files
        entry = {
            "status": "stored",
            "manifest": stored.manifest,
            "digest": stored.digest,
            "files": stored.files,
            "bytes": stored.size,
            "new_bytes": stored.new_size,
            "seconds": round(seconds, 3),
            "text": join_problems(problems),
        }
        self._context.journal.append(wire.OUTPUTS, entry)

    def _report_failure(self, text: str) -> None:
        self._context.journal.append(wire.OUTPUTS, {"status": "failed", "text": text})


def select_outputs(
    context: AgentContext, start: StartDocument, rules: OutputRules, *, since_ns: int
) -> Selection:
    """Select the files to upload: those that the job names, or that changed after `since_ns`.

    Files that the agent saves as the program's checkpoints or caches are left out.
    """
    workdir = context.paths.workdir
    if rules.patterns:
        skip = _is_saved(context, start) if start.checkpoint.directory else lambda _: False
        return select_matching(workdir, patterns=rules.patterns, home=Path.home(), skip=skip)
    folders = [
        context.paths.in_workdir(str(Path(path).expanduser()))
        for path in (start.checkpoint.directory, *start.files.caches)
        if path
    ]
    return select_changed(
        workdir,
        since_ns=since_ns,
        max_bytes=rules.max_bytes,
        skip=lambda path: any(path.is_relative_to(folder) for folder in folders),
    )


def _is_saved(context: AgentContext, start: StartDocument) -> Callable[[Path], bool]:
    folder = context.paths.in_workdir(start.checkpoint.directory)
    rules = Rules(start.checkpoint.include, start.checkpoint.exclude)
    return lambda path: (
        path.is_relative_to(folder) and rules.wants(path.relative_to(folder).as_posix())
    )
