"""Examples of the protocol around HEAD; test_fence_properties.py has property tests."""

from __future__ import annotations

import threading
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from providers.stores.base import ConflictError, ObjectStore, StoreUnavailableError
from spotd.wire import (
    CLAIM_AFTER_RELEASE,
    CLAIM_NOW,
    Manifest,
    head_key,
    manifest_key,
    parse_manifest,
    sha256,
)
from tests.fixtures.waiting import LIMIT_S
from tests.providers.stores.conftest import KINDS, store_of
from trainer.fence import PREDECESSORS, Fence, FencedError, HeadLostError, read_head


def manifest(generation: int, step: int, *, final: bool = False) -> Manifest:
    return Manifest("job", generation, step, created_at_us=0, world_size=1, final=final)


def no_pause(seconds: float) -> None:
    del seconds


def fence(store: ObjectStore, generation: int, owner: str = "") -> Fence:
    return Fence(store, "job", generation, owner or f"node{generation}", sleep=no_pause)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


def test_claim_commit_release(store: ObjectStore) -> None:
    writer = fence(store, 1)
    assert read_head(store, "job") is None
    assert writer.claim().current is None
    head = writer.commit(manifest(1, 10))
    assert head.current is not None
    data = store.get(head.current.manifest)[0]
    assert sha256(data) == head.current.digest
    assert parse_manifest(data) == manifest(1, 10)
    later = writer.commit(manifest(1, 20), released=True)
    assert later.previous == (head.current,)
    assert later.released
    entry = read_head(store, "job")
    assert entry is not None
    assert entry[0] == later == writer.release()
    with pytest.raises(ValueError, match="after release"):
        writer.commit(manifest(1, 30))


@pytest.mark.req("RPV-16")
def test_a_higher_generation_shuts_out_a_lower_one(store: ObjectStore) -> None:
    old, new = fence(store, 1), fence(store, 2)
    old.claim()
    first = old.commit(manifest(1, 10)).current
    assert new.claim().current == first
    for call in (lambda: old.commit(manifest(1, 20)), old.release, old.claim):
        with pytest.raises(FencedError, match="generation 1 is fenced") as caught:
            call()
        assert caught.value.head_generation == 2
    assert new.commit(manifest(2, 11)).previous == (first,)
    with pytest.raises(FencedError):
        fence(store, 2, "somebody else").claim()


def test_the_same_owner_claims_again_and_shuts_out_its_earlier_process(store: ObjectStore) -> None:
    before, after = fence(store, 1), fence(store, 1)
    before.claim()
    before.commit(manifest(1, 10))
    assert after.claim().current is not None
    for call in (lambda: before.commit(manifest(1, 20)), before.release, before.claim):
        with pytest.raises(FencedError):
            call()
    after.release()
    assert not fence(store, 1).claim().released


def test_a_commit_must_be_ours_and_go_forward(store: ObjectStore) -> None:
    writer = fence(store, 2)
    with pytest.raises(ValueError, match="claim"):
        writer.commit(manifest(2, 1))
    writer.claim()
    writer.commit(manifest(2, 10))
    writer.commit(manifest(2, 10))
    with pytest.raises(ValueError, match="before"):
        writer.commit(manifest(2, 9))
    with pytest.raises(ValueError, match="another"):
        writer.commit(manifest(1, 11))


def test_a_manifest_is_never_taken_for_another_one_under_its_key(store: ObjectStore) -> None:
    """Otherwise HEAD would name a digest that differs from the stored manifest."""
    writer = fence(store, 1)
    before = writer.claim()
    key = manifest_key("job", 1, 10, "n")
    store.put_if(key, b"somebody else's", None)
    with pytest.raises(ValueError, match="exists with other content"):
        writer.commit(manifest(1, 10), key=key)
    assert store.get(key)[0] == b"somebody else's"
    entry = read_head(store, "job")
    assert entry is not None
    assert entry[0] == before


def test_an_unusable_checkpoint_leaves_the_chain(store: ObjectStore) -> None:
    first = fence(store, 1)
    first.claim()
    good = first.commit(manifest(1, 10)).current
    first.commit(manifest(1, 20))
    second = fence(store, 2)
    second.claim()
    second.resume_from(good)
    assert second.commit(manifest(2, 15)).previous == (good,)
    with pytest.raises(ValueError, match="chain"):
        second.resume_from(first.head.current if first.head else None)


def test_the_chain_has_an_end(store: ObjectStore) -> None:
    writer = fence(store, 1)
    writer.claim()
    for step in range(PREDECESSORS + 5):
        head = writer.commit(manifest(1, step))
    assert [ref.step for ref in head.previous] == list(range(PREDECESSORS + 3, 3, -1))


def test_the_chain_is_as_long_as_checkpoints_are_kept(store: ObjectStore) -> None:
    writer = fence(store, 1)
    writer.claim()
    for step in range(PREDECESSORS + 10):
        head = writer.commit(manifest(1, step), keep=PREDECESSORS + 5)
    assert len(head.previous) == PREDECESSORS + 4
    assert len(fence(store, 2).claim().previous) == PREDECESSORS + 4


def test_a_finished_job_stays_finished(store: ObjectStore) -> None:
    writer = fence(store, 1)
    writer.claim()
    assert writer.commit(manifest(1, 5, final=True)).released
    assert fence(store, 2).claim().final


class Losing:
    """A store that loses the responses of the conditional writes with the given numbers."""

    def __init__(self, store: ObjectStore, lost: set[int], *, before: bool = False) -> None:
        self._store = store
        self.url = store.url
        self._lost = lost
        self._before = before
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        self.calls += 1
        if self._before and self.calls in self._lost:
            raise StoreUnavailableError("request lost")
        new = self._store.put_if(key, data, tag)
        if self.calls in self._lost:
            raise StoreUnavailableError("answer lost")
        return new


@pytest.mark.parametrize("before", [False, True])
def test_lost_answers_and_lost_requests(store: ObjectStore, *, before: bool) -> None:
    losing: Any = Losing(store, {1, 2, 3, 5, 7, 8}, before=before)
    writer = fence(losing, 1)
    writer.claim()
    head = writer.commit(manifest(1, 10))
    assert writer.release().current == head.current
    entry = read_head(store, "job")
    assert entry is not None
    assert entry[0] == writer.head
    assert len(list(store.list("jobs/job/g"))) == 1


def test_a_store_that_stays_down_is_reported_and_the_call_can_be_made_again(
    store: ObjectStore,
) -> None:
    losing: Any = Losing(store, set(range(2, 40)), before=True)
    writer = fence(losing, 1)
    writer.claim()
    with pytest.raises(StoreUnavailableError):
        writer.commit(manifest(1, 10))
    losing.calls = 100
    assert writer.commit(manifest(1, 10)).current


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


def test_waiting_for_the_release(store: ObjectStore) -> None:
    clock = Clock()

    def wait(new: Fence, claim: str = CLAIM_AFTER_RELEASE, until: float = 10.0) -> str:
        return new.wait_claimable(
            lambda: (claim, until - clock.now), 0.05, clock.sleep, clock.monotonic
        )

    old, new = fence(store, 1), fence(store, 2)
    assert wait(new) == "deadline", "the owner that is waited for has not come to claim it yet"
    clock.now = 0
    old.claim()
    assert wait(old) == "ours"
    assert wait(new, CLAIM_NOW) == "now"
    assert clock.now == 0
    assert wait(new) == "deadline"
    assert clock.now == pytest.approx(10)
    old.commit(manifest(1, 5))
    clock.on_sleep = lambda: None if clock.now < 12 else old.release() and None
    assert wait(new, until=20) == "released"
    assert clock.now == pytest.approx(12, abs=0.1)
    new.claim()
    with pytest.raises(FencedError):
        wait(old)


def test_a_store_that_answers_slowly_does_not_put_the_deadline_off(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time a read takes counts against the remaining wait."""
    clock, get = Clock(), store.get
    fence(store, 1).claim()

    def slow(key: str) -> tuple[bytes, str]:
        clock.now += 4.0
        return get(key)

    monkeypatch.setattr(store, "get", slow)
    reason = fence(store, 2).wait_claimable(
        lambda: (CLAIM_AFTER_RELEASE, 5.0 - clock.now), 9.0, clock.sleep, clock.monotonic
    )
    assert (reason, clock.now) == ("deadline", 9.0), "read, a second's rest, read once more"


@pytest.mark.req("RPV-16")
@pytest.mark.parametrize(
    ("had", "seen"), [(0, "is missing"), (2, "is of generation 2")], ids=["missing", "older"]
)
def test_a_head_that_was_newer_once_is_not_claimed(store: ObjectStore, had: int, seen: str) -> None:
    """With another store or an old copy, starting over would discard the job's work."""
    if had:
        fence(store, had).claim()
    before = read_head(store, "job")
    new = Fence(store, "job", 4, "node4", known_generation=3, sleep=no_pause)
    for call in (
        new.claim,
        lambda: new.wait_claimable(lambda: (CLAIM_AFTER_RELEASE, 60.0), 0.05, no_pause),
    ):
        with pytest.raises(HeadLostError, match=f"{seen}.*though generation 3 had it: put the"):
            call()
    assert read_head(store, "job") == before


def test_a_head_of_the_known_generation_is_claimed(store: ObjectStore) -> None:
    fence(store, 3).claim()
    assert Fence(store, "job", 4, "node4", known_generation=3).claim().generation == 4


def test_waiting_hears_a_change_of_mind_and_survives_an_outage(store: ObjectStore) -> None:
    clock = Clock()
    old = fence(store, 1)
    old.claim()

    class Down:
        url = ""

        def get(self, key: str) -> tuple[bytes, str]:
            raise StoreUnavailableError(key)

    down: Any = Down()
    new = Fence(down, "job", 2, "b")
    reason = new.wait_claimable(
        lambda: (CLAIM_NOW if clock.now >= 3 else CLAIM_AFTER_RELEASE, 99),
        0.5,
        clock.sleep,
        clock.monotonic,
    )
    assert (reason, clock.now) == ("now", 3.0)


@pytest.mark.req("RPV-16")
@pytest.mark.parametrize("kind", ["file", *KINDS])
def test_a_zombie_commits_nothing_on_a_real_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A generation that was given up keeps saving while its successor saves, too."""
    store = store_of(request, kind, tmp_path)
    zombie, heir = fence(store, 1), fence(store, 2)
    zombie.claim()
    first = zombie.commit(manifest(1, 10)).current
    assert heir.claim().current == first
    accepted = 0
    for step in range(11, 31):
        head = heir.commit(manifest(2, step))
        unaware = copy(zombie)  # it has heard nothing of the heir yet
        save = partial(unaware.commit, manifest(1, step))
        for write in (save, unaware.claim, fence(store, 1).claim):
            try:
                write()
            except FencedError:
                continue
            accepted += 1
        entry = read_head(store, "job")
        assert entry is not None
        assert entry[0] == head
    assert accepted == 0


@pytest.mark.req("RPV-16")
@pytest.mark.parametrize("kind", ["file", *KINDS])
def test_generations_race_on_a_real_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = store_of(request, kind, tmp_path)
    committed: list[tuple[int, int]] = []
    start = threading.Barrier(5)

    def write(generation: int) -> None:
        writer = Fence(store, "job", generation, f"node{generation}")
        start.wait(LIMIT_S)
        try:
            for step in range(2 * generation):
                head = writer.head or writer.claim()
                base = head.current.step if head.current else 0
                writer.commit(manifest(generation, base + step))
                committed.append((generation, base + step))
        except FencedError as error:
            assert error.head_generation > generation  # noqa: PT017 - on its own thread

    threads = [threading.Thread(target=write, args=(generation,)) for generation in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    entry = read_head(store, "job")
    assert entry is not None
    head = entry[0]
    assert head.generation == 5
    chain = [ref for ref in (head.current, *head.previous) if ref]
    assert [(ref.generation, ref.step) for ref in chain] == sorted(
        ((ref.generation, ref.step) for ref in chain), reverse=True
    )
    newest = committed[-1]
    assert head.current is not None
    assert (head.current.generation, head.current.step) == newest
    with pytest.raises(ConflictError):
        store.put_if(head_key("job"), b"", None)
