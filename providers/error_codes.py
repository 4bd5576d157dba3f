"""Map vendor error codes to ProviderErrors by a table of rules, one table per cloud."""

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

MAX_WARNINGS = 50  # codes whose first message is stored
THROTTLE_PAUSE_S = 2.0  # where the vendor gives no time to wait


@dataclass(frozen=True)
class CodeRule:
    """Maps a code and message to an error. The first rule that matches counts.

    `code` is a shell pattern; `text` is a regular expression, matched case-insensitively against
    any part of the vendor's message.
    """

    code: str
    error: type[ProviderError]
    scope: Scope | None = None
    text: str = ""


class CodeTable:
    """The rules of one vendor.

    A code without a rule becomes `UnknownOutcome`, because the call may have taken effect. It is
    logged and counted in `unknown_codes`, and `warnings` reports its first message.
    """

    def __init__(self, vendor: str, rules: Sequence[CodeRule]) -> None:
        self._vendor = vendor
        self.rules = rules
        self._lock = threading.Lock()
        self.unknown_codes: Counter[str] = Counter()
        self._texts: dict[str, str] = {}

    def error(self, code: str, text: str, retry_after_s: float | None = None) -> ProviderError:
        """Return the error for a vendor's code and message. `retry_after_s` is the vendor's own, if
        any."""
        rule = self.find_rule(code, text)
        message = text if not code or code in text else f"{code}: {text}"
        if rule is None:
            self._record_unknown(code, message)
            return UnknownOutcome(message, code=code)
        if issubclass(rule.error, ThrottledError):
            pause_s = THROTTLE_PAUSE_S if retry_after_s is None else retry_after_s
            return rule.error(message, retry_after_s=pause_s, code=code)
        return rule.error(message, scope=rule.scope, code=code)

    def find_rule(self, code: str, text: str) -> CodeRule | None:
        """Return the first matching rule; None when there is none."""
        for find_rule in self.rules:
            if fnmatchcase(code, find_rule.code) and re.search(find_rule.text, text, re.IGNORECASE):
                return find_rule
        return None

    def warnings(self) -> list[ProviderWarning]:
        """See WarningSource.warnings."""
        with self._lock:
            return [
                ProviderWarning(
                    f"code/{self._vendor}/{code}",
                    f"unknown error code: the call may have taken effect and is repeated: {text}",
                    self.unknown_codes[code],
                )
                for code, text in self._texts.items()
            ]

    def _record_unknown(self, code: str, message: str) -> None:
        with self._lock:
            self.unknown_codes[code] += 1
            if len(self._texts) < MAX_WARNINGS:
                self._texts.setdefault(code, message)
        log.error("%s answered with an unknown code: %s", self._vendor, message)
