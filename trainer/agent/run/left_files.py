"""Describe the files that a program leaves on its machine, and warn while it writes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from spotd.wire import StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.run.outputs import select_outputs
from trainer.outputs.files import format_size, select_changed
from trainer.outputs.upload import join_problems

AFTER_S = 600.0  # of writing files that nothing saves, before it is reported
NAMED = 3
NONE = "no new files below its workdir"


def describe_left_files(workdir: Path, *, since_ns: int) -> str:
    """Return the largest files below `workdir` that changed after `since_ns`, and how many more.

    Left out are names directly in the workdir that begin with a dot, and caches.
    """
    files = select_changed(workdir, since_ns=since_ns, max_bytes=sys.maxsize).files
    if not files:
        return NONE
    largest = sorted(files, key=lambda file: (-file.size, file.path))[:NAMED]
    text = ", ".join(f"{file.path} ({format_size(file.size)})" for file in largest)
    more = len(files) - len(largest)
    return f"{text} and {more} more files" if more else text


def find_unsaved(
    context: AgentContext, start: StartDocument, *, since_ns: int, saves_itself: bool
) -> str:
    """Return a warning about files that the program writes and nothing saves, or "".

    `saves_itself`: the program's checkpoints are its own, or those of a folder.
    """
    if not saves_itself:
        text = describe_left_files(context.paths.workdir, since_ns=since_ns)
        if text != NONE:
            return (
                "the program has been writing files that spotd does not save while it runs: "
                f"{text}. A machine that is lost takes them with it; to save a folder, write "
                "spotd: {checkpoint: {mode: directory, path: FOLDER}} into the job file"
            )
    if start.files.outputs is None:
        return ""
    selection = select_outputs(context, start, start.files.outputs, since_ns=since_ns)
    too_large = join_problems(selection.problems) if not start.files.outputs.patterns else ""
    return too_large and f"not all that the program writes will be uploaded: {too_large}"


class LeftFilesWatch:
    """Reports once that a program has been writing files for a while that may be lost.

    `poll` is called in the agent's loop. `find` searches for them in a thread, and returns the
    message or ""; `report` gets the message.
    """

    def __init__(
        self,
        find: Callable[[], str],
        *,
        report: Callable[[str], None],
        monotonic: Callable[[], float],
        after_s: float = AFTER_S,
    ) -> None:
        self._find, self._report, self._monotonic = find, report, monotonic
        self._after_s = after_s
        self._look_at_s: float | None = None
        self._found = False

    def poll(self) -> None:
        """Search every `after_s` seconds, until there is something to report."""
        now_s = self._monotonic()
        if self._look_at_s is None:
            self._look_at_s = now_s + self._after_s
        elif now_s >= self._look_at_s and not self._found:
            self._look_at_s = now_s + self._after_s
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        text = self._find()
        if text and not self._found:
            self._found = True
            self._report(text)
