"""Replies in Google's format, and the filters of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Row = dict[str, Any]
_H100 = "'PREEMPTIBLE_NVIDIA_H100_GPUS' exceeded.  Limit: {} in region us-central1."
# what -> (HTTP status, reason, words): refused at once.
REFUSALS = {
    "rejected": (
        400,
        "invalid",
        (
            "Invalid value for field 'resource.disks[0].initializeParams.diskSizeGb': '1'. "
            "Requested disk size cannot be smaller than the image size (50 GB)"
        ),
    ),
    "unauthorized": (
        403,
        "forbidden",
        (
            "Required 'compute.instances.create' permission for "
            "'projects/lab/zones/us-central1-a/instances/x'"
        ),
    ),
    "throttled": (403, "rateLimitExceeded", "Rate Limit Exceeded"),
    "http_500": (503, "backendError", "Backend Error"),
    "unauthenticated": (401, "authError", "Request had invalid authentication credentials."),
}
# what -> (code, HTTP status, words): accepted, and told by the operation.
FAILURES = {
    "no_capacity": (
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        503,
        (
            "The zone 'projects/lab/zones/us-central1-a' does not have enough resources available "
            "to fulfill the request.  Try a different zone, or try again later."
        ),
    ),
    "fails_later": (
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        503,
        (
            "The zone 'projects/lab/zones/us-central1-a' does not have enough resources available "
            "to fulfill the request.  '(resource type:compute)'."
        ),
    ),
    "quota": ("QUOTA_EXCEEDED", 403, f"Quota {_H100.format('8.0')}"),
    "no_quota": ("QUOTA_EXCEEDED", 403, f"Quota {_H100.format('0.0')}"),
    "unheard_of": ("SOMETHING_NEW", 400, "Nobody has seen this code before."),
}


class HttpError(Exception):
    """An error answer."""

    def __init__(self, status: int, reason: str, words: str) -> None:
        super().__init__(words)
        self.status, self.reason, self.words = status, reason, words

    def body(self) -> bytes:
        """Return it in the API's format."""
        one = {"message": self.words, "domain": "global", "reason": self.reason}
        error = {"code": self.status, "message": self.words, "errors": [one]}
        return json.dumps({"error": error}).encode()


def not_found(path: str) -> HttpError:
    """The error for a missing resource."""
    return HttpError(404, "notFound", f"The resource '{path}' was not found")


_TERM = re.compile(r'\s*\(?([\w.-]+) (=|>|eq) (?:"([^"]*)"|([\w:.-]+))\)?')


def filter_of(text: str) -> Callable[[Row], bool]:
    """Return a predicate for rows. Raises HttpError for a filter that the stand-in cannot parse."""
    terms, at = [], 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            raise HttpError(400, "invalid", f"Invalid value for field 'filter': '{text}'.")
        terms.append((match[1], match[2], match[3] if match[3] is not None else match[4]))
        at = match.end()
    if any(how == "eq" for _, how, _ in terms) and len(terms) > 1:
        raise HttpError(400, "invalid", "You cannot combine regular expressions on fields.")
    return lambda row: all(_fits(row, *term) for term in terms)


def _fits(row: Mapping[str, Any], name: str, how: str, wanted: str) -> bool:
    value: Any = row
    for part in name.split(".", 1):
        value = value.get(part, {}) if isinstance(value, Mapping) else ""
    if how == ">":
        return datetime.fromisoformat(value) > datetime.fromisoformat(wanted)
    if how == "eq":
        return re.fullmatch(wanted, value) is not None
    return bool(value == wanted)
