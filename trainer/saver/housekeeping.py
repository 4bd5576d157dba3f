"""What is left to do after a commit: to read it back, and to remove what is old. It has a thread of
its own, so that no save waits for it, and gives way to those that have no time to share the line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainer.fence import Fence, FencedError
from trainer.saver.retention import ReadBack, remove_old
from trainer.saver.snapshot import SaverRole


class Housekeeping:
    """`changed` is the lock of whoever saves, notified when `may_go_on()` may have become true.
    That is asked with it held, as `closed()` is. `say(text)` is told what went wrong, once."""

    def __init__(
        self,
        fence: Fence,
        duties: SaverRole,
        changed: threading.Condition,
        closed: Callable[[], bool],
        may_go_on: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self.fence, self._duties = fence, duties
        self._changed, self._closed, self._may_go_on = changed, closed, may_go_on
        self._say, self._said = say, ""
        self._untidy = False
        self._read = ReadBack()
        threading.Thread(target=self._run, name="tidying", daemon=True).start()

    def note(self) -> None:
        """There may be something to do: after a commit, and beside a save that failed, perhaps for
        want of room."""
        with self._changed:
            self._untidy = True
            self._changed.notify_all()

    def reach(self) -> int:
        """How many checkpoints HEAD has to remember with the next commit."""
        return self._read.reach(self.fence.head, self._duties.keep_every_steps)

    def _run(self) -> None:
        while self._begin():
            self._tidy()

    def _begin(self) -> bool:
        """Wait for something to do; False when all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed() or (self._untidy and self._may_go_on()))
            self._untidy = False
            return not self._closed()

    def _go_on(self) -> bool:
        with self._changed:
            return not self._closed() and self._may_go_on()

    def _tidy(self) -> None:
        keep, every = self._duties.keep, self._duties.keep_every_steps
        try:
            remove_old(self.fence, keep, self._go_on, every, self._read)
        except FencedError:
            return  # the next commit says so; nothing was removed
        except Exception as error:  # noqa: BLE001 - housekeeping may not end training either
            text = f"read-back: {type(error).__name__}: {error}"
            if text != self._said:  # a store that the job has left may be away for long
                self._say(text)
            self._said = text
        else:
            self._said = self._said if self._read.more else ""
        with self._changed:
            self._untidy = self._untidy or self._read.more
