"""What a bucket has, copied from a real S3 server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreUnavailableError
from spotd import wire
from spotd.demo.bucket import Bucket
from spotd.demo.s3 import serving
from tests.trainer.agent.node import Node
from trainer.agent.hidden import hidden_of
from trainer.mounts.copying import Copied, Copy, MountError

DATA = {"a": os.urandom(1000), "x/y/b.bin": os.urandom(350), "empty": b""}


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with serving() as made:
        yield made


@pytest.fixture
def bucket(server: Bucket) -> Bucket:
    """Filled, and nobody else's."""
    made = Bucket(server.endpoint)
    store = open_store(made.url, made.options)
    for key, data in DATA.items():
        store.put(key, data)
    return made


@pytest.fixture
def store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr("trainer.mounts.copying.RANGE_BYTES", 128)
    return open_store(bucket.url, bucket.options)


def copy(store: ObjectStore, folder: Path) -> Copied:
    return Copy(store, folder / "d", folder / "note.json", lambda _: None).run()


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in (folder / "d").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "d")): path.read_bytes() for path in found}


def test_all_of_it_comes_and_only_what_changed_again(store: ObjectStore, tmp_path: Path) -> None:
    assert copy(store, tmp_path) == Copied(3, 3, 1350)
    assert content(tmp_path) == DATA
    assert copy(store, tmp_path) == Copied(0, 3, 0)
    new = os.urandom(1000)
    store.put("a", new)
    (tmp_path / "d" / "empty").unlink()
    assert copy(store, tmp_path) == Copied(2, 3, 1000)
    assert content(tmp_path) == {**DATA, "a": new}
    (tmp_path / "note.json").write_text(json.dumps([1]))
    assert copy(store, tmp_path).files == 3


def test_what_changes_meanwhile_is_named(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = store.get_range

    def other(key: str, start: int, length: int) -> bytes:
        if key == "x/y/b.bin" and start == 128:
            store.put("x/y/b.bin", bytes(350))
        return get(key, start, length)

    monkeypatch.setattr(store, "get_range", other)
    with pytest.raises(MountError, match=r"x/y/b\.bin of s3://.* changed while it was copied"):
        copy(store, tmp_path)
    monkeypatch.undo()
    assert copy(store, tmp_path).files == 1
    assert content(tmp_path)["x/y/b.bin"] == bytes(350)


def test_a_store_that_is_away_for_a_moment_is_asked_again(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, left = store.get_range, [StoreUnavailableError("away")] * 5

    def away(key: str, start: int, length: int) -> bytes:
        if left:
            raise left.pop()
        return get(key, start, length)

    monkeypatch.setattr(store, "get_range", away)
    assert copy(store, tmp_path).files == 3
    assert content(tmp_path) == DATA


def test_an_address_with_nothing_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(MountError, match="there is nothing below s3://"):
        copy(open_store(f"{bucket.url}/none", bucket.options), tmp_path)


def test_a_node_has_it_before_setup_and_says_what_it_cannot_have(
    node: Node, bucket: Bucket, tmp_path: Path
) -> None:
    given = wire.Bucket("~/data", bucket.url, bucket.options)
    node.run()
    node.start(setup="wc -c < ~/data/x/y/b.bin", buckets=(given,))
    node.wait_for(wire.EXITED)
    assert node.log("setup").strip() == "350"
    with Node(tmp_path / "other", generation=2) as other:
        other.run()
        wrong = wire.Bucket("~/data", f"{bucket.url}/none", bucket.options)
        other.start(buckets=(wrong,))
        failed = other.wait_for(wire.SETUP).data
        assert failed["status"] == "failed"
        assert "file_mounts.~/data: s3://" in failed["tail"]
        assert "there is nothing below" in failed["tail"]


def test_the_keys_of_a_bucket_are_hidden_in_what_programs_print(node: Node) -> None:
    given = wire.Bucket("/d", "s3://b", {"region": "r", "secret_access_key": "s3cret-key"})
    assert hidden_of(node.start_document(buckets=(given,))) == ["s3cret-key"]
    assert "s3cret-key" not in repr(given)
