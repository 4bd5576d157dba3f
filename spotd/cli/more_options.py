"""Give a command options that are made from a table, such as one for each cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(
    options: Mapping[str, tuple[Any, Any]], before: str
) -> Callable[[Command], Command]:
    """Return a decorator that shows `options` (name -> type and typer option) in front of the
    parameter `before`. The command takes their values as its `**` parameter."""

    def decorate(command: Command) -> Command:
        made = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=kind)
            for name, (kind, option) in options.items()
        ]
        own = signature(command)
        names = [n for n, p in own.parameters.items() if p.kind is not Parameter.VAR_KEYWORD]
        at = names.index(before)
        parameters = [own.parameters[name] for name in names]
        shown = own.replace(parameters=[*parameters[:at], *made, *parameters[at:]])
        command.__signature__ = shown  # type: ignore[attr-defined]  # typer reads it
        return command

    return decorate
