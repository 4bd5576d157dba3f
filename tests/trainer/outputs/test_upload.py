"""Uploads of a job's outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import Body, StoreDeniedError, StoreUnavailableError
from providers.stores.local import LocalStore
from spotd.wire import HeadRef, Manifest, parse_saved_folder
from trainer.directory import archive
from trainer.outputs.files import Selection, select_matching
from trainer.outputs.upload import StoredOutputs, Upload, join_problems, upload_outputs
from trainer.saver.reader import read_manifest


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


class Store(LocalStore):
    """A store that fails the next `failures` writes with `error`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failures = 0
        self.error: Exception = StoreUnavailableError("no answer")
        self.written: list[str] = []

    def put(self, key: str, data: Body) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        super().put(key, data)
        self.written.append(key)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "workdir"
    (folder / "out").mkdir(parents=True)
    return folder


def select(workdir: Path, *patterns: str) -> Selection:
    return select_matching(workdir, home=workdir, patterns=patterns or ("**/*",))


def upload(workdir: Path, store: Store, *patterns: str, **changes: Any) -> StoredOutputs:
    clock = changes.pop("clock", Clock())
    values = {
        "job_id": "job",
        "generation": 2,
        "rank": 0,
        "cancelled": lambda: False,
        "patience_s": 60.0,
        "pause": clock.pause,
        "monotonic": lambda: clock.now_s,
    }
    return upload_outputs(
        lambda: store, select(workdir, *patterns).files, Upload(**(values | changes))
    )


def contents(store: Store, stored: StoredOutputs) -> dict[str, bytes]:
    """The files of an upload, as they are in the store."""
    manifest = manifest_of(store, stored)
    saved = parse_saved_folder(manifest)
    assert saved is not None
    return {
        file.path: b"".join(store.get(shard.key)[0] for shard in stream.shards)
        for file, stream in zip(saved.files, manifest.streams, strict=True)
    }


def manifest_of(store: Store, stored: StoredOutputs) -> Manifest:
    return read_manifest(store, HeadRef(2, 0, stored.manifest, stored.digest))


def test_files_are_stored_with_their_names_times_and_modes(workdir: Path, store: Store) -> None:
    (workdir / "out" / "a.bin").write_bytes(b"weights")
    os.utime(workdir / "out" / "a.bin", (100, 100))
    (workdir / "run.sh").write_bytes(b"echo")
    (workdir / "run.sh").chmod(0o755)
    (workdir / "empty").touch()
    stored = upload(workdir, store)
    assert contents(store, stored) == {"out/a.bin": b"weights", "run.sh": b"echo", "empty": b""}
    assert (stored.files, stored.size, stored.new_size, stored.complete) == (3, 11, 11, True)
    saved = parse_saved_folder(manifest_of(store, stored))
    assert saved is not None
    by_path = {file.path: file for file in saved.files}
    assert by_path["out/a.bin"].modified_us == 100 * 10**6
    assert by_path["run.sh"].mode == 0o755
    assert store.written[-1] == stored.manifest, "the manifest comes last"
    assert stored.manifest.startswith("jobs/job/outputs/g00000002-r00000-")


def test_the_same_content_is_uploaded_once(workdir: Path, store: Store) -> None:
    (workdir / "a").write_bytes(b"same")
    first = upload(workdir, store)
    (workdir / "b").write_bytes(b"same")
    (workdir / "c").write_bytes(b"new")
    second = upload(workdir, store, generation=3)
    assert (second.size, second.new_size) == (11, 3)
    expected = {"a": b"same", "b": b"same", "c": b"new"}
    assert contents(store, second) == expected
    assert contents(store, first) == {"a": b"same"}


def test_a_large_file_has_several_shards(
    workdir: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.saver.streams.CHUNK_BYTES", 10)
    monkeypatch.setattr(archive, "CHUNK_BYTES", 10)
    data = bytes(range(256))
    (workdir / "large").write_bytes(data)
    stored = upload(workdir, store)
    assert len(manifest_of(store, stored).shards) > 1
    assert contents(store, stored) == {"large": data}


def test_it_waits_for_a_store_that_does_not_answer(workdir: Path, store: Store) -> None:
    (workdir / "a").write_bytes(b"a")
    store.failures = 5
    assert contents(store, upload(workdir, store)) == {"a": b"a"}


def test_its_patience_ends(workdir: Path, store: Store) -> None:
    (workdir / "a").write_bytes(b"a")
    store.failures = 10**6
    clock = Clock()
    with pytest.raises(StoreUnavailableError):
        upload(workdir, store, clock=clock)
    assert 60 < clock.now_s < 70


def test_a_refusal_is_not_repeated(workdir: Path, store: Store) -> None:
    (workdir / "a").write_bytes(b"a")
    store.failures, store.error = 1, StoreDeniedError("no")
    with pytest.raises(StoreDeniedError):
        upload(workdir, store)


def test_what_was_stored_in_time_has_a_manifest(workdir: Path, store: Store) -> None:
    for name in "abcdefgh":
        (workdir / name).write_bytes(name.encode())
    stored = upload(workdir, store, cancelled=lambda: len(store.written) >= 2)
    assert not stored.complete
    kept = contents(store, stored)
    assert 2 <= len(kept) < 8
    assert kept == {name: name.encode() for name in kept}


def test_nothing_in_time_is_nothing(workdir: Path, store: Store) -> None:
    (workdir / "a").write_bytes(b"a")
    stored = upload(workdir, store, cancelled=lambda: True)
    assert (stored.manifest, stored.files, stored.complete) == ("", 0, False)


def test_a_file_that_is_gone_is_named(workdir: Path, store: Store) -> None:
    (workdir / "a").write_bytes(b"a")
    (workdir / "b").write_bytes(b"b")
    files = select(workdir).files
    (workdir / "a").unlink()
    stored = upload_outputs(
        lambda: store, files, Upload("job", 2, 0, cancelled=lambda: False, patience_s=1.0)
    )
    assert contents(store, stored) == {"b": b"b"}
    assert stored.problems == ("a is left out: a was removed",)


def test_an_unreadable_earlier_upload_is_no_obstacle(workdir: Path, store: Store) -> None:
    store.put("jobs/job/outputs/g00000001-r00000-00/MANIFEST.json", b"{")
    (workdir / "a").write_bytes(b"a")
    assert contents(store, upload(workdir, store)) == {"a": b"a"}


def test_many_problems_are_counted() -> None:
    assert join_problems(["a", "b"]) == "a; b"
    assert join_problems(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
    assert join_problems([]) == ""
