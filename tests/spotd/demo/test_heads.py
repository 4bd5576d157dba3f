"""Test the recording of HEAD, and the count of commits by fenced generations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore
from spotd.demo.box import wait_for
from spotd.demo.heads import HeadWatch, zombie_commits
from spotd.wire import Head, HeadRef, Manifest, head_key, sha256
from tests.fixtures.waiting import LIMIT_S
from trainer.fence import Fence, FencedError


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


def writer(store: ObjectStore, generation: int) -> Fence:
    return Fence(store, "j1", generation, f"t{generation}")


def save(fence: Fence, step: int) -> None:
    fence.commit(Manifest("j1", fence.generation, step, 0, 1))


def seen_by(watch: HeadWatch, head: Head | None) -> None:
    wait_for(f"{head} to be seen", lambda: head in watch.versions, LIMIT_S, every_s=0.005)


def test_a_watch_keeps_every_version_in_order(store: ObjectStore) -> None:
    with HeadWatch(store.url, "j1") as watch:
        first = writer(store, 1)
        seen_by(watch, first.claim())
        save(first, 2)
        seen_by(watch, first.head)
        save(first, 9)  # the last one is looked at when the watch ends
    assert [head.seq for head in watch.versions] == [1, 2, 3]
    assert [head.current.step if head.current else 0 for head in watch.versions] == [0, 2, 9]


def test_a_zombie_that_is_fenced_off_committed_nothing(store: ObjectStore) -> None:
    """Its manifest is in the store all the same; only HEAD's chain counts."""
    with HeadWatch(store.url, "j1") as watch:
        old_writer, new_writer = writer(store, 1), writer(store, 2)
        old_writer.claim()
        save(old_writer, 5)
        new_writer.claim()
        with pytest.raises(FencedError):
            save(old_writer, 6)
        save(new_writer, 7)
    assert len(list(store.list("jobs/j1/g00000001"))) == 2
    assert zombie_commits(watch.versions) == 0


def overwrite(store: ObjectStore, head: Head, step: int) -> None:
    """A commit of generation 1 by a store that ignores conditions."""
    data = Manifest("j1", 1, step, 0, 1).to_bytes()
    ref = HeadRef(1, step, f"jobs/j1/g1/s{step}", sha256(data))
    chain = tuple(old_writer for old_writer in (head.current, *head.previous) if old_writer)
    stolen = replace(head, generation=1, owner="t1", nonce=f"z{step}", current=ref, previous=chain)
    store.put(head_key("j1"), stolen.to_bytes())


def test_a_zombies_accepted_commits_are_counted(store: ObjectStore) -> None:
    with HeadWatch(store.url, "j1") as watch:
        old_writer, new_writer = writer(store, 1), writer(store, 2)
        old_writer.claim()
        save(old_writer, 5)
        head = new_writer.claim()
        seen_by(watch, head)
        overwrite(store, head, 6)
    assert zombie_commits(watch.versions) == 1


def chained(generation: int, owner: int, *steps: tuple[int, int]) -> Head:
    """HEAD of `owner`, with its chain newest first as (generation, step)."""
    refs = [HeadRef(g, step, f"g{g}/s{step}", "") for g, step in steps]
    current = refs[0] if refs else None
    return Head("j1", generation, 1, f"{owner}{steps}", f"t{owner}", current, tuple(refs[1:]))


@pytest.mark.parametrize(
    ("versions", "commits"),
    [
        ([], 0),
        ([chained(1, 1), chained(1, 1, (1, 5)), chained(2, 2, (1, 5))], 0),
        # The newest checkpoint of the old one and the claim came between two looks.
        ([chained(1, 1, (1, 5)), chained(2, 2, (1, 6), (1, 5))], 0),
        ([chained(1, 1, (1, 5)), chained(2, 2, (2, 7), (1, 6), (1, 5))], 0),
        # Two late ones, the first of them between two looks.
        (
            [
                chained(1, 1, (1, 5)),
                chained(2, 2, (1, 5)),
                chained(2, 2, (1, 7), (1, 6), (1, 5)),
                chained(2, 2, (2, 8), (1, 7), (1, 6), (1, 5)),
            ],
            2,
        ),
        ([chained(3, 3), chained(3, 3, (2, 9))], 1),
    ],
)
def test_a_late_checkpoint_is_one_of_a_generation_that_no_longer_owns_head(
    versions: list[Head], commits: int
) -> None:
    assert zombie_commits(versions) == commits
