"""The checkpointer over a folder: what is saved, what is passed over, what is removed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreUnavailableError
from spotd.wire import Head
from trainer.checkpoint import Checkpointer, MismatchError, UnusableError
from trainer.fence import Fence, FencedError, read_head
from trainer.retention import remove_old
from trainer.shards import Layout, Piece

PIECES = tuple(Piece(f"t{n}", "float32", (8, 2), 64 * n, 64) for n in range(5))
CONFIG = {"width": 8, "data": "xxh3:0"}


class Gate:
    """A store whose puts can be held up, refused, and counted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.url = store.url
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.refusing = 0
        self.deleted: list[str] = []
        self.down = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> tuple[bytes, str]:
        if self.down:
            raise StoreUnavailableError("down")
        return self._store.get(key)

    def put(self, key: str, data: bytes | memoryview | Path) -> None:
        self.entered.set()
        assert self.open.wait(20)
        if self.refusing:
            self.refusing -= 1
            raise StoreUnavailableError("the line is down")
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        self._store.delete(key)


class Rig:
    """One generation of a job with a checkpointer, and everything it reported."""

    def __init__(self, store: Any, generation: int, keep: int = 3, shard_bytes: int = 128) -> None:
        self.fence = Fence(store, "job", generation, f"node{generation}", sleep=lambda _: None)
        self.head = self.fence.claim()
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self._changed = threading.Condition()
        self.checkpointer = Checkpointer(
            self.fence,
            Layout.of(PIECES, shard_bytes),
            world_size=1,
            keep=keep,
            report=self._note,
            clock_us=lambda: 1,
        )

    def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        with self._changed:
            self.reports.append((kind, data))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 20), self.reports

    def save(self, step: int, **flags: bool) -> None:
        self.checkpointer.save(
            step,
            lambda arena: fill(arena, step),
            {"config": CONFIG},
            trigger="test",
            **flags,
        )

    def save_and_wait(self, step: int, **flags: bool) -> None:
        self.save(step, **flags)
        assert self.checkpointer.drain(20)

    def steps(self, kind: str) -> list[int]:
        return [data["step"] for said, data in self.reports if said == kind]

    def restore(self, config: Mapping[str, Any] = CONFIG) -> int | None:
        """The restored step, its bytes checked."""
        loaded: list[bytes] = []
        found = self.checkpointer.restore(
            self.head, config, lambda arena: loaded.append(bytes(arena))
        )
        if found is None:
            assert not loaded
            return None
        expected = bytearray(len(loaded[0]))
        fill(memoryview(expected), found[0].step)
        assert loaded == [bytes(expected)]
        return found[0].step


def fill(arena: memoryview, step: int) -> None:
    arena[:] = random.Random(step).randbytes(len(arena))


@pytest.fixture
def store(tmp_path: Path) -> Gate:
    return Gate(open_store(tmp_path.as_uri()))


@pytest.fixture
def start(store: Gate) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def begin(generation: int, **options: int) -> Rig:
        made.append(Rig(store, generation, **options))
        return made[-1]

    yield begin
    store.open.set()
    for rig in made:
        rig.checkpointer.close()


def newest_of(store: Any) -> Head:
    entry = read_head(store, "job")
    assert entry is not None
    return entry[0]


@pytest.mark.req("CKP-15")
def test_saved_and_restored(start: Callable[..., Rig]) -> None:
    first = start(1)
    assert first.restore() is None
    first.save_and_wait(10)
    kind, said = first.reports[0]
    assert kind == "checkpoint"
    assert (said["step"], said["bytes"], said["trigger"]) == (10, 320, "test")
    assert (said["released"], said["final"]) == (False, False)
    first.save_and_wait(20, released=True)
    assert first.reports[1][1]["released"]
    assert start(2).restore() == 20


def test_one_in_flight_and_the_newest_wins(start: Callable[..., Rig], store: Gate) -> None:
    rig = start(1)
    store.open.clear()
    rig.save(1)
    assert store.entered.wait(20)
    for step in (2, 3, 4):
        rig.save(step)
    assert not rig.checkpointer.drain(0.01)
    store.open.set()
    assert rig.checkpointer.drain(20)
    assert rig.steps("checkpoint") == [1, 4]
    second = start(2)
    assert second.restore() == 4
    assert second.head.current is not None
    store.delete(second.head.current.manifest)
    assert second.restore() == 1, "what came later must not have touched the save in flight"


def test_a_failed_save_is_reported_and_tried_again(start: Callable[..., Rig], store: Gate) -> None:
    rig = start(1)
    store.refusing = 1
    rig.save_and_wait(5)
    assert rig.steps("checkpoint_failed") == [5]
    assert "the line is down" in rig.reports[0][1]["error"]
    assert rig.steps("checkpoint") == [5]


def test_a_newer_save_takes_the_place_of_a_failing_one(
    start: Callable[..., Rig], store: Gate
) -> None:
    rig = start(1)
    store.refusing = 10**6
    rig.save(5)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    store.refusing = 0
    rig.save_and_wait(6)
    assert start(2).restore() == 6


def test_fenced_is_known_and_drain_says_no(start: Callable[..., Rig]) -> None:
    old = start(1)
    start(2)
    old.save(5)
    assert not old.checkpointer.drain(20)
    assert old.checkpointer.fenced is not None
    assert old.checkpointer.fenced.head_generation == 2
    assert old.reports == []


@pytest.mark.req("CKP-25")
def test_every_damage_is_found(start: Callable[..., Rig], tmp_path: Path) -> None:
    """Random bit flips, truncations and losses in the newest checkpoint: never loaded, reported."""
    dice = random.Random(20)
    first = start(1)
    first.save_and_wait(10)
    first.save_and_wait(20)
    head = newest_of(first.fence.store)
    assert head.current is not None
    folder = (tmp_path / head.current.manifest).parent
    files = sorted(folder.iterdir())
    assert len(files) == 4  # three shards and the manifest
    for number in range(150):
        file = files[number % len(files)]
        good = file.read_bytes()
        match dice.choice(["flip", "flip", "flip", "cut", "grow", "lose"]):
            case "flip":
                bad = bytearray(good)
                bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
                file.write_bytes(bad)
            case "cut":
                file.write_bytes(good[: dice.randrange(len(good))])
            case "grow":
                file.write_bytes(good + b"\0")
            case "lose":
                file.unlink()
        first.reports.clear()
        first.head = head
        assert first.restore() == 10
        assert first.steps("checkpoint_skipped") == [20]
        file.write_bytes(good)
    assert first.restore() == 20


def test_nothing_usable_is_an_error_and_not_a_fresh_start(
    start: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = start(1)
    rig.save_and_wait(10)
    for shard in tmp_path.rglob("shard-*"):
        shard.write_bytes(b"")
    second = start(2)
    with pytest.raises(UnusableError, match="none of the 1 checkpoints"):
        second.restore()
    assert second.steps("checkpoint_skipped") == [10]


def test_an_outage_is_no_corruption(
    start: Callable[..., Rig], store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.checkpoint.time.sleep", lambda _: None)
    start(1).save_and_wait(10)
    second = start(2)
    store.down = True
    with pytest.raises(StoreUnavailableError):
        second.restore()
    assert second.reports == []
    store.down = False
    assert second.restore() == 10


def test_after_passing_over_the_bad_ones_leave_the_chain(
    start: Callable[..., Rig], tmp_path: Path
) -> None:
    first = start(1)
    first.save_and_wait(10)
    first.save_and_wait(20)
    head = newest_of(first.fence.store)
    assert head.current is not None
    (tmp_path / head.current.manifest).unlink()
    second = start(2)
    assert second.restore() == 10
    second.save_and_wait(15)
    newest = newest_of(second.fence.store)
    assert [ref.step for ref in newest.previous] == [10]


def test_another_configuration_is_refused(start: Callable[..., Rig]) -> None:
    start(1).save_and_wait(10)
    with pytest.raises(MismatchError, match="width = 8, this program has 16"):
        start(2).restore({**CONFIG, "width": 16})
    with pytest.raises(MismatchError, match="extra = None"):
        start(3).restore({**CONFIG, "extra": 1})


def test_other_tensors_are_refused(start: Callable[..., Rig]) -> None:
    start(1).save_and_wait(10)
    with pytest.raises(ValueError, match="other tensors"):
        start(2, shard_bytes=1 << 20).restore()


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for what the checkpointer does unasked and tells nobody."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kept_steps(store: Any) -> list[int]:
    keys = [info.key for info in store.list("jobs/job/g")]
    return sorted({int(key.split("/")[3][1:13]) for key in keys})


@pytest.mark.req("CKP-04")
def test_only_the_newest_are_kept(start: Callable[..., Rig], store: Gate) -> None:
    rig = start(1, keep=2)
    for step in range(1, 6):
        rig.save_and_wait(step)
    until(lambda: kept_steps(store) == [4, 5])
    second = start(2, keep=2)
    assert second.restore() == 5


def test_many_are_kept_when_many_are_asked_for(start: Callable[..., Rig], store: Gate) -> None:
    rig = start(1, keep=12)
    for step in range(1, 15):
        rig.save_and_wait(step)
    until(lambda: len(kept_steps(store)) <= 12)
    assert kept_steps(store) == list(range(3, 15))


@pytest.mark.req("CKP-23")
def test_nothing_is_removed_before_the_newest_is_verified(
    start: Callable[..., Rig], store: Gate, tmp_path: Path
) -> None:
    rig = start(1, keep=1)
    rig.save_and_wait(1)
    real_put = store.put

    def put_and_damage(key: str, data: bytes | memoryview | Path) -> None:
        real_put(key, data)
        path = tmp_path / key
        path.write_bytes(path.read_bytes()[:-1] + b"!")

    store.put = put_and_damage  # type: ignore[method-assign]
    rig.save(2)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    assert "read-back" in rig.reports[-1][1]["error"]
    assert store.deleted == []
    assert start(2).restore() == 1


def test_what_was_never_committed_goes_as_well(start: Callable[..., Rig], store: Gate) -> None:
    store.put("jobs/job/g00000001/s000000000003-dead/shard-00000", b"orphan of an old generation")
    store.put("jobs/job/g00000009/s000000000003-new/shard-00000", b"of a generation after us")
    store.put("jobs/job/g-notes", b"somebody else's")
    rig = start(2)
    rig.save_and_wait(10)
    until(lambda: store.deleted)
    assert remove_old(rig.fence, 3, go_on=lambda: True) == 0  # and the one under way is over
    assert store.deleted == ["jobs/job/g00000001/s000000000003-dead/shard-00000"]
    store.get("jobs/job/g00000009/s000000000003-new/shard-00000")
    store.get("jobs/job/g-notes")


def test_a_fenced_writer_removes_nothing(start: Callable[..., Rig], store: Gate) -> None:
    rig = start(1)
    rig.save_and_wait(1)
    rig.save_and_wait(2)
    store.deleted.clear()
    start(2)
    with pytest.raises(FencedError):
        remove_old(rig.fence, 1, go_on=lambda: True)
    assert store.deleted == []


def test_a_save_interrupts_the_housekeeping(start: Callable[..., Rig], store: Gate) -> None:
    rig = start(1)
    rig.save_and_wait(1)
    rig.save_and_wait(2)
    assert remove_old(rig.fence, 1, go_on=lambda: False) == 0
    assert remove_old(rig.fence, 1, go_on=lambda: True) == 4
    assert kept_steps(store) == [2]


def test_layout_cuts_between_tensors() -> None:
    layout = Layout.of(PIECES, 128)
    assert layout.cuts == ((0, 128), (128, 256), (256, 320))
    assert [(t.shard, t.offset) for t in layout.tensors] == [
        *((0, 0), (0, 64), (1, 0), (1, 64), (2, 0)),
    ]
    assert Layout.of(PIECES, 1).cuts[0] == (0, 64)
    assert Layout.of(PIECES).cuts == ((0, 320),)
