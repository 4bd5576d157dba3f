"""One API request as the routes see it, and the errors that they raise.

Routes are plain functions `route(call) -> dict`; nothing in them depends on the web framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from spotd.api.request.context import ApiContext
from spotd.domain.job import Job
from spotd.store.columns import clean
from spotd.store.interface import Store

_RECENT_JOBS = 200  # whose names are compared with one that is unknown
API_VERSION = "spotd/v1"


@dataclass(frozen=True)
class Check:
    """One finding of the doctor.

    `try_` is the advice if the check is not `ok` or is `doubtful`. `doubtful` means that it works
    but deserves attention.
    """

    name: str
    ok: bool
    text: str
    try_: str = ""
    doubtful: bool = False


@dataclass(frozen=True)
class ApiRequest:
    """One request that was admitted.

    `actor` is the user at the other end of the socket, as the kernel reports it, or the person for
    whom the dashboard makes the request, logged in with the token `token_id`. `allowed()` lists the
    permissions of that user.
    """

    context: ApiContext
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""
    allowed: Callable[[], Sequence[str]] = tuple
    token_id: str = ""

    @property
    def now_us(self) -> int:
        return self.context.clock.now_us()

    def job(self) -> Job:
        """Return the job that the path names, by id or name. Raises ApiError (not found)."""
        name = self.path["job"]
        job = self.context.store.jobs.find(name)
        if job is None:
            raise not_found(unknown_job(self.context.store, name), "spotctl ps --all")
        return job

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer of the query or the body, clamped to `low`..`high`.

        Raises ApiError (bad input).
        """
        value = self.query.get(name, self.body.get(name, default))
        try:
            return max(low, min(high, int(value)))
        except (TypeError, ValueError, OverflowError):
            raise bad_input(
                f"{name} must be a whole number, not {value!r}", f"leave {name} out"
            ) from None

    def text(self, name: str) -> str:
        """Return a string of the body. Raises ApiError (bad input)."""
        value = self.body.get(name, "")
        if not isinstance(value, str) or not storable(value):
            raise bad_input(f"{name} must be a text", "use a spotctl of the daemon's version")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return a map of strings of the body. Raises ApiError (bad input)."""
        value = self.body.get(name) or {}
        pairs = value.items() if isinstance(value, dict) else [("", None)]
        if not all(isinstance(v, str) and storable(v) and storable(k) for k, v in pairs):
            raise bad_input(f"{name} must map names to texts", f"quote the values of {name}")
        return dict(pairs)


def storable(text: str) -> bool:
    """Return whether a database can store the text.

    JSON and URLs may contain NUL and lone surrogates, which no database text may.
    """
    return clean(text) == text


class ApiError(Exception):
    """A refusal: HTTP status, a code for programs, the problem, and the advice."""

    def __init__(self, status: int, code: str, message: str, try_: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.text = message
        self.try_ = try_

    def to_data(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "text": self.text, "try": self.try_}}


def not_found(text: str, try_: str) -> ApiError:
    return ApiError(404, "not_found", text, try_)


def unknown_job(store: Store, name: str) -> str:
    """Return the error for an unknown job, with the recent job whose name is nearest."""
    recent, _ = store.jobs.newest(_RECENT_JOBS)
    close = get_close_matches(name, {job.name for job in recent}, n=1)
    return f"there is no job {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def bad_input(text: str, try_: str) -> ApiError:
    return ApiError(400, "bad_input", text, try_)


def user_disabled(user: str) -> ApiError:
    return ApiError(403, "auth", f"{user} is disabled", "ask the operator of spotd")


def conflict(text: str, try_: str) -> ApiError:
    return ApiError(409, "conflict", text, try_)
