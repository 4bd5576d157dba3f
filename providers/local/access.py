"""Who may give the cloud orders: whoever can read its token, which lies in its folder.

Everybody on this machine reaches 127.0.0.1, a page in a browser included, and a launch runs
commands as the cloud's owner.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

HEADER = "Authorization"
_NAME = "token"


class NoTokenError(Exception):
    """There is no token to show; the text says which file was looked for."""


def token_file(folder: Path) -> Path:
    """Where the token of the cloud in `folder` lies."""
    return folder.absolute() / _NAME


def keep_token(folder: Path) -> str:
    """The folder's token: made once, for its owner's eyes, and kept for later starts."""
    path = token_file(folder)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        if token := path.read_text("ascii").strip():
            return token
        fd = os.open(path, os.O_WRONLY)  # whoever made it died before a word
    token = secrets.token_hex(32)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def credentials(path: Path | None) -> dict[str, str]:
    """The header that shows the token in `path`, read anew each time: the cloud may be a new one.
    Raises NoTokenError."""
    if path is None:
        raise NoTokenError("no token_file is given; `spotctl cloud up` prints which one it is")
    try:
        token = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise NoTokenError(f"the token_file of the local cloud cannot be read: {error}") from None
    return {HEADER: f"Bearer {token}"}


def admits(token: str, shown: str | None) -> bool:
    """Whether the header's value shows this token."""
    return hmac.compare_digest(
        f"Bearer {token}".encode(), (shown or "").encode("latin-1", "replace")
    )
