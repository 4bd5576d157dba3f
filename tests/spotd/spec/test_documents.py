"""Test the splitting of files with several jobs."""

from __future__ import annotations

import pytest

from spotd.spec import SpecError, load, split_documents

TWO = "name: a\nrun: x\n---\n# the second\nname: b\nrun: |\n  echo ---\n  --- y\n"


def test_each_job_is_read_by_itself() -> None:
    first, second = (load(text, now_us=1).spec for text in split_documents(TWO))
    assert (first.name, first.program.run) == ("a", "x")
    assert (second.name, second.program.run) == ("b", "echo ---\n--- y\n")


def test_errors_name_the_line_of_the_file() -> None:
    with pytest.raises(SpecError, match=r"line 4: .*numnodes"):
        load(split_documents("name: a\nrun: x\n---\nnumnodes: 2\nrun: y\n")[1], now_us=1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name: p\n---\nname: a\nrun: x\n---\nname: b\nrun: y\n", ["a", "b"]),
        ("---\nname: a\nrun: x\n---\nname: b\nrun: y\n---\n", ["a", "b"]),
        ("\ufeffname: a\nrun: x\n...\n---\nname: b\nrun: y\n", ["a", "b"]),
        ("{name: a, run: x}\n--- {name: b, run: y}\n", ["a", "b"]),
        ("---\n  name: a\n  run: x\n---\n# b\n  name: b\n  run: y", ["a", "b"]),
    ],
)
def test_titles_and_empty_documents_are_skipped(text: str, names: list[str]) -> None:
    assert [load(job_text, now_us=1).spec.name for job_text in split_documents(text)] == names


@pytest.mark.parametrize(
    "text",
    ["", "name: a\nrun: x\n", "name: a\n---\nrun: x\n", "a: [\n---\nb: 1\n", "---\n---\n", "x"],
)
def test_a_single_document_is_returned_unchanged(text: str) -> None:
    assert split_documents(text) == [text]
