"""Names of people who log in: which are possible, and which are users of this box."""

from __future__ import annotations

import os
import pwd
import re

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
