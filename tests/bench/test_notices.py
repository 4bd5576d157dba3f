"""The bench of notices kills a real machine, and tells what the next one resumes from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.narrow import SMALL_BYTES, narrowed
from bench.notices import Attempt, Book, Case, Observed, Place, State, foretold, table
from providers.stores import open_store
from spotd.demo.bucket import Bucket, bucket_server

pytestmark = pytest.mark.xdist_group("notices")  # one server for all
GB = 10**9
# Not shorter: on a busy machine two programs take their turns, and a store its time.
SHORT = Case(State("tiny", 8 * GB, 0.1), Place("AWS 20 s", "aws", 20.0, 120.0, 16.0))
SIZE = 2_000_000
SAVE = {"status": "ended", "action": "save", "predicted_s": 2.5, "took_s": 2.0, "margin_s": 3.0}
FOUND = Observed(
    SHORT.name, 1, SIZE, 0.1, 0.5, 1.0, 40, 40, 4.0, True, 3.0, [{**SAVE, "kept": True}], 0.5
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with bucket_server(tmp_path_factory.mktemp("s3") / "log") as bucket:
        yield bucket


@pytest.fixture
def bucket(server: Bucket, request: pytest.FixtureRequest) -> Bucket:
    return replace(server, folder=request.node.name)


def test_a_notice_is_used_and_what_it_cost_is_told(tmp_path: Path, bucket: Bucket) -> None:
    found = Attempt(SHORT, 1, tmp_path, SIZE, phase_s=1.0).observe(bucket)
    assert found.lost == 0
    assert found.released
    assert found.trained > 10
    assert found.upload_s > 0.9 * SHORT.upload_s, "the line is not narrow"
    assert 0 < found.idle_s < 20.0
    ended = found.plans[-1]
    assert (ended["status"], ended["action"], ended["kept"]) == ("ended", "save", True)


def test_an_end_without_notice_costs_the_steps_since_the_last_save(
    tmp_path: Path, bucket: Bucket
) -> None:
    found = Attempt(replace(SHORT, noticed=False), 1, tmp_path, SIZE, phase_s=3.0).observe(bucket)
    assert 5 <= found.lost <= 40, "3 s after a save, at 0.1 s a step"
    assert not found.released
    assert found.plans == []


def test_a_large_body_takes_its_time_and_a_small_one_does_not(bucket: Bucket) -> None:
    with narrowed(bucket.endpoint, 4 * SMALL_BYTES) as endpoint:
        store = open_store(bucket.url, {**bucket.options, "endpoint": endpoint})
        large = bytes(2 * SMALL_BYTES)
        began = time.monotonic()
        store.put("large", large)
        assert time.monotonic() - began >= 0.5
        assert store.get("large")[0] == large
        store.put("small", b"x")
        assert store.get("small")[0] == b"x"


def test_the_tables_say_what_was_observed_and_what_was_not() -> None:
    other = replace(SHORT, noticed=False)
    rows = list(table([FOUND, replace(FOUND, number=2, resumed=38)], [SHORT, other]))
    assert rows[2].startswith("| tiny | 0.1 s | 0, 2; 4 s (")
    assert rows[2].endswith(" | not observed |")
    assert list(foretold([FOUND], [SHORT, other]))[2:] == [
        "| tiny / AWS 20 s | save | 2.5 | 2.0 | 3.0 |"
    ]


def test_what_was_observed_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    Book(path).note(FOUND)
    again = Book(path)
    assert again.found == [FOUND]
    assert again.has(SHORT, 1)
    assert not again.has(SHORT, 2)
