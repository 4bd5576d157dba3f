"""Shards lie in the store of the machine's region, HEAD and manifests in the job's authority store.

A job that stays transfers no checkpoint between regions, and one that moves transfers one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreDeniedError, StoreUnavailableError
from spotd.demo import s3
from tests.fixtures.waiting import until
from tests.trainer.saver.rig import SIZE, Gate, Rig, head_of, stored_steps
from trainer.fence import FencedError
from trainer.hook.spotd_hook.saver_client import SaverError
from trainer.saver import shard_store_choice
from trainer.saver.reader import read_manifest
from trainer.saver.retention import remove_old

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Start = Callable[..., Rig]
EAST = "s3://east/runs"
SMALL = 8_000  # HEAD and a few manifests weigh less; a checkpoint weighs SIZE


@pytest.fixture
def east(tmp_path: Path) -> Gate:
    return Gate(open_store((tmp_path / "east").as_uri()))


def stores_of(store: ObjectStore) -> set[str]:
    current = head_of(store).current
    assert current is not None
    return {shard.store for shard in read_manifest(store, current).shards}


class Meter:
    """Counts the bytes that a server receives and sends."""

    def __init__(self) -> None:
        self.received = self.sent = 0

    def wrap(self, app: WSGIApplication) -> WSGIApplication:
        def counted(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] in ("PUT", "POST"):
                self.received += int(environ.get("CONTENT_LENGTH") or 0)
            for part in app(environ, start):
                self.sent += len(part)
                yield part

        return counted

    def taken(self) -> tuple[int, int]:
        """Return (received, sent) since the last call."""
        found, self.received, self.sent = (self.received, self.sent), 0, 0
        return found


@contextmanager
def region() -> Iterator[tuple[str, ObjectStore, Meter]]:
    meter = Meter()
    with s3.serving(wrap=meter.wrap) as bucket:
        store = open_store(bucket.url, bucket.options)
        meter.taken()
        yield bucket.url, store, meter


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a state that weighs more than all documents about it."""
    monkeypatch.setattr("trainer.saver.streams.CHUNK_BYTES", 256 << 10)
    return 2 << 20


def test_two_clouds_by_their_own_meters(tmp_path: Path, size: int) -> None:
    """The authority is in the west. A job that trains in the east saves there alone; it moves to
    the west, and one checkpoint comes along; the east's zombie commits nothing."""
    with region() as (west_url, west, west_meter), region() as (url, east, east_meter):
        options: dict[str, Any] = {"size": size, "others": {url: east}, "keep": 2}
        first = Rig(tmp_path / "1.sock", west, 1, shards=url, **options)
        second = Rig(tmp_path / "2.sock", west, 2, join=False, **options)
        try:
            for step in (1, 2, 3):
                first.save_and_wait(step)
            until(lambda: stored_steps(west) == [2, 3])
            received, sent = west_meter.taken()
            assert received < SMALL, "no shard crosses while the job stays"
            assert sent < size / 2
            received, _ = east_meter.taken()
            assert received >= 3 * size
            assert stores_of(west) == {url}
            until(lambda: stored_steps(east) == [2, 3])
            east_meter.taken()

            second.engine = second.connect()
            assert second.engine.claim() is not None
            assert second.restore() == 3, "to the same bits"
            received, sent = east_meter.taken()
            assert received == 0
            assert size <= sent < size * 1.1, "the way back, once"

            assert first.save(4), "the zombie, which knows nothing yet"
            until(lambda: first.service.worker.fenced is not None)
            with pytest.raises(FencedError):
                raise first.service.worker.fenced or AssertionError
            assert head_of(west).current.step == 3  # type: ignore[union-attr]

            east_meter.taken()
            west_meter.taken()
            for step in (5, 6, 7):
                second.save_and_wait(step)
            assert stores_of(west) == {""}
            until(lambda: stored_steps(west) == [6, 7])
            until(lambda: not list(east.list("jobs/job/g00000001/s000000000003")))
            received, _ = east_meter.taken()
            assert received < SMALL, "the east is left alone but for what goes away there"
        finally:
            for rig in (first, second):
                rig.close()
    assert west_url != url


@pytest.mark.parametrize("document", ["MANIFEST.json", "HEAD"])
def test_a_machine_that_dies_between_shards_and_commit_costs_that_save(
    start: Start, store: Gate, east: Gate, monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    options: dict[str, Any] = {"others": {EAST: east}}
    rig, put_if = start(1, shards=EAST, **options), store._store.put_if
    rig.save_and_wait(1)

    def dies(key: str, data: bytes, tag: str | None) -> str:
        if key.endswith(document) and rig.service.config.generation == 1:
            raise StoreDeniedError("the machine is gone")
        return put_if(key, data, tag)

    monkeypatch.setattr(store, "put_if", dies, raising=False)
    rig.save(2)
    until(lambda: "checkpoint_failed" in {kind for kind, _ in rig.reports})
    rig.close()
    monkeypatch.undo()
    assert stored_steps(east) == [1, 2], "shards without a commit"
    heir = start(2, shards=EAST, keep=1, **options)
    assert heir.restore() == 1
    heir.save_and_wait(5)
    remove_old(heir.service.fence, 1, lambda: True)
    assert stored_steps(east) == stored_steps(store) == [5]


def test_a_store_that_is_away_is_tried_again_and_then_done_without(
    start: Start, store: Gate, east: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(1, shards=EAST, others={EAST: east})
    east.refusing = 10**6
    rig.save_and_wait(1)
    errors = [data["error"] for kind, data in rig.reports if kind == "checkpoint_failed"]
    assert len(errors) == shard_store_choice.MAX_FAILURES
    assert "they go to file://" in errors[-1]
    assert stores_of(store) == {""}
    east.refusing = 0
    rig.save_and_wait(2)
    assert stores_of(store) == {""}, "not tried again at once"
    monkeypatch.setattr(rig.service.worker._shard_store, "_away_until_s", 0.0)
    rig.save_and_wait(3)
    assert stores_of(store) == {EAST}
    assert start(2, others={EAST: east}).restore() == 3


def test_what_is_in_one_store_by_half_is_whole_in_the_other(
    start: Start, store: Gate, east: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last save of a machine has no time for a retry."""
    rig, put = start(1, shards=EAST, others={EAST: east}), east.put

    def breaks(key: str, data: Any) -> None:
        if key.endswith("-00003"):
            raise StoreUnavailableError("the line broke")
        put(key, data)

    monkeypatch.setattr(east, "put", breaks)
    rig.save_and_wait(1, released=True)
    assert len(rig.steps("checkpoint_failed")) == 1
    assert stores_of(store) == {""}
    east.down = True
    heir = start(2, shards=EAST, others={EAST: Away()})
    assert heir.restore() == 1, "nothing of it is in the store that is away"


class Away:
    """A store that does not answer."""

    url = EAST

    def __getattr__(self, name: str) -> Any:
        raise StoreUnavailableError("away")


def test_retention_goes_on_where_one_store_is_away(start: Start, store: Gate, east: Gate) -> None:
    rig = start(1, shards=EAST, others={EAST: east})
    rig.save_and_wait(1)
    heir = start(2, keep=1, others={EAST: Away()})
    for step in (2, 3, 4):
        heir.save_and_wait(step)
    until(lambda: stored_steps(store) == [4])
    errors = [data["error"] for kind, data in heir.reports if kind == "checkpoint_failed"]
    assert [text for text in errors if "away" in text] == errors
    assert len(errors) <= 1, "told once"
    assert stored_steps(east) == [1], "nobody could take it away"


def test_retention_that_is_interrupted_tells_of_a_store_that_is_away_all_the_same(
    start: Start, store: Gate, east: Gate
) -> None:
    """Otherwise the same failure would be reported again after each interruption."""
    start(1, shards=EAST, others={EAST: east}).save_and_wait(1)
    heir = start(2, keep=9, others={EAST: Away()})
    for step in (2, 3, 4):
        heir.save_and_wait(step)
    fence = heir.service.fence
    with pytest.raises(StoreUnavailableError, match="away"):
        remove_old(fence, 1, lambda: False)
    before = len(list(store.list("")))
    with pytest.raises(StoreUnavailableError, match="away"):
        remove_old(fence, 1, lambda: len(list(store.list(""))) == before)
    assert len(list(store.list(""))) == before - 1


def test_a_store_that_this_machine_may_not_read_ends_the_resume_and_says_how_to_mend_it(
    start: Start, store: Gate, east: Gate
) -> None:
    """It does not fall back to an older checkpoint, which would lose work."""
    first = start(1)
    first.save_and_wait(1)
    second = start(2, shards=EAST, others={EAST: east})
    assert second.restore() == 1
    second.save_and_wait(2)
    third = start(3)
    with pytest.raises(SaverError, match=r"s3://east/runs.*checkpoint\.shards.*shards = true"):
        third.restore()
    assert start(4, others={EAST: east}).restore() == 2


def test_a_manifest_says_that_it_is_of_a_newer_kind_where_it_is(
    start: Start, store: Gate, east: Gate
) -> None:
    rig = start(1)
    rig.save_and_wait(1)
    head = head_of(store)
    assert head.current is not None
    data = store.get(head.current.manifest)[0]
    assert b'"version":2' in data.replace(b" ", b"")
    assert b'"store"' not in data, "as those of before were"
    heir = start(2, shards=EAST, others={EAST: east})
    assert heir.restore() == 1, "and they are read"
    heir.save_and_wait(2)
    head = head_of(store)
    assert head.current is not None
    assert b'"version":3' in store.get(head.current.manifest)[0].replace(b" ", b"")
    assert sum(info.size for info in east.list("jobs/job/g00000002")) == SIZE
