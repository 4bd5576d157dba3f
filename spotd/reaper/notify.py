"""Send the reaper's alerts, and remember which were sent."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotd.base.webhook import WebhookError, post
from spotd.reaper.state_files import read, write

COMMAND_S = 30.0


@dataclass(frozen=True)
class Notifier:
    """Sends a text by every configured way."""

    slack_url: str = field(default="", repr=False)
    command: Sequence[str] = ()

    def send(self, text: str) -> tuple[bool, list[str]]:
        """Return whether a way accepted it, or none is configured; and one line per failed way."""
        ways = [self._post] if self.slack_url else []
        ways += [self._run] if self.command else []
        errors = [error for way in ways if (error := way(text))]
        return not ways or len(errors) < len(ways), errors

    def _post(self, text: str) -> str:
        escaped = text.translate({38: "&amp;", 60: "&lt;", 62: "&gt;"})
        try:
            answer = post(self.slack_url, {"text": escaped})
        except WebhookError as error:
            return str(error)
        return "" if answer.status == 200 else f"Slack answered {answer.status}"

    def _run(self, text: str) -> str:
        try:
            done = subprocess.run(
                list(self.command),
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                timeout=COMMAND_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the page command failed: {error}"
        return f"the page command ended with {done.returncode}" if done.returncode else ""


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
