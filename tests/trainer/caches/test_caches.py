"""Saving and restoring caches: verified, and never overwriting existing files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import ConflictError, StoreUnavailableError
from providers.stores.local import LocalStore
from spotd.wire import WireError
from trainer.caches.__main__ import CacheWatcher, restore_all
from trainer.caches.index import index_key, parse_index
from trainer.caches.restore import InsufficientSpaceError, restore
from trainer.caches.tree import STAGING_FOLDER, TooManyFilesError, scan
from trainer.caches.upload import Cache, ChangedError, save


def fill(folder: Path) -> dict[str, bytes]:
    """A cache laid out like that of Hugging Face: blobs and links to them."""
    files = {"blobs/b1": os.urandom(300), "blobs/empty": b"", "x/y/z.bin": os.urandom(150)}
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / "x" / "link").symlink_to("../blobs/b1")
    (folder / "x" / "y" / "z.bin").chmod(0o755)
    return files


def content(folder: Path) -> dict[str, bytes]:
    return {file.path: (folder / file.path).read_bytes() for file in scan(folder)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr("trainer.caches.upload.PART_BYTES", 128)
    monkeypatch.setattr("trainer.caches.index.PART_BYTES", 128)
    return Cache(LocalStore(tmp_path / "store"), "job-1", "~/c", tmp_path / "first" / "c")


def elsewhere(cache: Cache) -> Cache:
    """The same cache on another machine."""
    return Cache(cache.store, "job-1", "~/c", cache.folder.parents[1] / "second" / "c")


def save_cache(cache: Cache) -> int:
    return save(cache, scan(cache.folder), lambda: True)


def parts(cache: Cache) -> list[Path]:
    folder = Path(cache.store.url.removeprefix("file://")) / "jobs/job-1/cache"
    return sorted(path for path in folder.iterdir() if not path.name.startswith("index-"))


def test_it_comes_back_as_it_was(cache: Cache) -> None:
    fill(cache.folder)
    assert save_cache(cache) == 450
    other = elsewhere(cache)
    restored = restore(other)
    assert (restored.files, restored.bytes, restored.damaged) == (4, 450, 0)
    assert scan(other.folder) == scan(cache.folder), "times and modes, too"
    assert content(other.folder) == content(cache.folder)
    assert (other.folder / "x" / "link").readlink() == Path("../blobs/b1")
    assert not (other.folder / STAGING_FOLDER).exists()
    assert save_cache(other) == 0, "nothing has changed"


def test_only_what_changed_is_sent_and_what_nothing_needs_goes(cache: Cache) -> None:
    fill(cache.folder)
    save_cache(cache)
    (cache.folder / "new").write_bytes(b"n" * 40)
    assert save_cache(cache) == 40
    for path in ("blobs/b1", "x/link", "x/y/z.bin"):
        (cache.folder / path).unlink()
    assert save_cache(cache) == 0
    assert [path.stat().st_size for path in parts(cache)] == [40]
    other = elsewhere(cache)
    restore(other)
    assert set(content(other.folder)) == {"new", "blobs/empty"}


def test_what_is_there_already_stays(cache: Cache, tmp_path: Path) -> None:
    fill(cache.folder)
    save_cache(cache)
    other = elsewhere(cache)
    (other.folder / "blobs").mkdir(parents=True)
    (other.folder / "blobs" / "b1").write_bytes(b"newer")
    (other.folder / "x").symlink_to(tmp_path)  # leads out of the folder
    assert restore(other).files == 1
    assert (other.folder / "blobs" / "b1").read_bytes() == b"newer"
    assert not (tmp_path / "y").exists()


def test_what_the_user_writes_meanwhile_stays(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache.folder)
    save_cache(cache)
    other, get = elsewhere(cache), cache.store.get

    def write_first(key: str) -> tuple[bytes, str]:
        (other.folder / "blobs").mkdir(parents=True, exist_ok=True)
        (other.folder / "blobs" / "b1").write_bytes(b"newer")
        return get(key)

    monkeypatch.setattr(cache.store, "get", write_first)
    restore(other)
    assert (other.folder / "blobs" / "b1").read_bytes() == b"newer"
    monkeypatch.setattr("os.path.lexists", lambda _: False)  # it came in the last moment
    assert restore(other).files == 0
    assert (other.folder / "blobs" / "b1").read_bytes() == b"newer"


@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_a_damaged_part_costs_the_files_that_are_in_it(cache: Cache, how: str) -> None:
    files = fill(cache.folder)
    save_cache(cache)
    store = cache.store
    index, _ = cache.index()
    assert index is not None
    [last] = [item for item in index.files if item.file.path == "x/y/z.bin"]
    part = index.parts[last.pieces[-1].part]
    path = next(path for path in parts(cache) if path.name == part.digest)
    data = path.read_bytes()
    store.delete(f"jobs/job-1/cache/{part.digest}")
    if how != "gone":
        store.put(
            f"jobs/job-1/cache/{part.digest}",
            data[:-1] if how == "cut" else bytes([data[0] ^ 1]) + data[1:],
        )
    other = elsewhere(cache)
    restored = restore(other)
    assert (restored.damaged, restored.files) == (1, 3)
    assert not (other.folder / "x" / "y" / "z.bin").exists()
    assert (other.folder / "blobs" / "b1").read_bytes() == files["blobs/b1"]


def test_what_is_written_to_meanwhile_is_not_saved(cache: Cache) -> None:
    fill(cache.folder)
    files_scanned = scan(cache.folder)
    (cache.folder / "blobs" / "b1").write_bytes(b"other")
    with pytest.raises(ChangedError):
        save(cache, files_scanned, lambda: True)
    (cache.folder / "blobs" / "b1").unlink()
    with pytest.raises(ChangedError):
        save(cache, files_scanned, lambda: True)
    with pytest.raises(ChangedError):
        save(cache, scan(cache.folder), lambda: False)
    assert cache.index() == (None, None)


def test_of_two_machines_that_save_one_has_the_index(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache.folder)
    put_if = cache.store.put_if

    def other_first(key: str, data: bytes, tag: str | None) -> str:
        put_if(key, data.replace(b" ", b"") + b" ", tag)
        return put_if(key, data, tag)

    monkeypatch.setattr(cache.store, "put_if", other_first)
    with pytest.raises(ConflictError):
        save_cache(cache)


def test_an_index_leads_nowhere_else(cache: Cache) -> None:
    fill(cache.folder)
    save_cache(cache)
    data = cache.store.get(index_key("job-1", "~/c"))[0]
    good: dict[str, Any] = json.loads(data)
    for path, link in [("../x", ""), ("/x", ""), ("a//b", ""), ("x/l", "../../up"), ("l", "/etc")]:
        file = {**good["files"][0]["file"], "path": path, "link": link}
        bad = {**good, "files": [{**good["files"][0], "file": file}]}
        with pytest.raises(WireError):
            parse_index(json.dumps(bad).encode())
    for bad in (
        {**good, "parts": []},
        {**good, "parts": [{"digest": "../HEAD", "size": 1}]},
        {**good, "files": good["files"] * 2},
        [],
    ):
        with pytest.raises(WireError):
            parse_index(json.dumps(bad).encode())
    with pytest.raises(WireError):
        parse_index(b"[" * 100_000)


def test_a_disk_without_room_has_nothing_of_it(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache.folder)
    save_cache(cache)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Disk)
    other = elsewhere(cache)
    with pytest.raises(InsufficientSpaceError):
        restore(other)
    assert list(other.folder.iterdir()) == []


class _Disk:
    free = 449


def test_too_many_files_are_none(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache.folder)
    monkeypatch.setattr("trainer.caches.tree.MAX_FILES", 3)
    with pytest.raises(TooManyFilesError):
        scan(cache.folder)


class Watched:
    """A cache with its watcher, checked by `after`."""

    def __init__(self, cache: Cache, most: int = 10_000) -> None:
        self.now, self.reports = 0.0, list[Mapping[str, Any]]()
        self._watch = CacheWatcher(
            cache, most, 30.0, self.reports.append, lambda: True, lambda: self.now
        )

    def after(self, seconds: float) -> list[str]:
        """Check the cache that many seconds later; return the statuses reported."""
        self.now += seconds
        before = len(self.reports)
        self._watch.check()
        return [item["status"] for item in self.reports[before:]]


def test_it_is_saved_once_it_has_settled_and_only_when_it_changed(cache: Cache) -> None:
    watched = Watched(cache)
    assert watched.after(0) + watched.after(60) == [], "an empty one is no news"
    fill(cache.folder)
    assert watched.after(10) + watched.after(29) == []
    (cache.folder / "more").write_bytes(b"m")
    assert watched.after(1) + watched.after(29) == [], "it has changed"
    assert watched.after(1) == ["kept"]
    assert watched.after(60) + watched.after(60) == []


def test_one_that_is_too_large_is_told_once_and_not_kept(cache: Cache) -> None:
    fill(cache.folder)
    watched = Watched(cache, most=449)
    assert watched.after(0) + watched.after(30) + watched.after(30) == ["failed"]
    assert "more than the" in watched.reports[0]["text"]
    assert cache.index() == (None, None)


def test_a_store_that_is_away_is_told_once_and_asked_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache.folder)
    watched = Watched(cache)

    def away(*_: object) -> None:
        raise StoreUnavailableError("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(cache.store, "put", away)
        for _ in range(6):
            watched.after(30)
        assert [item["status"] for item in watched.reports] == ["failed"]
    assert watched.after(30) + watched.after(30) == ["kept"]
    monkeypatch.setattr(cache.store, "get", away)
    reports: list[Mapping[str, Any]] = []
    monkeypatch.setattr("trainer.caches.restore.PAUSE_S", 0.0)
    restore_all([elsewhere(cache)], reports.append)
    assert [item["status"] for item in reports] == ["failed"]
