"""Choose the checkpoint to resume from: the newest in HEAD's history that can be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from providers.stores.base import NotFoundError, ObjectStore, StoreUnavailableError
from spotd.wire import CHECKPOINT_SKIPPED, Head, HeadRef, Manifest
from trainer.hook.spotd_hook import memory_check
from trainer.saver.reader import CorruptError, read_manifest

READ_ATTEMPTS = 3
Result = TypeVar("Result")


class MismatchError(Exception):
    """The checkpoint has another model, configuration or data; the text names the difference."""


class UnusableError(Exception):
    """HEAD names checkpoints and none of them can be read."""


class ResumeChain:
    """The checkpoints of HEAD to try, newest first.

    Leaves out the manifest `suspect`, steps after `most_step`, and the newest `back` of the rest;
    at least one checkpoint stays. `report` takes journal entries.
    """

    def __init__(
        self,
        store: ObjectStore,
        head: Head,
        report: Callable[[str, Mapping[str, Any]], None],
        *,
        back: int = 0,
        most_step: int | None = None,
        suspect: str = "",
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._job = store, head.job
        refs = [ref for ref in (head.current, *head.previous) if ref]
        refs = [ref for ref in refs if most_step is None or ref.step <= most_step]
        refs = [ref for ref in refs if ref.manifest != suspect] or refs
        self._candidates = refs[min(back, max(len(refs) - 1, 0)) :]
        self._length = len(self._candidates)
        self._report, self._pause = report, pause

    def newest(self, config: Mapping[str, Any] | None) -> tuple[HeadRef, Manifest] | None:
        """Return the newest usable checkpoint that was not skipped; None if the job never had one.

        Skips damaged manifests and reports them. Raises MismatchError if the checkpoint was made
        with another `config`, UnusableError if none is left, and StoreUnavailableError if the store
        does not answer, because an outage is not a reason to use an older checkpoint.
        """
        while self._candidates:
            ref = self._candidates[0]
            try:
                manifest = self.retry(partial(read_manifest, self._store, ref))
            except (CorruptError, NotFoundError) as error:
                self.skip(str(error))
                continue
            if config is not None:
                check_config(manifest, config)
            return ref, manifest
        if self._length:
            raise UnusableError(
                f"none of the {self._length} checkpoints of job {self._job} can be read; the "
                "reasons are above. Restore the store from a copy, or start a new job"
            )
        return None

    def skip(self, why: str) -> None:
        """Skip the newest remaining checkpoint."""
        ref = self._candidates.pop(0)
        entry = {"step": ref.step, "manifest": ref.manifest, "error": why}
        self._report(CHECKPOINT_SKIPPED, entry)

    def retry(self, read: Callable[[], Result]) -> Result:
        """Return `read()`, retrying READ_ATTEMPTS times while the store does not answer."""
        for attempt in range(READ_ATTEMPTS - 1):
            try:
                return read()
            except StoreUnavailableError:  # noqa: PERF203 - few attempts
                self._pause(0.2 * 2**attempt)
        return read()


def check_config(manifest: Manifest, config: Mapping[str, Any]) -> None:
    """Raise MismatchError if the checkpoint was made with another configuration than `config`."""
    try:
        memory_check.check_config(manifest.state, manifest.step, config)
    except ValueError as error:
        raise MismatchError(str(error)) from None
