"""What those ask who remove what is old: whether HEAD is still ours, and since which claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore
from spotd.wire import head_key
from tests.trainer.test_fence import fence, manifest
from trainer.fence import FencedError


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


def test_whether_head_is_still_ours_is_asked_of_the_store(store: ObjectStore) -> None:
    """Between two commits of ours as well, and never of one that was put back."""
    ours = fence(store, 1)
    with pytest.raises(ValueError, match="claim"):
        ours.check()
    ours.claim()
    ours.check()
    old = store.get(head_key("job"))[0]
    ours.commit(manifest(1, 10))
    ours.check()
    tag = store.put_if(head_key("job"), old, store.get(head_key("job"))[1])
    with pytest.raises(FencedError):
        ours.check()
    assert ours.head is not None
    store.put_if(head_key("job"), ours.head.to_bytes(), tag)
    ours.check()
    fence(store, 1).claim()  # of the same machine
    with pytest.raises(FencedError):
        ours.check()
    store.delete(head_key("job"))
    with pytest.raises(FencedError, match="HEAD is gone"):
        ours.check()


def test_a_commit_that_is_under_way_is_ours(store: ObjectStore) -> None:
    ours, checked = fence(store, 1), []
    ours.claim()
    put_if = store.put_if

    def put_and_check(key: str, data: bytes, tag: str | None) -> str:
        found = put_if(key, data, tag)
        ours.check()
        checked.append(key)
        return found

    store.put_if = put_and_check  # type: ignore[method-assign]
    ours.commit(manifest(1, 10))
    assert head_key("job") in checked


def test_what_a_claim_wrote_is_known(store: ObjectStore) -> None:
    ours = fence(store, 1)
    assert ours.claimed_seq == 0
    assert ours.claim().seq == ours.claimed_seq
    head = ours.commit(manifest(1, 10))
    assert head.seq > ours.claimed_seq
    assert ours.claim().seq == ours.claimed_seq > head.seq
