"""The reaper's own way to a person, and what it has told already."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
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

    def send(self, text: str) -> tuple[bool, list[str]]:
        """Whether any way took it, or there is none; and what went wrong, one line for each way
        that did not."""
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


class Told:
    """What a person was told, and what no way took, in files from run to run. Without told.json, or
    with one that cannot be read or written, a person is told too often rather than never.
    untold.json has texts about what may be over by the time when somebody can be told."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "told.json"
        self._untold_path = None if folder is None else folder / "untold.json"
        self._known = self._read()
        untold = read(self._untold_path)
        pairs = untold.items() if isinstance(untold, dict) else ()
        self._untold = {key: str(text) for key, text in pairs}

    def news(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that were not told yet."""
        return [key for key in keys if key not in self._known]

    def keep(self, keys: Iterable[str]) -> str:
        """From now on these were told, and no others; what went wrong, or ""."""
        self._known = set(keys)
        return write(self._path, sorted(self._known))

    def untold(self, keys: Iterable[str]) -> dict[str, str]:
        """What nobody was told and is about none of `keys`, by key: what lasts is told anew."""
        lasting = set(keys)
        return {key: text for key, text in self._untold.items() if key not in lasting}

    def put_off(self, texts: Mapping[str, str]) -> str:
        """These, by key, are what nobody was told by now; what went wrong, or ""."""
        if texts == self._untold:
            return ""
        self._untold = dict(texts)
        return write(self._untold_path, self._untold)

    def _read(self) -> set[str]:
        value = read(self._path)
        return {str(item) for item in value} if isinstance(value, list) else set()
