"""Where a job goes on: along HEAD and its predecessors, the newest that can be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from providers.stores.base import NotFoundError, ObjectStore, StoreUnavailableError
from spotd.wire import CHECKPOINT_SKIPPED, Head, HeadRef, Manifest
from trainer.saver.reader import CorruptError, read_manifest

READ_ATTEMPTS = 3
IMPORTED = "imported"  # in the state of what has weights alone, as `spotctl ckpt import` makes it
T = TypeVar("T")


class MismatchError(Exception):
    """The checkpoint is of another model, configuration or data; the text names the difference."""


class UnusableError(Exception):
    """HEAD names checkpoints and none of them can be read."""


class ResumeChain:
    """HEAD's checkpoints, newest first, without the one whose manifest is `suspect` and the first
    `back` of them (one stays, whatever they are) and without those after step `most_step`. `report`
    takes journal entries."""

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
        self._refs = refs[min(back, max(len(refs) - 1, 0)) :]
        self._length = len(self._refs)
        self._report, self._pause = report, pause

    def newest(self, config: Mapping[str, Any]) -> tuple[HeadRef, Manifest] | None:
        """The newest that was not passed over; None when there never was one.

        Torn manifests are reported and passed over. Raises MismatchError when the one to use was
        made with another `config`, UnusableError when none is left, and StoreUnavailableError when
        the store stays away: that is no reason to go back in time.
        """
        while self._refs:
            ref = self._refs[0]
            try:
                manifest = self.patiently(partial(read_manifest, self._store, ref))
            except (CorruptError, NotFoundError) as error:
                self.pass_over(str(error))
                continue
            check_config(manifest, config)
            return ref, manifest
        if self._length:
            raise UnusableError(
                f"none of the {self._length} checkpoints of job {self._job} can be read; the "
                "reasons are above. Restore the store from a copy, or start a new job"
            )
        return None

    def pass_over(self, why: str) -> None:
        """The newest is not to be used."""
        ref = self._refs.pop(0)
        said = {"step": ref.step, "manifest": ref.manifest, "error": why}
        self._report(CHECKPOINT_SKIPPED, said)

    def patiently(self, read: Callable[[], T]) -> T:
        """`read()`, a few times while the store does not answer."""
        for attempt in range(READ_ATTEMPTS - 1):
            try:
                return read()
            except StoreUnavailableError:  # noqa: PERF203 - of few
                self._pause(0.2 * 2**attempt)
        return read()


def check_config(manifest: Manifest, config: Mapping[str, Any]) -> None:
    """Raise MismatchError if the checkpoint was made with another configuration than `config`; of
    imported weights none is known."""
    if IMPORTED in manifest.state:
        return
    made_with = manifest.state.get("config", {})
    for name in sorted(made_with.keys() | config.keys()):
        before, now = made_with.get(name), config.get(name)
        if before != now:
            raise MismatchError(
                f"the checkpoint of step {manifest.step} was made with {name} = {before!r}, this "
                f"program has {now!r}: put it back, or start a new job"
            )
