"""The table of arguments, compared with the classes of the installed libraries."""

from __future__ import annotations

import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.trainer.hook import argument_cases as cases
from tests.trainer.hook.arguments_page import render, shown_by
from tests.trainer.hook.trainer_versions import installed, recorded, versions_by_argument
from trainer.hook.spotd_hook import arguments
from trainer.hook.spotd_hook.arguments import TABLE, Effect

PAGE = Path(__file__).parents[3] / "docs" / "arguments.md"
ROWS = {(row.owner, row.name) for row in TABLE}
needs_trainers = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("lightning") is None,
    reason="pip install '.[examples]'",
)


@needs_trainers
def test_each_argument_of_the_installed_and_of_the_oldest_versions_has_a_row() -> None:
    present = installed()
    assert not versions_by_argument(present).keys() - ROWS, "new arguments: say what they do"
    assert not versions_by_argument(recorded()).keys() - ROWS
    for version, found in present.items():
        assert recorded().get(version, found) == found, "python -m tests...trainer_versions"


@needs_trainers
def test_each_row_is_of_an_argument_that_a_supported_version_has() -> None:
    existing = versions_by_argument(recorded()).keys() | versions_by_argument(installed()).keys()
    assert not existing ^ ROWS
    assert [
        key for key, count in Counter((r.owner, r.name) for r in TABLE).items() if count > 1
    ] == []


@needs_trainers
def test_each_callback_of_lightning_is_known() -> None:
    from lightning.pytorch import callbacks

    others = {name for names in cases.OTHER_CALLBACKS for name in names.split()}
    known = {row.owner.rpartition(".")[2] for row in TABLE} | others
    assert set(callbacks.__all__) <= known


def test_each_honoured_argument_is_shown_by_a_test() -> None:
    honoured = {(row.owner, row.name) for row in TABLE if row.effect is Effect.HONOURED}
    assert honoured == shown_by().keys() | cases.NOT_SHOWN.keys()


def test_the_tests_that_show_an_argument_exist() -> None:
    for module, names in (
        ("test_hf_arguments", cases.TRANSFORMERS_TESTS),
        ("test_lightning_arguments", cases.LIGHTNING_TESTS),
    ):
        source = Path(__file__).with_name(f"{module}.py").read_text()
        assert [name for name in names if f"def {name}(" not in source] == []


def test_each_row_says_what_becomes_of_the_argument() -> None:
    assert all(row.text or row.effect is Effect.UNRELATED for row in TABLE)


def test_the_page_is_the_table() -> None:
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        PAGE.write_text(render())
    assert PAGE.read_text() == render(), "SPOTD_WRITE_GOLDEN=1 pytest writes it"


@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.effect is Effect.REFUSED], ids=lambda row: row.name
)
def test_a_refused_argument_is_named_with_what_to_do(row: arguments.Argument) -> None:
    with pytest.raises(ValueError, match=rf"^{row.name} does not work with spotd_hook: leave it"):
        arguments.check(row.owner, {row.name: "a value"})


def test_arguments_that_are_honoured_or_of_another_library_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"max_steps": 3, "of_a_subclass": True}
    arguments.check(arguments.TRAINING_ARGUMENTS, given)
    arguments.warn(arguments.TRAINING_ARGUMENTS, given)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("saved", "now", "is_longer"),
    [(30, 30, False), (30, 60, True), (30, 20, False), (-1, 20, False), (30, -1, False)],
)
def test_a_training_that_ended_is_not_made_longer(saved: int, now: int, is_longer: bool) -> None:
    if not is_longer:
        arguments.check_limits({"max_steps": now}, {"max_steps": saved})
        return
    with pytest.raises(ValueError, match="max_steps was 30 when this training ended, and is 60"):
        arguments.check_limits({"max_steps": now}, {"max_steps": saved})
