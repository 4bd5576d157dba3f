"""The bearer token of the local cloud: only users who can read it may call the API.

Every user of this machine can reach 127.0.0.1, and so can a page in a browser, but a launch runs
commands as the owner of the cloud. The token is a file in the cloud's folder.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

HEADER = "Authorization"
_NAME = "token"


class NoTokenError(Exception):
    """The token cannot be read; the message names the file."""


def token_file(folder: Path) -> Path:
    """The token file of the cloud in `folder`."""
    return folder.absolute() / _NAME


def load_or_create_token(folder: Path) -> str:
    """Return the folder's token, created on the first start and readable by the owner only."""
    path = token_file(folder)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        if token := path.read_text("ascii").strip():
            return token
        fd = os.open(path, os.O_WRONLY)  # its creator died before writing the token
    token = secrets.token_hex(32)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def auth_header(path: Path | None) -> dict[str, str]:
    """The Authorization header with the token in `path`. Raises NoTokenError.

    The file is read on every call because the cloud may have been replaced by a new one.
    """
    if path is None:
        raise NoTokenError("no token_file is given; `spotctl cloud up` prints which one it is")
    try:
        token = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise NoTokenError(f"the token_file of the local cloud cannot be read: {error}") from None
    return {HEADER: f"Bearer {token}"}


def is_authorized(token: str, header: str | None) -> bool:
    """Whether the value of the Authorization header holds this token."""
    return hmac.compare_digest(
        f"Bearer {token}".encode(), (header or "").encode("latin-1", "replace")
    )
