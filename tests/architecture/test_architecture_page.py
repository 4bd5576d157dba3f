"""docs/architecture.md shows the tree as it is: its picture, its folders and its files."""

from __future__ import annotations

import re

from tests.architecture.picture import BLOCK, PAGE, ROOT, imports, part_of, picture, reduced

PATH = re.compile(r"`((?:spotd|providers|trainer|tests|migrations|systemd|schemas)[\w./]*)`")


def test_the_picture_is_drawn_from_the_code() -> None:
    shown = BLOCK.search(PAGE.read_text())
    assert shown is not None
    assert shown[0] == picture(), "python -m tests.architecture.picture --write"


def test_every_path_exists() -> None:
    paths = PATH.findall(PAGE.read_text())
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_package_is_on_the_page() -> None:
    named = set(PATH.findall(PAGE.read_text()))
    packages = {box.replace(".", "/") for box in imports() if box.startswith("spotd.")}
    assert packages - named == set()


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": set(),
    }
    assert part_of("spotd.store.schema") == "spotd.store"
    assert part_of("providers.aws.cloud") == "providers"
