"""Fold equal alerts about the same job into one message with a count.

Alerts of one kind and severity are equal if their texts differ in numbers alone, such as a step, a
machine or a restart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from spotd.store.alerts import AlertRow

# Another exit code, or another share of a limit, is something else.
_NUMBERS = re.compile(r"(?P<telling>code \d+|\d[\d.,]* ?%)|\d[\d.,:]*")
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Folded:
    """Rows of the outbox that say the same, oldest first. They go under the oldest one's number."""

    rows: Sequence[AlertRow]

    @property
    def id(self) -> int:
        return self.rows[0].id

    @property
    def newest(self) -> AlertRow:
        return self.rows[-1]

    @property
    def repeats(self) -> int:
        return sum(row.repeats for row in self.rows)


def fold(rows: Sequence[AlertRow]) -> list[Folded]:
    """Return the rows, those that say the same about one job together."""
    groups: dict[Key | int, list[AlertRow]] = {}
    for row in rows:
        groups.setdefault(_key(row) or row.id, []).append(row)
    return [Folded(group) for group in groups.values()]


def _key(row: AlertRow) -> Key | None:
    """Return the key of alerts that say the same; None for one that is about no job."""
    if not row.job_id:
        return None
    event = row.event
    text = _NUMBERS.sub(lambda found: found["telling"] or "#", event.text)
    return (row.job_id, event.kind, event.severity.value, text)


@dataclass
class AlertRepeats:
    """The alerts of one sink that were sent, and when. It is lost with the process, after which a
    repeat may be sent too soon."""

    _sent_s: dict[Key, float] = field(default_factory=dict)

    def split(
        self, rows: Sequence[AlertRow], now_s: float, repeat_s: float
    ) -> tuple[list[AlertRow], list[tuple[float, list[AlertRow]]]]:
        """Return the rows to send now, and the others with the seconds that they have to wait."""
        self._sent_s = {key: at for key, at in self._sent_s.items() if now_s - at < repeat_s}
        now: list[AlertRow] = []
        early: dict[Key, list[AlertRow]] = {}
        for row in rows:
            key = _key(row)
            if key is None or key not in self._sent_s:
                now.append(row)
            else:
                early.setdefault(key, []).append(row)
        return now, [(self._sent_s[key] + repeat_s - now_s, rows) for key, rows in early.items()]

    def note(self, rows: Sequence[AlertRow], now_s: float) -> None:
        """Remember rows that were sent."""
        for row in rows:
            key = _key(row)
            if key is not None:
                self._sent_s[key] = now_s
