"""The reaper's own way to a person, and what it has told already."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotd.reaper.kept import read, write
from spotd.webhook import WebhookError, post

COMMAND_S = 30.0


@dataclass(frozen=True)
class Pager:
    """Sends a text by every way that is given."""

    slack_url: str = field(default="", repr=False)
    command: Sequence[str] = ()

    def send(self, text: str) -> list[str]:
        """What went wrong, one line for each way that took it not."""
        ways = [self._post] if self.slack_url else []
        ways += [self._run] if self.command else []
        return [error for way in ways if (error := way(text))]

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


class Told:
    """What a person was told, kept in a file from run to run. Without one, or with one that cannot
    be read or written, a person is told too often rather than never."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "told.json"
        self._known = self._read()

    def news(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that were not told yet."""
        return [key for key in keys if key not in self._known]

    def keep(self, keys: Iterable[str]) -> str:
        """From now on these were told, and no others; what went wrong, or ""."""
        self._known = set(keys)
        return write(self._path, sorted(self._known))

    def _read(self) -> set[str]:
        value = read(self._path)
        return {str(item) for item in value} if isinstance(value, list) else set()
