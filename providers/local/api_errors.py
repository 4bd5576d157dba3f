"""How this cloud says no: a code of its own, a text, and an HTTP status."""

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
    """A call that was not done. `code` is a key of STATUS."""

    def __init__(self, code: str, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry_after_s = retry_after_s

    def to_data(self) -> dict[str, object]:
        """The body of the answer."""
        return {
            "error": {
                "code": self.code,
                "text": f"local cloud: {self.text}",
                "retry_after_s": self.retry_after_s,
            }
        }


class HangUp(Exception):
    """The call was done and its answer is to be lost."""


class NotVisible(Exception):
    """As far as this call can see nothing is there."""


class Garble(Exception):
    """The call was done and its answer is to be unreadable."""
