"""Background work after a commit: read the checkpoint back and delete old ones.

It runs in a thread of its own, so that no save waits for it, and pauses while a save is urgent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainer.fence import Fence, FencedError
from trainer.saver.retention import ReadBack, remove_old
from trainer.saver.snapshot import SaverRole


class Housekeeper:
    """Runs `remove_old` when requested and allowed.

    `changed` is the save worker's condition, notified whenever `may_run()` may have become true.
    `may_run` and `closed` are called with its lock held. `report(message)` is called once per
    failure.
    """

    def __init__(
        self,
        fence: Fence,
        role: SaverRole,
        changed: threading.Condition,
        closed: Callable[[], bool],
        may_run: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.fence, self._role = fence, role
        self._changed, self._closed, self._may_run = changed, closed, may_run
        self._report, self._last_error = report, ""
        self._requested = False
        self._read_back = ReadBack()
        threading.Thread(target=self._run, name="tidying", daemon=True).start()

    def request(self) -> None:
        """Request a run: after a commit, and after a failed save, which may have lacked space."""
        with self._changed:
            self._requested = True
            self._changed.notify_all()

    def required_history(self) -> int:
        """Return how many checkpoints HEAD must list in the next commit."""
        return self._read_back.required_history(self.fence.head, self._role.keep_every_steps)

    def _run(self) -> None:
        while self._wait_for_request():
            self._remove_old()

    def _wait_for_request(self) -> bool:
        """Wait for a request; return False once the worker is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed() or (self._requested and self._may_run()))
            self._requested = False
            return not self._closed()

    def _may_continue(self) -> bool:
        with self._changed:
            return not self._closed() and self._may_run()

    def _remove_old(self) -> None:
        keep, keep_every_steps = self._role.keep, self._role.keep_every_steps
        try:
            remove_old(self.fence, keep, self._may_continue, keep_every_steps, self._read_back)
        except FencedError:
            return  # the next commit reports it; nothing was deleted
        except Exception as error:  # noqa: BLE001 - no failure may end training
            message = f"read-back: {type(error).__name__}: {error}"
            if message != self._last_error:  # a store may be unreachable for a long time
                self._report(message)
            self._last_error = message
        else:
            self._last_error = self._last_error if self._read_back.has_more else ""
        with self._changed:
            self._requested = self._requested or self._read_back.has_more
