"""Records as rows of the database: every column is an attribute."""

from __future__ import annotations

import json
from typing import Any

from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.wire.parts import value_of
from spotd.wire.printed_steps import printed_steps_data


class JobColumns:
    """A job, for functions of the store that read its row."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.job = job

    def __getattr__(self, name: str) -> Any:
        return value_of(self.job, name)


class NodeColumns:
    """A node, for functions of the store that read its row."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        value = value_of(self.node, name)
        if name == "printed_steps":
            return json.dumps(printed_steps_data(value)) if value else ""
        return value
