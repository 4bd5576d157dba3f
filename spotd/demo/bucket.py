"""A bucket on a local S3 server, in a process of its own."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CREDENTIALS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Bucket:
    """A bucket on a running S3 server. Every instance has its own `folder` in the bucket."""

    endpoint: str
    name: str = "spotd"
    folder: str = field(default_factory=lambda: f"folder-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.folder}"

    @property
    def options(self) -> dict[str, str]:
        return {**CREDENTIALS, "endpoint": self.endpoint, "allow_http": "true", "timeout_s": "10"}

    def settings(self, key: Path) -> str:
        """Return the section for config.toml. The credentials are written to the file `key`."""
        options = self.options
        lines = []
        for name in ("access_key_id", "secret_access_key"):
            key.write_text(options.pop(name))  # both have the same value
            lines.append(f'{name}_file = "{key}"')
        lines += [f'{name} = "{value}"' for name, value in options.items()]
        return "\n".join(
            ["", "[stores.bucket]", f'url = "{self.url}"', "[stores.bucket.options]", *lines, ""]
        )


@contextmanager
def bucket_server(log: Path) -> Iterator[Bucket]:
    """Run an S3 server in a process of its own, and yield its bucket.

    The server ends with this process, however it ends. Raises OSError with the end of its log if
    it cannot start.
    """
    with log.open("ab") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "spotd.demo.s3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,  # the parent handles Ctrl-C
        )
    with server:
        assert server.stdin is not None  # noqa: S101 - opened as pipes
        assert server.stdout is not None  # noqa: S101
        line = server.stdout.readline()
        if not line:
            log_text = log.read_text(errors="replace")[-2000:]
            raise OSError(f"the S3 server of the demo did not start:\n{log_text}")
        try:
            yield Bucket(**json.loads(line))
        finally:
            server.stdin.close()
