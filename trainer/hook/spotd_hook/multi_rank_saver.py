"""Save and restore with several ranks, each of which saves its own part.

Rank 0 owns HEAD and decides; the others wait in `follow_rank_0` and do the same. Needs torch,
Python >= 3.10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .checkpointer import Checkpointer
from .engine import FoundCheckpoint
from .ranks import Ranks
from .saver_client import CorruptError, SaverError, StoreAwayError

_DONE, _LOAD, _SAVE = "done", "load", "save"
_LOADED, _AWAY, _CORRUPT, _FAILED = range(4)  # ordered; the worst counts


class MultiRankSaver:
    """Saves and restores the part of one rank.

    `load(checkpoint)` loads this rank's part of it, `save(step, trigger, released=, final=)` stages
    this rank's part, and `report_error(message)` reports a failure here. All other ranks are in
    `follow_rank_0` while rank 0 restores and saves.
    """

    def __init__(
        self,
        ranks: Ranks,
        checkpointer: Checkpointer,
        load: Callable[[FoundCheckpoint], None],
        save: Callable[..., bool],
        report_error: Callable[[str], None],
    ) -> None:
        self._ranks, self._checkpointer = ranks, checkpointer
        self._load, self._save, self._report_error = load, save, report_error

    # --- rank 0

    def restore(self, config: Mapping[str, Any], back: int = 0) -> FoundCheckpoint | None:
        """Restore on all ranks, like `Checkpointer.restore`.

        A checkpoint that one rank cannot read is skipped by all.
        """
        checkpoint = self._checkpointer.find_checkpoint(config, back)
        while checkpoint is not None:
            self._ranks.broadcast([_LOAD, dict(checkpoint.ref)])
            outcome, message = self._try_load(checkpoint)
            worst = self._ranks.maximum(outcome)
            if worst == _LOADED:
                self._checkpointer.confirm_resume()
                return checkpoint
            message = message if worst == outcome else "another rank could not read its part"
            if worst == _AWAY:
                raise StoreAwayError("StoreUnavailableError", message)
            if worst == _FAILED:
                raise SaverError("RankError", message)
            checkpoint = self._checkpointer.skip(message)
        return None

    def save(self, step: int, trigger: str, **label: bool) -> bool:
        """Take a snapshot on all ranks; False if there is nothing to save."""
        self._ranks.broadcast([_SAVE, [step, trigger, label]])
        return self._save(step, trigger, **label)

    def release_ranks(self, result: int) -> int:
        """End `follow_rank_0` on the other ranks, with this result."""
        self._ranks.broadcast([_DONE, result])
        return result

    # --- other ranks

    def follow_rank_0(self) -> int:
        """Do what rank 0 broadcasts until it ends the loop; return its result."""
        while True:
            action, argument = self._ranks.broadcast(None)
            if action == _DONE:
                return int(argument)
            if action == _LOAD:
                self._ranks.maximum(self._try_load(argument)[0])
            else:
                step, trigger, label = argument
                self._save(step, trigger, **label)

    def _try_load(self, checkpoint: FoundCheckpoint | Mapping[str, Any]) -> tuple[int, str]:
        try:
            if not isinstance(checkpoint, FoundCheckpoint):
                checkpoint = self._checkpointer.find_by_ref(checkpoint)
            self._load(checkpoint)
        except StoreAwayError as error:
            outcome, message = _AWAY, str(error)
        except CorruptError as error:
            outcome, message = _CORRUPT, str(error)
        except (SaverError, OSError, ValueError) as error:
            outcome, message = _FAILED, str(error)
        else:
            return _LOADED, ""
        self._report_error(f"the checkpoint cannot be loaded here: {message}")
        return outcome, message
