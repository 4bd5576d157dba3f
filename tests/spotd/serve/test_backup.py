"""The copy of the database that the API hands out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from spotd.serve.backup import copy_database
from spotd.serve.call import ApiError, Call
from tests.spotd.serve.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_it_is_nameless_and_whole(rig: Rig) -> None:
    copy = copy_database(Call(rig.backing(), private=True))
    assert list((rig.folder / "spool").iterdir()) == [], "whatever ends us, it is gone"
    data = b"".join(copy.chunks())
    assert data.startswith(b"SQLite format 3\x00")
    assert copy.headers["Content-Length"] == str(len(data))
    assert copy.headers["X-Spotd-Sha256"] == hashlib.sha256(data).hexdigest()
    assert copy.file.closed


def test_it_is_for_the_daemons_own_socket_alone(rig: Rig) -> None:
    with pytest.raises(ApiError, match="own socket alone"):
        copy_database(Call(rig.backing()))
    assert not (rig.folder / "spool").exists() or not list((rig.folder / "spool").iterdir())
