"""What a bucket has, copied from a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreUnavailableError
from spotd import wire
from spotd.demo.bucket import Bucket
from spotd.demo.s3 import serving
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.base.journal import Journal, JournalReader
from trainer.agent.base.paths import find_paths
from trainer.agent.base.redaction import secret_values
from trainer.agent.data.buckets import CopyReport
from trainer.mounts.byte_counter import ByteCounter, read_counts
from trainer.mounts.copy import Copy, CopyResult, MountError

DATA = {"a": os.urandom(1000), "x/y/b.bin": os.urandom(350), "empty": b""}


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with serving() as filled_bucket:
        yield filled_bucket


@pytest.fixture
def bucket(server: Bucket) -> Bucket:
    """Filled, and nobody else's."""
    filled_bucket = Bucket(server.endpoint)
    store = open_store(filled_bucket.url, filled_bucket.options)
    for key, data in DATA.items():
        store.put(key, data)
    return filled_bucket


@pytest.fixture
def store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr("trainer.mounts.copy.RANGE_BYTES", 128)
    return open_store(bucket.url, bucket.options)


def copy(store: ObjectStore, folder: Path) -> CopyResult:
    return Copy(store, folder / "d", folder / "note.json", lambda _: None).run()


def content(folder: Path) -> dict[str, bytes]:
    results = (path for path in (folder / "d").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "d")): path.read_bytes() for path in results}


def test_all_of_it_comes_and_only_what_changed_again(store: ObjectStore, tmp_path: Path) -> None:
    assert copy(store, tmp_path) == CopyResult(3, 1350)
    assert content(tmp_path) == DATA
    assert copy(store, tmp_path) == CopyResult(0, 0)
    new = os.urandom(1000)
    store.put("a", new)
    (tmp_path / "d" / "empty").unlink()
    assert copy(store, tmp_path) == CopyResult(2, 1000)
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
    data_bucket = wire.Bucket("~/data", bucket.url, bucket.options)
    node.run()
    node.start(setup="wc -c < ~/data/x/y/b.bin", buckets=(data_bucket,))
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


class Held:
    """A server that answers no read of one key until it may."""

    def __init__(self, key: str) -> None:
        self._key, self.may = key, Event()

    def __call__(self, app: Any) -> Any:
        def gate(environ: Any, start: Any) -> Any:
            if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith(self._key):
                self.may.wait(LIMIT_S)
            return app(environ, start)

        return gate


def lines(node: Node) -> list[dict[str, Any]]:
    return [dict(entry.data) for entry in node.entries(wire.MOUNT_READ)]


def test_what_a_node_copied_is_told_once_however_often_its_agent_dies(node: Node) -> None:
    """The first dies with one object of two here, and what that took is told by the second, which
    copies both; the third finds a program that runs, and has nothing to tell."""
    sizes = {"a": 3 << 20, "b": 1 << 20}
    gate = Held("/b")
    with serving(wrap=gate) as bucket:
        store = open_store(bucket.url, bucket.options)
        for key, size in sizes.items():
            store.put(key, bytes(size))
        node.run()
        data_bucket = wire.Bucket("~/data", bucket.url, bucket.options)
        node.start(run="touch up; until [ -e go ]; do sleep 0.02; done", buckets=(data_bucket,))
        counts = node.paths.folder / "copied"
        source = ("~/data", bucket.url)
        wait_until("one is here", lambda: read_counts(counts) == {source: sizes["a"]})
        [count] = counts.glob("*.json")
        node.kill_agent()
        wait_until("who copied is gone", lambda: not is_running(int(count.name.split("-")[0])))
        assert lines(node) == []
        gate.may.set()
        node.run()
        wait_until("the program to be up", (node.paths.workdir / "up").exists)
        node.kill_agent()
        node.run()
        (node.paths.workdir / "go").touch()
        node.wait_for(wire.EXITED)
    read_total = sum(line["bytes"] for line in lines(node))
    assert {(line["target"], line["url"]) for line in lines(node)} == {source}
    assert read_total == 2 * sizes["a"] + sizes["b"]


def test_of_a_data_set_it_is_told_where_it_came_from_and_the_regions_copy_is_free(
    tmp_path: Path, bucket: Bucket
) -> None:
    near = (tmp_path / "near").as_uri()
    data_bucket = wire.Bucket("~/data", bucket.url, bucket.options, near, {}, 90_000, 1_000_000)
    results = []
    for name in ("first", "second"):
        with Node(tmp_path / name / "home") as node:
            node.run()
            node.start(run="cat ~/data/a ~/data/x/y/b.bin | wc -c", buckets=(data_bucket,))
            node.wait_for(wire.EXITED)
            assert node.log().strip() == "1350"
            results.append(lines(node))
    assert results == [[{"target": "~/data", "bytes": 1350, "url": bucket.url}], []]


def test_what_came_is_told_once_a_minute_and_the_rest_at_the_end(tmp_path: Path) -> None:
    paths = find_paths({"SPOTD_HOME": str(tmp_path)}, "job-1", 1)
    for folder in (paths.folder, paths.memory):
        folder.mkdir(parents=True)
    journals = []

    def agent() -> CopyReport:
        """One after the other, of one journal."""
        journals.append(Journal(paths.journal, paths.overflow, 1, now_us=lambda: 1))
        return CopyReport(paths, journals[-1], 0.0)

    try:
        first = agent()
        add = ByteCounter(first.folder).counter("/d", "s3://b")
        add(100)
        first.report(59.0)
        assert journals[0].seq == 0
        first.report(60.0)
        first.report(61.0, last=True)
        second = agent()
        other = ByteCounter(second.folder)
        other.counter("/d", "s3://b")(30)
        other.counter("/e", "s3://b")(4)
        other.flush()
        for _ in range(2):
            second.report(0.0, last=True)
        entries = [entry.data for entry in JournalReader(paths.journal, paths.overflow, 0).read()]
        read_total = [(row["target"], row["bytes"]) for row in entries]
        assert read_total == [("/d", 100), ("/d", 30), ("/e", 4)]
    finally:
        for journal in journals:
            journal.close()
        shutil.rmtree(paths.memory)


def test_the_keys_of_a_bucket_are_hidden_in_what_programs_print(node: Node) -> None:
    keys, near = {"region": "r", "secret_access_key": "s3cret-key"}, {"sas_token": "of-the-copy"}
    data_bucket = wire.Bucket("/d", "s3://b", keys, near="az://c", near_options=near)
    assert secret_values(node.start_document(buckets=(data_bucket,))) == [
        "s3cret-key",
        "of-the-copy",
    ]
    assert not [word for word in ("s3cret-key", "of-the-copy") if word in repr(data_bucket)]
