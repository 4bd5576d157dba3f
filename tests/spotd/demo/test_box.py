"""Test that the box's processes start or report why not, and are never left running."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.demo.box import Box, BoxError, running_box, wait_for
from spotd.demo.story import SCENARIO, ProgramExit, read_program_exit
from tests.fixtures.processes import alive
from tests.fixtures.waiting import LIMIT_S


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


def test_waiting_gives_the_first_true_answer() -> None:
    answers = iter([None, 0, "", "now"])
    assert wait_for("it", lambda: next(answers), LIMIT_S, every_s=0.001) == "now"


def test_waiting_in_vain_says_for_what() -> None:
    count = itertools.count()
    with pytest.raises(BoxError, match=r"0\.05 s in vain for a miracle"):
        wait_for("a miracle", lambda: next(count) < 0, 0.05, every_s=0.001)
    assert next(count) >= 1


def test_a_cloud_that_cannot_start_shows_its_last_words(folder: Path) -> None:
    with Box(folder, scenario="[[zone]]\npersonality = 'moon'\n") as box:
        with pytest.raises(BoxError) as caught:
            box.start_cloud()
        assert "moon" in str(caught.value)


def test_a_daemon_that_cannot_start_shows_its_last_words(folder: Path) -> None:
    with Box(folder, settings="[limits]\nmax_nodes = 'many'\n") as box:
        box.cloud_url = "http://127.0.0.1:9"
        with pytest.raises(BoxError) as caught:
            box.start_daemon()
        assert "ended at once" in str(caught.value)
        assert "limits.max_nodes" in str(caught.value)


def use(folder: Path, pids: list[int]) -> None:
    """Use a box until an error is raised."""
    with running_box(folder, SCENARIO) as box:
        assert box.cloud is not None
        assert box.daemon is not None
        pids += [box.cloud.pid, box.daemon.pid]
        assert all(alive(pid) for pid in pids)
        zones = {row["zone"] for row in box.call_cloud("/v1/aws/offers")["offers"]}
        assert zones == {"us-east-2a", "us-east-2b"}
        assert box.meter() == []
        box.preempt("i-nobody", kind="preempt", notice_s=30.0)


def test_everything_ends_with_the_box_whatever_happens(folder: Path) -> None:
    pids: list[int] = []
    with pytest.raises(BoxError, match="HTTP 4"):
        use(folder, pids)
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_the_end_of_a_log_is_its_end(folder: Path) -> None:
    box = Box(folder)
    (folder / "x.log").write_bytes(b"one\ntwo\n\xff\n")
    assert box.tail("x", 2) == "two\n�"
    assert box.tail("nothing") == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        ([{"kind": "exited", "at_us": 5, "data": {"code": 76}}], ProgramExit(76, 5)),
        (
            [{"journal": {"kind": "exited", "at_us": 6, "data": {"code": 0}}}, "torn"],
            ProgramExit(0, 6),
        ),
        ([{"kind": "started", "at_us": 7, "data": {}}], None),
        (
            [
                {"kind": "exited", "at_us": 8, "data": {"code": 75}},
                {"kind": "warning", "at_us": 9, "data": {}},
            ],
            ProgramExit(75, 8),
        ),
    ],
)
def test_a_journal_tells_how_its_program_ended(
    tmp_path: Path, lines: list[object], expected: ProgramExit | None
) -> None:
    path = tmp_path / "journal.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    assert read_program_exit(path) == expected


def test_a_journal_that_is_deleted_meanwhile_tells_nothing(tmp_path: Path) -> None:
    assert read_program_exit(tmp_path / "gone.jsonl") is None
