"""The person that the daemon's own dashboard sends a request for, and which names are possible."""

from __future__ import annotations

import os
import pwd
import re
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


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_RESERVED = ("root", "spotd")  # the second is the audit's name of the daemon itself


def is_person(name: str) -> bool:
    """Return whether a person who logs in may have that name.

    Nobody is root or the daemon's user there: their rights have no limit, and the audit has their
    names for what the box itself does.
    """
    if not _NAME.fullmatch(name) or name.casefold() in _RESERVED:
        return False
    return uid_of(name) not in (0, os.geteuid())


def uid_of(name: str) -> int:
    """Return the uid of a user of this box; -1 for another name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return -1
