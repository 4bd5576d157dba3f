"""A node as a row of the database: every column is an attribute."""

from __future__ import annotations

import json
from typing import Any

from spotd.domain.node import Node
from spotd.wire.parts import value_of
from spotd.wire.printed_steps import printed_steps_data


class NodeColumns:
    """What functions of the store that read rows are given here."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        value = value_of(self.node, name)
        if name == "printed_steps":
            return json.dumps(printed_steps_data(value)) if value else ""
        return value
