"""Report a program that does not go on from the checkpoints that were restored for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from spotd.wire import WARNING
from trainer.directory.open_watch import OpenWatch
from trainer.directory.units import Unit, looks_like_checkpoint

NOT_RESUMED = "not_resumed"  # verdict; see spotd/domain/health.py


class ResumeCheck:
    """Watches whether the program, which is started at once, opens what was restored in `within_s`.

    Nothing is reported where nothing was restored, or where the kernel cannot tell.
    """

    def __init__(
        self,
        folder: Path,
        within_s: float,
        report: Callable[[str, Mapping[str, Any]], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._folder, self._within_s = folder, within_s
        self._report, self._monotonic = report, monotonic
        self._watch: OpenWatch | None = None
        self._newest = ""
        self._since_s = 0.0
        self._reported = self._rewriting = False

    def watch(self, units: Iterable[Unit]) -> None:
        """Watch the checkpoints among restored units, before the program starts."""
        checkpoints = [
            unit
            for unit in units
            if looks_like_checkpoint(unit) and not unit.is_log and not unit.is_pointer
        ]
        if not checkpoints or math.isinf(self._within_s):
            return
        self._newest = max(checkpoints, key=lambda unit: unit.modified_ns).name
        self._since_s = self._monotonic()
        self._watch = OpenWatch(
            self._folder / file.path for unit in checkpoints for file in unit.files
        )

    def poll(self) -> None:
        """Report once if nothing was opened in time, and once more when it is opened later."""
        if self._watch is None:
            return
        after_s = self._monotonic() - self._since_s
        if self._watch.opened():
            self._watch.close()
            self._watch = None
            if self._reported:
                text = f"the program has opened what was restored, {after_s:.0f} s after its start"
                self._warn(text, {"opened": True})
        elif after_s >= self._within_s and not self._reported:
            self._reported = True
            text = (
                f"{after_s:.0f} s after its start the program has opened none of the restored "
                f"checkpoints (the newest is {self._newest}): it may be training from the beginning"
            )
            self._warn(text, {"seconds": round(after_s, 1)})

    def report_behind(self, name: str, restored: int) -> None:
        """Report that the program writes lower numbers than it had reached before."""
        text = (
            f"the program has started from the beginning: it writes {name}, and {restored} was "
            "restored. Nothing "
            f"is saved until it is beyond {restored}, so that the restored checkpoint stays"
        )
        self._warn(text, {"restored": restored})

    def report_rewritten(self, name: str, restored: int) -> None:
        """Report once that the program writes a restored checkpoint of a lower number again."""
        if self._rewriting:
            return
        self._rewriting = True
        text = (
            f"the program has started from the beginning: it writes {name} again, and "
            f"{restored} was restored"
        )
        self._warn(text, {"restored": restored})

    def _warn(self, text: str, about: Mapping[str, Any]) -> None:
        self._report(WARNING, {"text": text, "verdict": NOT_RESUMED, "about": dict(about)})
