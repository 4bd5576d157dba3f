"""The calls to a node that the loop needs."""

from __future__ import annotations

from typing import Protocol

from providers.stores.base import ObjectStore
from spotd.act.image_builder import Cleaner
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys
from spotd.wire import AgentConfig, Command, Reply


class LinkError(Exception):
    """The node could not be reached, refused, or did not answer in time."""


class NodeLink(Cleaner, Protocol):
    """SSH to nodes, implemented by act/link.py. Every method may raise `LinkError`, also when it
    takes longer than `deadline_s`, including the connection."""

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig, deadline_s: float) -> None: ...

    def put_package(
        self,
        node: Node,
        keys: JobKeys,
        digest: str,
        source: ObjectStore,
        deadline_s: float,
        *,
        unless: str = "",
    ) -> None: ...

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply: ...
