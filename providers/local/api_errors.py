"""Errors of the local cloud's API: a code, a message and an HTTP status."""

from __future__ import annotations

STATUS = {
    "no_capacity": 409,
    "quota": 409,
    "price": 409,
    "rejected": 400,
    "token_mismatch": 409,
    "unauthorized": 401,
    "throttled": 429,
    "not_found": 404,
    "conflict": 409,
    "internal": 500,
}


class Refusal(Exception):
    """A call was refused and had no effect. `code` is a key of STATUS."""

    def __init__(self, code: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def to_data(self) -> dict[str, object]:
        """The JSON body of the response."""
        return {
            "error": {
                "code": self.code,
                "text": f"local cloud: {self.message}",
                "retry_after_s": self.retry_after_s,
            }
        }


class LostReply(Exception):
    """The call took effect; drop the connection instead of responding."""


class NotVisible(Exception):
    """Respond as if there were no machines."""


class GarbledReply(Exception):
    """The call took effect; respond with a malformed body."""
