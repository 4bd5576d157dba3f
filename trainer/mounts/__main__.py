"""`python -m trainer.mounts`: what a job has in buckets, copied to where it wants it, beside the
agent; of one that is to be mounted, whether there is anything to read, and of a data set that is
mounted the copy in its region's store. What to do comes as a line of JSON on stdin; it ends when
stdin does. It says on stdout, in a line of JSON, why it could not be done, and counts in the folder
that is its argument what came from stores where that may cost something."""

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
from providers.stores.dataset_copy import DatasetCopyError, data_of, is_data
from trainer.mounts.byte_counter import ByteCounter
from trainer.mounts.copy import Copy, MountError
from trainer.mounts.rights import right, show
from trainer.mounts.stage import DatasetStaging, TransferPrice


def main() -> int:
    """The exit code: 0 when all is there."""
    mounts = json.loads(sys.stdin.buffer.readline())
    tally = ByteCounter(Path(sys.argv[1]))
    threading.Thread(target=_end_with_stdin, args=(tally,), daemon=True).start()
    for mount in mounts:
        text = _copy(mount, tally)
        tally.keep()
        if text:
            verb = "copied" if mount.get("mode", "COPY") == "COPY" else "read"
            error = f"file_mounts.{mount['target']}: {mount['url']} cannot be {verb}: {text}"
            sys.stdout.write(json.dumps({"error": error}) + "\n")
            return 1
    return 0


def _copy(mount: Mapping[str, Any], tally: ByteCounter) -> str:
    """Why not; or nothing. What the region's own copy gives is free, and is not counted."""
    mounted = mount.get("mode", "COPY") != "COPY"
    folder, note = Path(mount.get("folder", "")), Path(mount.get("note", ""))
    fare = TransferPrice(mount.get("microusd_per_gb"), mount.get("max_microusd", 0))
    came = tally.of(mount["target"], mount["url"])
    try:
        show(mount["url"], mount["options"])
        store = open_store(mount["url"], mount["options"])
        if mount.get("near"):
            show(mount["near"], mount["near_options"])
            near = open_store(mount["near"], mount["near_options"])

            def copy_of(one: ObjectStore) -> Copy:
                free: Callable[[int], None] = lambda _size: None  # noqa: E731
                return Copy(one, folder, _note_of(note, one), came=came if one is store else free)

            DatasetStaging(store, near, fare, None if mounted else copy_of, _say, came).run()
            store = near
        elif mounted and mount.get("max_microusd"):
            raise MountError("each read of it would cross: name a copy in this region, or COPY it")
        elif mount.get("max_microusd"):
            fare.check(store.url, sum(one.size for one in data_of(store)))
        if mounted and not any(is_data(one) for one in store.list("")):
            raise MountError("there is nothing below it: look at the address")
        if not mounted and not mount.get("near"):
            Copy(store, folder, note, came=came).run()
    except (StoreDeniedError, StoreConfigError) as error:
        if mount.get("near") and mount["near"] in str(error):
            return f"{error}; {right(mount['near'], mount['near_options'], writing=True)}"
        return f"{error}; {right(mount['url'], mount['options'])}"
    except (StoreError, DatasetCopyError, MountError, OSError) as error:
        return str(error)
    return ""


def _note_of(note: Path, store: ObjectStore) -> Path:
    """Version tags are of the store that has them."""
    return note.with_name(f"{note.stem}-{sha256(store.url.encode()).hexdigest()[:8]}.json")


def _say(text: str) -> None:
    sys.stderr.write(f"mounts: {text}\n")


def _end_with_stdin(tally: ByteCounter) -> None:
    sys.stdin.buffer.read()
    tally.keep()
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
