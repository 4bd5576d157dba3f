"""The check before old checkpoints are deleted: is HEAD still ours, and since which claim?"""

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
    """Also between two commits, and not for a HEAD that was restored from a backup."""
    writer = fence(store, 1)
    with pytest.raises(ValueError, match="claim"):
        writer.check()
    writer.claim()
    writer.check()
    old = store.get(head_key("job"))[0]
    writer.commit(manifest(1, 10))
    writer.check()
    tag = store.put_if(head_key("job"), old, store.get(head_key("job"))[1])
    with pytest.raises(FencedError):
        writer.check()
    assert writer.head is not None
    store.put_if(head_key("job"), writer.head.to_bytes(), tag)
    writer.check()
    fence(store, 1).claim()  # of the same machine
    with pytest.raises(FencedError):
        writer.check()
    store.delete(head_key("job"))
    with pytest.raises(FencedError, match="HEAD is gone"):
        writer.check()


def test_a_commit_that_is_under_way_is_ours(store: ObjectStore) -> None:
    writer, checked = fence(store, 1), []
    writer.claim()
    put_if = store.put_if

    def put_and_check(key: str, data: bytes, tag: str | None) -> str:
        found = put_if(key, data, tag)
        writer.check()
        checked.append(key)
        return found

    store.put_if = put_and_check  # type: ignore[method-assign]
    writer.commit(manifest(1, 10))
    assert head_key("job") in checked


def test_what_a_claim_wrote_is_known(store: ObjectStore) -> None:
    writer = fence(store, 1)
    assert writer.claimed_seq == 0
    assert writer.claim().seq == writer.claimed_seq
    head = writer.commit(manifest(1, 10))
    assert head.seq > writer.claimed_seq
    assert writer.claim().seq == writer.claimed_seq > head.seq
