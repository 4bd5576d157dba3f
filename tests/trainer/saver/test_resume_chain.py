"""Choosing the checkpoint to resume from when some are damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import NotFoundError
from spotd.wire import HeadRef, parse_manifest, parse_pin, pin_key, sha256
from spotd.wire.fields import encode
from tests.trainer.saver.rig import CONFIG, SIZE, Gate, Rig, fill, head_of, stored_steps
from trainer.fence import Fence
from trainer.hook.spotd_hook.saver_client import SaverError
from trainer.saver import resume_chain
from trainer.saver.reader import CorruptError, Range, Reader, read_manifest, verify
from trainer.saver.retention import remove_old

Start = Callable[..., Rig]
INJECTED = 1200


@pytest.mark.behaviour("every damage to a stored checkpoint is found", way="the saver")
@pytest.mark.req("CKP-25")
def test_every_damage_is_found(start: Start, store: Gate, tmp_path: Path) -> None:
    """Bit flips, truncations, lost and swapped shards: none is ever loaded."""
    rng = random.Random(20)
    rig = start(1)
    rig.save_and_wait(20)
    ref = head_of(store).current
    assert ref is not None
    folder = (tmp_path / "store" / ref.manifest).parent
    files = sorted(folder.iterdir())
    assert len(files) == 7  # six shards and the manifest
    content = memoryview(bytearray(SIZE))
    with ThreadPoolExecutor(2) as pool:

        def load() -> None:
            reader = Reader(store, read_manifest(store, ref), [], pool)
            reader.fill(content, [Range(0, 0, SIZE)], lambda _: None)

        load()
        expected = bytes(content)
        kinds = dict.fromkeys(["flip", "cut", "lose", "swap"], 0)
        for number in range(INJECTED):
            file = files[number % len(files)]
            kind = rng.choice(["flip", "flip", "flip", "cut", "cut", "lose", "swap"])
            kinds[kind] += 1
            good = file.read_bytes()
            damage(rng, kind, file, files)
            with pytest.raises((CorruptError, NotFoundError)):
                load()
            file.write_bytes(good)
        assert min(kinds.values()) > 100
        load()
    assert bytes(content) == expected


def damage(rng: random.Random, kind: str, file: Path, files: list[Path]) -> None:
    good = file.read_bytes()
    match kind:
        case "flip":
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            file.write_bytes(bad)
        case "cut":
            file.write_bytes(good[: rng.randrange(len(good))])
        case "lose":
            file.unlink()
        case "swap":
            other = rng.choice([path for path in files if path != file])
            file.write_bytes(other.read_bytes())


@pytest.mark.behaviour("a damaged checkpoint is passed over for the one before it", way="the saver")
def test_a_damaged_one_is_passed_over_and_said(start: Start, store: Gate, tmp_path: Path) -> None:
    first = start(1)
    first.save_and_wait(10)
    first.save_and_wait(20)
    current = head_of(store).current
    assert current is not None
    shard = (tmp_path / "store" / current.manifest).parent / "r00000-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    second = start(2)
    assert second.restore() == 10
    assert second.steps("checkpoint_skipped") == [20]
    assert "has 4095 bytes instead of 4096" in second.reports[0][1]["error"]
    second.save_and_wait(15)
    assert [ref.step for ref in head_of(store).previous] == [10], "bad ones leave the chain"


@pytest.mark.behaviour("no usable checkpoint is an error, not a fresh start", way="the saver")
def test_nothing_usable_is_an_error_and_not_a_fresh_start(start: Start, tmp_path: Path) -> None:
    rig = start(1)
    rig.save_and_wait(10)
    for shard in tmp_path.rglob("r00000-*"):
        shard.write_bytes(b"")
    second = start(2)
    with pytest.raises(SaverError, match="none of the 1 checkpoints") as caught:
        second.restore()
    assert caught.value.kind == "UnusableError"
    assert second.steps("checkpoint_skipped") == [10]


def test_an_outage_is_no_corruption(store: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = Fence(store, "job", 1, "node")
    pauses: list[float] = []
    chain = resume_chain.ResumeChain(store, fence.claim(), lambda *_: None, pause=pauses.append)
    tries = []

    def away_once() -> int:
        tries.append(1)
        if len(tries) == 1:
            store.down = True
            store.get("x")
        return 7

    assert chain.retry(away_once) == 7
    assert len(pauses) == 1


def test_further_back(start: Start, store: Gate) -> None:
    rig = start(1)
    for step in (10, 20, 30):
        rig.save_and_wait(step)
    assert rig.restore() == 30
    assert rig.restore(back=1) == 20
    assert rig.restore(back=7) == 10, "as far as there is any"
    rig.save_and_wait(40)
    assert [ref.step for ref in head_of(store).previous] == [10]
    found = rig.engine.resume(CONFIG, max_step=39)
    assert found is not None
    assert found.step == 10
    assert rig.engine.resume(CONFIG, max_step=9) is None


@pytest.mark.behaviour("a checkpoint of another configuration is refused", way="the saver")
def test_another_configuration_is_refused(start: Start) -> None:
    start(1).save_and_wait(10)
    with pytest.raises(SaverError, match="width = 8, this program has 16"):
        start(2).restore({**CONFIG, "width": 16})
    with pytest.raises(SaverError, match="extra = None"):
        start(3).restore({**CONFIG, "extra": 1})


def test_parts_of_chunks_are_verified_whole(start: Start) -> None:
    rig = start(1)
    rig.save_and_wait(3)
    expected = bytearray(SIZE)
    fill(memoryview(expected), 3)
    assert rig.engine.resume(CONFIG) is not None
    ranges = [(0, 100, 5000), (0, SIZE - 7, 7), (0, 4094, 4)]
    memory, _ = rig.engine.fetch(ranges)
    wanted = b"".join(bytes(expected[start : start + size]) for _, start, size in ranges)
    assert bytes(memory[: len(wanted)]) == wanted
    with pytest.raises(SaverError, match="no stream 1"):
        rig.engine.fetch([(1, 0, 4)])
    with pytest.raises(SaverError, match="ends at"):
        rig.engine.fetch([(0, SIZE - 1, 2)])


def first_version(body: dict[str, Any]) -> bytes:
    return encode({"manifest": body, "version": 1})


def test_manifests_of_the_first_version_are_read(store: Gate) -> None:
    """As written by earlier versions: one digest per shard, tensors by shard and offset."""
    import xxhash

    shards = [bytes(range(64)) * 2, b"\1" * 64]
    for number, data in enumerate(shards):
        store.put(f"jobs/job/g00000001/s000000000007-a/shard-{number:05d}", data)
    tensors = [
        {"name": "a", "dtype": "float32", "shape": [4, 8], "shard": 0, "offset": 0, "nbytes": 128},
        {"name": "b", "dtype": "float32", "shape": [16], "shard": 1, "offset": 0, "nbytes": 64},
    ]
    data = first_version(
        {
            "job": "job",
            "generation": 1,
            "step": 7,
            "created_at_us": 1,
            "world_size": 1,
            "shards": [
                {
                    "key": f"jobs/job/g00000001/s000000000007-a/shard-{number:05d}",
                    "size": len(shard),
                    "digest": "xxh3:" + xxhash.xxh3_128_hexdigest(shard),
                }
                for number, shard in enumerate(shards)
            ],
            "tensors": tensors,
            "state": {"step": 7},
            "final": False,
        }
    )
    store.put("m", data)
    manifest = read_manifest(store, HeadRef(1, 7, "m", sha256(data)))
    assert manifest == parse_manifest(data)
    assert manifest.size == 192
    assert [block.offset for tensor in manifest.tensors for block in tensor.blocks] == [0, 128]
    assert verify(store, manifest, lambda: True)
    content = memoryview(bytearray(192))
    with ThreadPoolExecutor(1) as pool:
        Reader(store, manifest, [], pool).fill(content, [Range(0, 0, 192)], lambda _: None)
        assert bytes(content) == b"".join(shards)
        store.put("jobs/job/g00000001/s000000000007-a/shard-00001", b"\1" * 63 + b"\0")
        with pytest.raises(CorruptError, match="another digest"):
            Reader(store, manifest, [], pool).fill(content, [Range(0, 0, 192)], lambda _: None)


def test_a_suspect_is_passed_over_and_kept(start: Start, store: Gate) -> None:
    first = start(1)
    for step in (1, 2):
        first.save_and_wait(step)
    suspect = head_of(store).current
    assert suspect is not None
    heir = start(2, suspect=suspect.manifest, keep=1)
    assert heir.restore() == 1
    heir.save_and_wait(3)
    assert suspect not in head_of(store).previous, "it is not part of what was trained"
    remove_old(heir.service.fence, 1, lambda: True)
    assert stored_steps(store) == [2, 3]
    assert parse_pin(store.get(pin_key("job", "suspect-2"))[0]).ref == suspect
    third = start(3, suspect=suspect.manifest)
    assert third.restore() == 3


def test_a_suspect_that_is_the_only_one_is_resumed_from(start: Start, store: Gate) -> None:
    start(1).save_and_wait(1)
    only = head_of(store).current
    assert only is not None
    assert start(2, suspect=only.manifest).restore() == 1
