"""Inputs that crashed something once, or that nobody expects: each target takes all of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fuzz.__main__ import CORPUS, NAMES, main
from tests.fuzz.targets import TARGETS

QUICK = sorted(set(TARGETS) - {"api", "backup"})


def kept(name: str) -> list[Path]:
    return sorted((CORPUS / name).iterdir())


def test_every_target_has_inputs() -> None:
    assert sorted(TARGETS) == NAMES
    assert all(kept(name) for name in NAMES)


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_kept(name: str) -> None:
    wrong = {}
    for path in kept(name):
        try:
            TARGETS[name](path.read_bytes())
        except Exception as error:  # noqa: BLE001 - all of them are told
            wrong[path.name] = repr(error)
    assert wrong == {}


@pytest.mark.parametrize("name", QUICK)
@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_what_is_nearly_that(name: str, data: st.DataObject) -> None:
    TARGETS[name](nearly(name, data))


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_nearly_a_backup(data: st.DataObject) -> None:
    """Fewer of them: each is a database, twice."""
    TARGETS["backup"](nearly("backup", data))


def nearly(name: str, data: st.DataObject) -> bytes:
    """Parts of two inputs put together, with any bytes in between."""
    inputs = st.sampled_from(kept(name)).map(Path.read_bytes)
    first, second = data.draw(inputs), data.draw(inputs)
    start = data.draw(st.integers(0, len(first)))
    end = data.draw(st.integers(0, len(second)))
    between = data.draw(st.one_of(st.just(b""), st.binary(max_size=8)))
    return first[:start] + between + second[end:]


def test_a_name_that_no_target_has_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "nonsense"])
    with pytest.raises(SystemExit):
        main()
    assert "no target nonsense; there are api, archive" in capsys.readouterr().err
