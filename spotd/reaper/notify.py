"""Send the reaper's alerts, and remember which were sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotd.alert_sinks.base import AlertSink, AlertSinkError
from spotd.reaper.state_files import read, write


@dataclass(frozen=True)
class Notifier:
    """Sends a text to every configured sink."""

    sinks: Sequence[AlertSink] = ()

    def send(self, text: str) -> tuple[bool, list[str]]:
        """Return whether a sink accepted it, or none is configured; and one line per failed one."""
        errors = []
        for sink in self.sinks:
            try:
                sink.send_text(text)
            except AlertSinkError as error:
                errors.append(str(error))
        return not self.sinks or len(errors) < len(self.sinks), errors


class NotificationState:
    """Which alerts were sent, and which no way accepted, in files that outlast a run.

    Without told.json, or with an unreadable one, an alert is sent too often rather than never.
    untold.json has texts that may be outdated by the time they can be sent.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "told.json"
        self._untold_path = None if folder is None else folder / "untold.json"
        self._known = self._read()
        untold = read(self._untold_path)
        pairs = untold.items() if isinstance(untold, dict) else ()
        self._untold = {key: str(text) for key, text in pairs}

    def news(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that were not alerted yet."""
        return [key for key in keys if key not in self._known]

    def keep(self, keys: Iterable[str]) -> str:
        """Remember these keys as alerted, and no others; return what went wrong, or ""."""
        self._known = set(keys)
        return write(self._path, sorted(self._known))

    def untold(self, keys: Iterable[str]) -> dict[str, str]:
        """Return unsent texts by key, except those about `keys`: what lasts is alerted again."""
        lasting = set(keys)
        return {key: text for key, text in self._untold.items() if key not in lasting}

    def put_off(self, texts: Mapping[str, str]) -> str:
        """Remember unsent texts by key; return what went wrong, or ""."""
        if texts == self._untold:
            return ""
        self._untold = dict(texts)
        return write(self._untold_path, self._untold)

    def _read(self) -> set[str]:
        value = read(self._path)
        return {str(item) for item in value} if isinstance(value, list) else set()
