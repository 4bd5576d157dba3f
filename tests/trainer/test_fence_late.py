"""A write of HEAD whose outcome was unknown lands while the same writer moves HEAD again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from providers.stores.base import StoreUnavailableError
from providers.stores.local import LocalStore
from spotd.wire import Head, Manifest, manifest_key
from tests.fixtures.late import LateStore
from trainer.fence import Fence, StaleCommitError, read_head


@pytest.fixture
def store(tmp_path: Path) -> LateStore:
    return LateStore(LocalStore(tmp_path))


@pytest.fixture
def writer(store: LateStore) -> Fence:
    fence = Fence(store, "job", 1, "node1", sleep=lambda _: None)
    fence.claim()
    return fence


def manifest(step: int, *, final: bool = False) -> Manifest:
    return Manifest("job", 1, step, created_at_us=0, world_size=1, final=final)


def head_of(store: LateStore) -> Head:
    entry = read_head(store, "job")
    assert entry is not None
    return entry[0]


def lose(store: LateStore, call: Callable[[], object]) -> None:
    with store.losing(), pytest.raises(StoreUnavailableError):
        call()


def test_head_does_not_go_back_in_steps(store: LateStore, writer: Fence) -> None:
    lose(store, lambda: writer.commit(manifest(1)))
    with pytest.raises(StaleCommitError, match="step 0 lies before step 1"):
        writer.commit(manifest(0))
    head = head_of(store)
    assert head.current is not None
    assert head.current.step == 1
    assert writer.head == head, "the caller sees what has landed"
    assert writer.commit(manifest(1)).previous == (head.current,)


def test_a_commit_that_may_follow_what_landed_does(store: LateStore, writer: Fence) -> None:
    lose(store, lambda: writer.commit(manifest(1)))
    head = writer.commit(manifest(2))
    assert [ref.step for ref in head.previous] == [1]
    assert head_of(store) == head


@pytest.mark.parametrize(
    "end",
    [
        lambda fence: fence.commit(manifest(1), released=True),
        lambda fence: fence.commit(manifest(1, final=True)),
        lambda fence: fence.release(),
    ],
    ids=["released", "final", "release"],
)
def test_what_was_given_away_is_not_taken_back(
    store: LateStore, writer: Fence, end: Callable[[Fence], object]
) -> None:
    """Whoever reads `released` claims HEAD at once, and whoever reads `final` ends the job."""
    lose(store, lambda: end(writer))
    with pytest.raises(StaleCommitError, match="released, or the job finished"):
        writer.commit(manifest(2))
    head = head_of(store)
    assert head.released
    assert writer.head == head
    with pytest.raises(ValueError, match="after release"):
        writer.commit(manifest(2))


@pytest.mark.parametrize("key", ["", manifest_key("job", 1, 1, "n")], ids=["fresh", "same"])
@pytest.mark.parametrize("final", [False, True])
def test_the_last_commit_made_again_is_done(
    store: LateStore, writer: Fence, key: str, *, final: bool
) -> None:
    last = manifest(1, final=final)
    lose(store, lambda: writer.commit(last, key=key, released=True))
    assert writer.commit(last, key=key, released=True) == head_of(store)
    assert (head_of(store).released, head_of(store).final) == (True, final)
    assert head_of(store).previous == ()


def test_a_release_follows_what_landed(store: LateStore, writer: Fence) -> None:
    lose(store, lambda: writer.commit(manifest(1, final=True)))
    head = writer.release()
    assert (head.released, head.final) == (True, True)
    assert head.current is not None


def test_a_checkpoint_that_was_not_usable_stays_out_of_the_chain(
    store: LateStore, writer: Fence
) -> None:
    good = writer.commit(manifest(5)).current
    writer.commit(manifest(8))
    writer.claim()
    writer.resume_from(good)
    lose(store, lambda: writer.commit(manifest(6)))
    assert [ref.step for ref in writer.commit(manifest(7)).previous] == [6, 5]
    writer.claim()
    writer.resume_from(good)
    lose(store, lambda: writer.commit(manifest(5)))
    assert [ref.step for ref in writer.commit(manifest(6), keep=20).previous] == [5, 5]
