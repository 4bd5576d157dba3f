"""One route of the API: an operation with its handler and its permission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spotd.api_routes.operation import Operation


class Permission(str, Enum):
    """The permission that a route requires."""

    READ = "read"
    CHANGE = "change"


class Kind(Enum):
    """How a route answers."""

    PLAIN = "at once, with JSON"
    LONG_POLL = "with JSON, once there is news or after `wait_s` seconds"
    STREAM = "by an endpoint of its own in app.py, which sends or receives bytes"
    OPENAPI = "with the OpenAPI document"


class Content(str, Enum):
    """The media type of a request's or a reply's body."""

    JSON = "application/json"
    BYTES = "application/octet-stream"
    TEXT = "text/plain"


@dataclass(frozen=True)
class ApiRoute:
    """One route.

    `action` is the audit's name of a change, and "" for a route that only reads: a change requires
    Permission.CHANGE. Handing out a key is a change, because its holder can change things.
    `reply_fields` names the fields of the reply that the audit keeps. A `large` reply is not held
    back in memory until it is complete.
    A field of a body that `operation` does not name is refused.
    """

    operation: Operation[...]
    handler: Callable[..., Any]
    kind: Kind = Kind.PLAIN
    action: str = ""
    reply_fields: tuple[str, ...] = ()
    large: bool = False
    sends: Content = Content.JSON
    receives: Content = Content.JSON

    @property
    def permission(self) -> Permission:
        """The permission that the route requires."""
        return Permission.CHANGE if self.action else Permission.READ
