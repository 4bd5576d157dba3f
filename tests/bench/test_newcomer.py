"""The bench of newcomers counts lines and tells what it saw; tests/e2e has their programs run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.newcomer import (
    NEWCOMERS,
    PROGRAMS,
    Outcome,
    job_file,
    lines_changed,
    summary,
    table,
)
from spotd.spec.load import load

SEEN = Outcome("loop/train.py", 0, "none", resumed=False, lost_s=12.34, files=9, told=())


def test_the_docstring_is_no_changed_line(tmp_path: Path) -> None:
    before, after = tmp_path / "a.py", tmp_path / "b.py"
    before.write_text('"""A."""\nx = 1\ny = 2\nz = 3\n')
    after.write_text('"""B."""\nx = 1\ny = 5\nz = 3\nw = 4\n')
    assert lines_changed(before, after) == 2
    assert lines_changed(before, before) == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_has_a_job_file_that_loads(name: str) -> None:
    for text in (job_file(name, "train.py"), (NEWCOMERS / name / "job.yaml").read_text()):
        parsed = load(text, now_us=0, env={}, secrets={}, defaults=None)
        assert parsed.spec.checkpoint.directory
        assert "train.py" in parsed.spec.program.run


@pytest.mark.parametrize("name", ["loop", "trainer", "lightning"])
def test_few_lines_make_a_program_resume(name: str) -> None:
    changed = lines_changed(NEWCOMERS / name / "train.py", NEWCOMERS / name / "resumes.py")
    assert 1 <= changed <= 5
    assert "SPOTD_RESUME" in (NEWCOMERS / name / "resumes.py").read_text()


def test_a_program_has_one_row_before_and_after() -> None:
    noticed = replace(SEEN, notice="notice of 20 s", lost_s=5.0)
    resumes = replace(SEEN, program="loop/resumes.py", lines_changed=5, resumed=True, lost_s=0.04)
    beside = replace(SEEN, program="beside/train.py", resumed=True, lost_s=2.0)
    assert list(summary([noticed, SEEN, resumes, beside]))[2:] == [
        "| loop | starts from the beginning, and spotd reports it | 5.0 s, 12.3 s | 5 | 0.0 s |",
        "| beside | resumes | 2.0 s | 0 | 2.0 s |",
    ]


def test_the_table_hides_nothing() -> None:
    rows = list(table([SEEN, replace(SEEN, resumed=True, lost_s=None, lines_changed=5)]))
    assert rows[2:] == [
        "| loop/train.py | 0 | none | no, and said so | 12.3 s | 9 |",
        "| loop/train.py | 5 | none | yes | not known | 9 |",
    ]
