"""One operation of the API: a method, a path, and the fields that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec
from urllib.parse import quote, urlencode

P = ParamSpec("P")
Schema = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Operation(Generic[P]):
    """One operation; calling it with the parameters of its path gives an Endpoint.

    `path_parameters` takes the parameters of `path` by keyword, which lets the type checker find a
    wrong or missing one. `query` and `body` are the fields besides those, with their JSON Schemas.
    """

    method: str
    path: str
    path_parameters: Callable[P, Mapping[str, str]]
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Mapping[str, Schema] = field(default_factory=dict)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Endpoint:
        values = self.path_parameters(*args, **kwargs)
        escaped = {name: quote(value, safe="") for name, value in values.items()}
        return Endpoint(self, self.path.format_map(escaped))

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Endpoint:
    """An operation on the resource that `path` names; its parameters are in it, escaped."""

    operation: Operation[...]
    path: str

    def target(self, query: Mapping[str, object]) -> str:
        """Return the path with query parameters; those that are "" or None are left out.

        Raises ValueError for a parameter that the operation does not take.
        """
        self._check_fields(query, self.operation.query)
        values = {name: str(value) for name, value in query.items() if value not in ("", None)}
        return f"{self.path}?{urlencode(values)}" if values else self.path

    def check_body(self, body: Iterable[str]) -> None:
        """Raise ValueError for a field of the body that the operation does not take."""
        self._check_fields(body, self.operation.body)

    def _check_fields(self, names: Iterable[str], known: Iterable[str]) -> None:
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"{self.operation} takes no {', '.join(unknown)}")


def no_parameters() -> dict[str, str]:
    """Return the parameters of a path that has none."""
    return {}


def of_job(*, job: str) -> dict[str, str]:
    """Return the parameters of a path that names a job, by name or id."""
    return {"job": job}


def of_name(*, name: str) -> dict[str, str]:
    """Return the parameters of a path that names a secret, a user, an image or an import."""
    return {"name": name}


def of_cloud(*, cloud: str) -> dict[str, str]:
    """Return the parameters of a path that names a cloud."""
    return {"cloud": cloud}


def of_digest(*, digest: str) -> dict[str, str]:
    """Return the parameters of a path that names a package by its digest."""
    return {"digest": digest}
