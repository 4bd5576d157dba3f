"""A bucket of a server on this machine."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Bucket:
    """One running S3 server with one bucket; `folder` is new for each."""

    endpoint: str
    name: str = "spotd"
    folder: str = field(default_factory=lambda: f"folder-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.folder}"

    @property
    def options(self) -> dict[str, str]:
        return {**KEYS, "endpoint": self.endpoint, "allow_http": "true", "timeout_s": "10"}

    def settings(self, key: Path) -> str:
        """The section of a box's configuration; its secret goes into the file `key`."""
        options = self.options
        lines = []
        for name in ("access_key_id", "secret_access_key"):
            key.write_text(options.pop(name))  # the same for both
            lines.append(f'{name}_file = "{key}"')
        lines += [f'{name} = "{value}"' for name, value in options.items()]
        return "\n".join(
            ["", "[stores.bucket]", f'url = "{self.url}"', "[stores.bucket.options]", *lines, ""]
        )


@contextmanager
def process(log: Path) -> Iterator[Bucket]:
    """A bucket in a process of its own, which ends with us however we end. Raises OSError, with the
    end of its log, when it cannot start."""
    with log.open("ab") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "spotd.demo.s3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,  # Ctrl-C in the terminal is ours to pass on
        )
    with server:
        assert server.stdin is not None  # noqa: S101 - we asked for pipes
        assert server.stdout is not None  # noqa: S101
        line = server.stdout.readline()
        if not line:
            text = log.read_text(errors="replace")[-2000:]
            raise OSError(f"the S3 server of the demo did not start:\n{text}")
        try:
            yield Bucket(**json.loads(line))
        finally:
            server.stdin.close()
