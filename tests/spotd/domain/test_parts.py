"""A record and its parts, reached by the names of their fields."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

import pytest

from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.parts import PART, build, field_names, part_names, parts_of, value_of, values_of


@dataclass(frozen=True)
class Side:
    width: int = 1
    height: int = 2


@dataclass(frozen=True)
class Box:
    name: str
    side: Side = field(default=Side(), metadata=PART)
    depth: int = 3


def test_the_fields_of_a_part_stand_in_its_place() -> None:
    assert parts_of(Box) == {"side": Side}
    assert part_names(Box) == {"width": "side", "height": "side"}
    assert field_names(Box) == ("name", "width", "height", "depth")


def test_a_record_is_built_of_values_and_gives_them_back() -> None:
    made = build(Box, {"height": 7, "name": "b"})
    assert made == Box("b", Side(1, 7))
    assert value_of(made, "height") == 7
    assert values_of(made, ("name", "width")) == {"name": "b", "width": 1}
    assert build(Box, values_of(made, field_names(Box))) == made


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="weight"):
        value_of(Box("b"), "weight")
    with pytest.raises(TypeError, match="weight"):
        build(Box, {"name": "b", "weight": 1})


@pytest.mark.parametrize("kind", [Job, Market, Node], ids=lambda kind: kind.__name__)
def test_no_two_fields_of_a_record_and_its_parts_have_the_same_name(kind: type) -> None:
    names = [*field_names(kind), *parts_of(kind)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert len(fields(kind)) < len(field_names(kind))  # type: ignore[arg-type]
