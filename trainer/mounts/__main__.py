"""`python -m trainer.mounts`: what a job has in buckets, copied to where it wants it, beside the
agent. What to do comes as a line of JSON on stdin; it ends when stdin does. It says on stdout, in a
line of JSON, why it could not be done."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from providers.stores import open_store
from providers.stores.base import StoreConfigError, StoreDeniedError, StoreError
from trainer.mounts.copying import Copy, MountError


def main() -> int:
    """The exit code: 0 when all is there."""
    mounts = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    for mount in mounts:
        if text := _copy(mount):
            error = f"file_mounts.{mount['target']}: {mount['url']} cannot be copied: {text}"
            sys.stdout.write(json.dumps({"error": error}) + "\n")
            return 1
    return 0


def _copy(mount: Mapping[str, Any]) -> str:
    """Why not; or nothing."""
    try:
        store = open_store(mount["url"], mount["options"])
        Copy(store, Path(mount["folder"]), Path(mount["note"])).run()
    except (StoreDeniedError, StoreConfigError) as error:
        return f"{error}; a [stores.NAME] of that url can give the job's machines a right"
    except (StoreError, MountError, OSError) as error:
        return str(error)
    return ""


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
