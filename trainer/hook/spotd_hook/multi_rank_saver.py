"""Ranks that each save and load what they have themselves. The first one has the right to HEAD, and
says what is done; the others `attend` meanwhile, and do it too. Needs torch, Python >= 3.10."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .checkpointer import Checkpointer
from .engine import FoundCheckpoint
from .ranks import Ranks
from .saver_client import CorruptError, SaverError, StoreAwayError

_DONE, _LOAD, _SAVE = "done", "load", "save"
_LOADED, _AWAY, _CORRUPT, _FAILED = range(4)  # the worst of them counts


class MultiRankSaver:
    """One rank's. `load(found)` takes what it has of a checkpoint, `save(step, trigger, released=,
    final=)` stages it; `complain(text)` says what went wrong here. All ranks are at `attend` while
    the first one restores and saves."""

    def __init__(
        self,
        ranks: Ranks,
        checkpointer: Checkpointer,
        load: Callable[[FoundCheckpoint], None],
        save: Callable[..., bool],
        complain: Callable[[str], None],
    ) -> None:
        self._ranks, self._checkpointer = ranks, checkpointer
        self._load, self._save, self._complain = load, save, complain

    # --- the first rank

    def restore(self, config: Mapping[str, Any], back: int = 0) -> FoundCheckpoint | None:
        """As `Checkpointer.restore`, on all ranks. What one of them cannot read, none uses."""
        found = self._checkpointer.find(config, back)
        while found is not None:
            self._ranks.follow([_LOAD, dict(found.ref)])
            outcome, text = self._try(found)
            worst = self._ranks.most(outcome)
            if worst == _LOADED:
                self._checkpointer.use()
                return found
            text = text if worst == outcome else "another rank could not read its part"
            if worst == _AWAY:
                raise StoreAwayError("StoreUnavailableError", text)
            if worst == _FAILED:
                raise SaverError("RankError", text)
            found = self._checkpointer.skip(text)
        return None

    def save(self, step: int, trigger: str, **label: bool) -> bool:
        """A snapshot of all ranks; False when there is nothing to be saved."""
        self._ranks.follow([_SAVE, [step, trigger, label]])
        return self._save(step, trigger, **label)

    def dismiss(self, word: int) -> int:
        """The others go on, with this word."""
        self._ranks.follow([_DONE, word])
        return word

    # --- the others

    def attend(self) -> int:
        """Do what the first rank says, until it dismisses us; its word."""
        while True:
            what, about = self._ranks.follow(None)
            if what == _DONE:
                return int(about)
            if what == _LOAD:
                self._ranks.most(self._try(about)[0])
            else:
                step, trigger, label = about
                self._save(step, trigger, **label)

    def _try(self, found: FoundCheckpoint | Mapping[str, Any]) -> tuple[int, str]:
        try:
            if not isinstance(found, FoundCheckpoint):
                found = self._checkpointer.find_same(found)
            self._load(found)
        except StoreAwayError as error:
            outcome, text = _AWAY, str(error)
        except CorruptError as error:
            outcome, text = _CORRUPT, str(error)
        except (SaverError, OSError, ValueError) as error:
            outcome, text = _FAILED, str(error)
        else:
            return _LOADED, ""
        self._complain(f"the checkpoint cannot be loaded here: {text}")
        return outcome, text
