"""`python -m trainer.mounts FOLDER`: prepare a job's file mounts, in a process beside the agent.

Copies buckets to the job's folders, stages data sets in the region's store, and checks that the
buckets to be mounted are not empty. Input is one line of JSON on stdin; the process ends when stdin
closes. If it fails it prints the reason as one line of JSON on stdout. FOLDER gets the counts of
bytes read from stores.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreConfigError, StoreDeniedError, StoreError
from providers.stores.dataset_copy import DatasetCopyError, is_data, list_data
from trainer.mounts.byte_counter import ByteCounter
from trainer.mounts.copy import Copy, MountError
from trainer.mounts.rights import check_identity, permission_hint
from trainer.mounts.stage import DatasetStaging, TransferPrice


def main() -> int:
    """Prepare all mounts; returns 0 on success."""
    mounts = json.loads(sys.stdin.buffer.readline())
    counter = ByteCounter(Path(sys.argv[1]))
    threading.Thread(target=_end_with_stdin, args=(counter,), daemon=True).start()
    for mount in mounts:
        text = _copy(mount, counter)
        counter.flush()
        if text:
            verb = "copied" if mount.get("mode", "COPY") == "COPY" else "read"
            error = f"file_mounts.{mount['target']}: {mount['url']} cannot be {verb}: {text}"
            sys.stdout.write(json.dumps({"error": error}) + "\n")
            return 1
    return 0


def _copy(mount: Mapping[str, Any], counter: ByteCounter) -> str:
    """Prepare one mount; returns an error message or "".

    Bytes read from the region's own copy are free and not counted.
    """
    mounted = mount.get("mode", "COPY") != "COPY"
    folder, note = Path(mount.get("folder", "")), Path(mount.get("note", ""))
    price = TransferPrice(mount.get("microusd_per_gb"), mount.get("max_microusd", 0))
    count = counter.counter(mount["target"], mount["url"])
    try:
        check_identity(mount["url"], mount["options"])
        store = open_store(mount["url"], mount["options"])
        if mount.get("near"):
            check_identity(mount["near"], mount["near_options"])
            regional = open_store(mount["near"], mount["near_options"])

            def make_copy(source: ObjectStore) -> Copy:
                ignore: Callable[[int], None] = lambda _size: None  # noqa: E731
                on_bytes = count if source is store else ignore
                return Copy(source, folder, _state_file(note, source), on_bytes=on_bytes)

            DatasetStaging(
                store, regional, price, None if mounted else make_copy, _log, count
            ).run()
            store = regional
        elif mounted and mount.get("max_microusd"):
            raise MountError(
                "each read would transfer it from another region: configure a copy in this region, "
                "or use mode COPY"
            )
        elif mount.get("max_microusd"):
            price.check(store.url, sum(item.size for item in list_data(store)))
        if mounted and not any(is_data(item) for item in store.list("")):
            raise MountError("there is nothing below it: check the URL")
        if not mounted and not mount.get("near"):
            Copy(store, folder, note, on_bytes=count).run()
    except (StoreDeniedError, StoreConfigError) as error:
        if mount.get("near") and mount["near"] in str(error):
            return f"{error}; {permission_hint(mount['near'], mount['near_options'], writing=True)}"
        return f"{error}; {permission_hint(mount['url'], mount['options'])}"
    except (StoreError, DatasetCopyError, MountError, OSError) as error:
        return str(error)
    return ""


def _state_file(note: Path, store: ObjectStore) -> Path:
    """A separate state file per store, because version tags differ between stores."""
    return note.with_name(f"{note.stem}-{sha256(store.url.encode()).hexdigest()[:8]}.json")


def _log(text: str) -> None:
    sys.stderr.write(f"mounts: {text}\n")


def _end_with_stdin(counter: ByteCounter) -> None:
    sys.stdin.buffer.read()
    counter.flush()
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
