#!/usr/bin/env python3
"""Read a checkpoint of spotd without spotd: every byte verified, tensors as torch has them.

    python read_checkpoint.py file:///mnt/runs JOB_ID                  # the newest: what is in it
    python read_checkpoint.py s3://bucket/folder JOB_ID --step 1200 --out state.pt
    python read_checkpoint.py gs://bucket/folder JOB_ID --pin best --out state.pt

Needs torch and xxhash, and obstore for a bucket, whose credentials and region it takes from the
environment as obstore does (AWS_*, GOOGLE_*, AZURE_*), and so for the buckets that the manifest
names beside the first one. Written for Python 3.10 and later; copy it
wherever it is of use. The format is described in docs/checkpoint-format.md.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import torch
import xxhash

Get = Callable[[str, int, int], bytes]  # key, first byte, how many (-1: all of it)


def open_store(url: str) -> Get:
    """A folder, or a bucket."""
    place = urlparse(url)
    if place.scheme == "file":
        root = Path(unquote(place.path))

        def get_file(key: str, start: int, count: int) -> bytes:
            with (root / key).open("rb") as file:
                file.seek(start)
                return file.read(count)

        return get_file
    from obstore.store import from_url  # noqa: PLC0415 - a folder needs none

    bucket = from_url(url)

    def get(key: str, start: int, count: int) -> bytes:
        if count < 0:
            return bytes(bucket.get(key).bytes())
        return bytes(bucket.get_range(key, start=start, length=count))

    return get


def find(get: Get, job: str, step: int | None = None, pin: str = "") -> dict[str, Any]:
    """The manifest that HEAD names: the newest, or that of a step; or the one that a pin names."""
    if pin:
        refs = [json.loads(get(f"jobs/{job}/pins/{pin}", 0, -1))["pin"]["ref"]]
    else:
        head = json.loads(get(f"jobs/{job}/HEAD", 0, -1))["head"]
        refs = [ref for ref in (head["current"], *head["previous"]) if ref]
    for ref in refs:
        if step in (None, ref["step"]):
            data = get(ref["manifest"], 0, -1)
            if hashlib.sha256(data).hexdigest() != ref["digest"]:
                raise ValueError(f"{ref['manifest']} is damaged: another digest than HEAD says")
            whole = json.loads(data)
            if whole["version"] not in (2, 3):
                raise ValueError(f"manifest of version {whole['version']}: this reads 2 and 3")
            return dict(whole["manifest"])
    raise LookupError(f"no such checkpoint; there are steps {[ref['step'] for ref in refs]}")


def read_stream(get: Get, stream: dict[str, Any]) -> bytearray:
    """What one rank saved: its shards one behind the other, each chunk verified. Those of version 3
    may lie in another store, whose URL they have."""
    data = bytearray()
    gets = {"": get}
    for shard in stream["shards"]:
        for number, digest in enumerate(shard["digests"]):
            at = number * shard["chunk"]
            count = min(shard["chunk"], shard["size"] - at)
            url = shard.get("store", "")
            gets[url] = gets.get(url) or open_store(url)
            part = gets[url](shard["key"], at, count)
            make = {"xxh3": xxhash.xxh3_128, "sha256": hashlib.sha256}[shard["kind"]]
            if len(part) != count or make(part).hexdigest() != digest:
                raise ValueError(f"{shard['key']} is damaged at byte {at}")
            data += part
    return data


def read_tensors(get: Get, manifest: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors, whole again, however many ranks had a block of each."""
    found = {
        tensor["name"]: torch.empty(tensor["shape"], dtype=getattr(torch, tensor["dtype"]))
        for tensor in manifest["tensors"]
    }
    for number, stream in enumerate(manifest["streams"]):
        data = read_stream(get, stream)
        for tensor in manifest["tensors"]:
            whole = found[tensor["name"]]
            for block in tensor["blocks"]:
                count = torch.Size(block["shape"]).numel()
                if block["stream"] != number or not count:
                    continue
                part = data[block["offset"] : block["offset"] + count * whole.element_size()]
                place = tuple(
                    slice(a, a + n) for a, n in zip(block["at"], block["shape"], strict=True)
                )
                whole[place] = torch.frombuffer(part, dtype=whole.dtype).view(block["shape"])
    yield from found.items()


def main() -> None:
    """What is in it; with --out, all tensors and the JSON part into a file of torch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("job", help="its id: spotctl show JOB, or a folder below jobs/")
    parser.add_argument("--step", type=int)
    parser.add_argument("--pin", default="")
    parser.add_argument("--out", help="for torch.load(OUT, weights_only=True)")
    args = parser.parse_args()
    get = open_store(args.url)
    manifest = find(get, args.job, args.step, args.pin)
    print(f"step {manifest['step']}, saved by {manifest['world_size']} ranks")
    tensors = {}
    for name, tensor in read_tensors(get, manifest):
        print(f"{name}  {tensor.dtype}  {list(tensor.shape)}")
        tensors[name] = tensor
    if args.out:
        torch.save({"step": manifest["step"], "state": manifest["state"], **tensors}, args.out)


if __name__ == "__main__":
    main()
