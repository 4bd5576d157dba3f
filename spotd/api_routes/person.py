"""The person that the daemon's own dashboard sends a request for."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

HEADER = "spotd-person"
ROLES = ("viewer", "admin")
VIA = "dashboard"


@dataclass(frozen=True)
class Person:
    """Somebody who has logged in to the dashboard.

    `account`: the name is a user of the daemon's box, whose groups count. `role` is "viewer" or
    "admin": the right of somebody without an account, and a limit for somebody with one. "" leaves
    it to the groups. `token_id` is the token that the person logged in with, "" for none.
    """

    name: str
    account: bool = False
    role: str = ""
    token_id: str = ""

    def header(self) -> str:
        """Return the value of the request's header."""
        values = {"name": self.name, "account": int(self.account), "role": self.role}
        return urlencode({**values, "token": self.token_id})


def parse_person(header: str) -> Person:
    """Return the person of a header. Raises ValueError."""
    values = {name: texts[-1] for name, texts in parse_qs(header, strict_parsing=True).items()}
    name, role = values.get("name", ""), values.get("role", "")
    if not name or role not in ("", *ROLES):
        raise ValueError(f"{header[:100]!r} names no person")
    return Person(name, values.get("account") == "1", role, values.get("token", ""))
