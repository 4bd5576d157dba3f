"""Test YAML parsing: lines of keys, and quick refusal of anything but one plain job file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.spec.document import MAX_TEXT_CHARS, SpecError, parse


def test_lines_are_those_of_the_keys() -> None:
    document = parse("a: 1\nb:\n  - c: 2\n  -\n    d: 3\n")
    assert document.line(("a",)) == 1
    assert document.line(("b", 0, "c")) == 3
    assert document.line(("b", 1, "d")) == 5
    assert document.line(("b", 1, "missing")) == 5
    assert document.line(("missing", "x")) == 0


@pytest.mark.parametrize(
    ("text", "complaint", "line"),
    [
        ("a: [1\nb: 2", "not YAML", 2),
        ("a:\n\t- b", "not YAML", 2),
        ("a: 1\nb: 2\na: 3", "a: duplicate key, first on line 1", 3),
        ("x: {a: 1, a: 2}", "x.a: duplicate key", 1),
        ("- a", "not a block of keys", 0),
        ("just text", "not a block of keys", 0),
        ("", "the file is empty", 0),
        ("# nothing\n---\n", "the file is empty", 0),
        ("a: !!python/object/apply:os.system [id]", "not YAML", 1),
        ("a: !thing 3", "not YAML", 1),
        ("[a, b]: 3", "a key must be plain text", 1),
        ("a: *nowhere", "not YAML", 1),
        ("a: &a [*a]", "too large or too deep", 1),
        ("a: \x00", "not YAML", 0),
        ("a: " + "[" * 2000, "too deep", 0),
        ("a: " + "9" * 5000, "not YAML", 0),
        ("a: 1\n---\nb: 2\n---\nc: 3", "3 documents", 0),
        ('a: !!int ""', "does not match its tag", 0),
        ("a: !!bool x", "does not match its tag", 0),
        ("a: !!timestamp x", "does not match its tag", 0),
    ],
)
def test_invalid_files_are_refused_with_their_line(text: str, complaint: str, line: int) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    [problem] = caught.value.problems
    assert complaint in str(problem)
    assert problem.line == line


def test_a_few_lines_cannot_become_gigabytes() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(SpecError, match="too large or too deep"):
        parse("\n".join(lines))
    with pytest.raises(SpecError, match="longer than"):
        parse("a: " + "x" * MAX_TEXT_CHARS)


def test_merge_keys_and_byte_order_marks() -> None:
    document = parse("\ufeffx: {<<: {a: 1, b: 2}, b: 3}\n")
    assert document.data == {"x": {"a": 1, "b": 3}}


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@ \n\t0~?,", max_size=60))
def test_any_text_is_a_document_or_a_spec_error(text: str) -> None:
    try:
        assert isinstance(parse(text).data, dict)
    except SpecError as error:
        assert error.problems  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize(
    "name", ["NO", "no", "ON", "Yes", "null", "~", "1.10", "0x1F", "1e3", "017"]
)
def test_a_key_is_a_name_as_it_is_written(name: str) -> None:
    """YAML 1.1 has a value of its own for each of these."""
    document = parse(f"envs: {{{name}: 1}}\nrun: x")
    assert document.data["envs"] == {name: 1}
    merged = parse(f"base: &base\n  {name}: 1\nenvs:\n  <<: *base\nrun: x")
    assert merged.data["envs"] == {name: 1}
