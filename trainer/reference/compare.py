"""Show a job's checkpoints, and compare the newest checkpoints of two jobs bit for bit."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreError
from spotd.wire import Head, Manifest, WireError
from trainer.fence import read_head
from trainer.saver.reader import CorruptError, read_manifest, read_stream, verify
from trainer.saver.tensors import assemble


def first_difference(
    store_a: ObjectStore, job_a: str, store_b: ObjectStore, job_b: str
) -> str | None:
    """Describe the first difference between two jobs' newest checkpoints; None if they are equal.

    Compares steps and tensors, and verifies all data. Raises LookupError if a job has no
    checkpoint, CorruptError, StoreError.
    """
    a, b = _newest(store_a, job_a), _newest(store_b, job_b)
    if a.step != b.step:
        return f"step: {a.step} and {b.step}"
    if a.final != b.final:
        return f"final: {a.final} and {b.final}"
    tensors_a, tensors_b = ({t.name: t for t in manifest.tensors} for manifest in (a, b))
    if tensors_a.keys() != tensors_b.keys():
        return f"tensors: only one has {min(tensors_a.keys() ^ tensors_b.keys())}"
    bytes_a, bytes_b = (
        [read_stream(store, manifest, number) for number in range(len(manifest.streams))]
        for store, manifest in ((store_a, a), (store_b, b))
    )
    for name, x in tensors_a.items():
        y = tensors_b[name]
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return f"{name}: {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"
        data_x, data_y = assemble(x, bytes_a), assemble(y, bytes_b)
        if data_x != data_y:
            at = next(i for i, (p, q) in enumerate(zip(data_x, data_y, strict=True)) if p != q)
            return f"{name}: byte {at} of {len(data_x)} differs"
    return None


def _head(store: ObjectStore, job: str) -> Head:
    entry = read_head(store, job)
    if entry is None:
        raise LookupError(f"no job {job} in {store.url}: check the id and the store")
    return entry[0]


def _newest(store: ObjectStore, job: str) -> Manifest:
    head = _head(store, job)
    if head.current is None:
        raise LookupError(f"job {job} in {store.url} has no checkpoint yet")
    return read_manifest(store, head.current)


def _show(store: ObjectStore, job: str) -> None:
    head = _head(store, job)
    state = "final" if head.final else "released" if head.released else "held"
    print(f"{job}: generation {head.generation}, {state} (owner {head.owner}, seq {head.seq})")
    for ref in (head.current, *head.previous):
        if ref is None:
            continue
        try:
            manifest = read_manifest(store, ref)
            verify(store, manifest, lambda: True)
            result = f"{len(manifest.tensors)} tensors, {manifest.size:,} bytes, verified"
        except (CorruptError, StoreError) as error:
            result = f"unusable: {error}"
        print(f"  step {ref.step:>8}  generation {ref.generation}  {result}")


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if shown or equal, 1 if different, 2 if a checkpoint cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.reference.compare", description=__doc__
    )
    parser.add_argument(
        "--options",
        type=json.loads,
        default=os.environ.get("SPOTD_STORE_OPTIONS", "{}"),
        help="options of s3:// stores as JSON (default: $SPOTD_STORE_OPTIONS)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="a job's checkpoints, every byte verified")
    compare = commands.add_parser("compare", help="whether two jobs' newest states are equal")
    for command, names in ((show, ("store", "job")), (compare, ("a", "job_a", "b", "job_b"))):
        for name in names:
            command.add_argument(name, metavar=name.upper())
    args = parser.parse_args(arguments)

    def open_by_url(url: str) -> ObjectStore:
        return open_store(url, args.options if url.startswith("s3:") else {})

    try:
        if args.command == "show":
            _show(open_by_url(args.store), args.job)
            return 0
        difference = first_difference(
            open_by_url(args.a), args.job_a, open_by_url(args.b), args.job_b
        )
    except (LookupError, CorruptError, StoreError, WireError) as error:
        print(f"cannot tell: {error}", file=sys.stderr)
        return 2
    print(f"different: {difference}" if difference else "equal, bit for bit")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
