"""A vendor's codes as data: each adapter has a table, this reads it."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from providers.base import ProviderError, Scope, ThrottledError, UnknownOutcome
from providers.warnings import ProviderWarning

log = logging.getLogger(__name__)

MOST_REMARKS = 50  # codes whose text is kept
THROTTLED_S = 2.0  # where the vendor does not say when to come back


@dataclass(frozen=True)
class CodeRule:
    """`code` is a shell pattern; `text` a regular expression that the vendor's words have to
    contain, in any case of letters. The first row that fits counts."""

    code: str
    error: type[ProviderError]
    scope: Scope | None = None
    text: str = ""


class CodeTable:
    """One vendor's table. What is not in it may have happened: `UnknownOutcome`; it is logged whole
    and counted in `unfamiliar`, and its first text is kept for a person (`remarks`)."""

    def __init__(self, vendor: str, rows: Sequence[CodeRule]) -> None:
        self._vendor = vendor
        self.rows = rows
        self._lock = threading.Lock()
        self.unfamiliar: Counter[str] = Counter()
        self._texts: dict[str, str] = {}

    def error(self, code: str, text: str, retry_after_s: float | None = None) -> ProviderError:
        """What the vendor's `code` and words mean; `retry_after_s` as it said, if it did."""
        row = self.row(code, text)
        told = text if not code or code in text else f"{code}: {text}"
        if row is None:
            self._count(code, told)
            return UnknownOutcome(told, code=code)
        if issubclass(row.error, ThrottledError):
            pause_s = THROTTLED_S if retry_after_s is None else retry_after_s
            return row.error(told, retry_after_s=pause_s, code=code)
        return row.error(told, scope=row.scope, code=code)

    def row(self, code: str, text: str) -> CodeRule | None:
        """The one that counts; None when none fits."""
        for row in self.rows:
            if fnmatchcase(code, row.code) and re.search(row.text, text, re.IGNORECASE):
                return row
        return None

    def remarks(self) -> list[ProviderWarning]:
        """See Remarking.remarks."""
        with self._lock:
            return [
                ProviderWarning(
                    f"code/{self._vendor}/{code}",
                    "an answer that this spotd does not know counts as one of a call that may have "
                    f"happened, and is made again: {text}",
                    self.unfamiliar[code],
                )
                for code, text in self._texts.items()
            ]

    def _count(self, code: str, told: str) -> None:
        with self._lock:
            self.unfamiliar[code] += 1
            if len(self._texts) < MOST_REMARKS:
                self._texts.setdefault(code, told)
        log.error("%s answers with a code that is in no table: %s", self._vendor, told)
