"""SSH access of users to this machine, each with keys of their own that can be revoked separately.

Revoking also ends existing logins, because an SSH server checks the key only once.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainer.agent.base.paths import NodeError
from trainer.agent.process.processes import identify, kill_tree, send_signal

MAX_KEYS = 8  # of one user, for logins that start at the same time
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,64}")
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{40,120}")
# A shell and no forwarding.
_OPTIONS = "restrict,pty"
# The title of an OpenSSH process that serves a login, with a session ("sshd: ada@pts/0") or not
# yet ("sshd: ada"). The listening process has its path as the title.
_LOGIN_SERVER = re.compile(r"sshd(-session)?: [^/\[]")


class SshAccessError(NodeError):
    """An invalid user name or key."""


def grant_access(home: Path, user: str, public_key: str) -> None:
    """Let `user` log in with this key. Raises SshAccessError."""
    if not _KEY.fullmatch(public_key):
        raise SshAccessError("the public key is not an ed25519 key")
    mark = _mark(user)
    with _keys(home) as lines:
        user_lines = [line for line in lines if line.endswith(mark)]
        for old in user_lines[: max(len(user_lines) + 1 - MAX_KEYS, 0)]:
            lines.remove(old)
        lines.append(f"{_OPTIONS} {public_key}{mark}")


def revoke_access(home: Path, user: str, environ: Mapping[str, str]) -> int:
    """Remove the keys of `user` and end every login except spotd's own; returns their number.

    It is not known which login used which key. Users who still may log in again, and the daemon
    does so by itself. Raises SshAccessError.
    """
    mark = _mark(user)
    with _keys(home) as lines:
        lines[:] = [line for line in lines if not line.endswith(mark)]
    if "SPOTD_LOCAL_INSTANCE" in environ:
        return 0  # a simulated machine on the user's computer: its server ends the logins itself
    ended = 0
    for pid in _logins():
        kill_tree(pid)
        login = identify(pid)
        ended += login is not None and send_signal(login, signal.SIGKILL)
    return ended


def _mark(user: str) -> str:
    if not _NAME.fullmatch(user):
        raise SshAccessError(f"{user[:80]!r} is not a valid user name")
    return f" spotd-user:{user}"


@contextmanager
def _keys(home: Path) -> Iterator[list[str]]:
    """The lines of authorized_keys, to be changed in place; written atomically under a lock."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "authorized_keys"
    with (folder / ".spotd-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = path.read_text().splitlines() if path.exists() else []
        original = list(lines)
        yield lines
        if lines == original:
            return
        new = folder / ".spotd-authorized_keys"
        with new.open("w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


def _logins() -> list[int]:
    """Return the processes that serve logins of this user, except the one that serves us."""
    own_ancestors = set(_ancestors(os.getpid()))
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in own_ancestors:
            continue
        try:
            cmdline = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            is_own = entry.stat().st_uid == os.geteuid()
        except OSError:
            continue  # ended, or hidden from us
        if is_own and _LOGIN_SERVER.match(cmdline):
            pids.append(int(entry.name))
    return pids


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return
        pid = int(text[text.rindex(")") + 2 :].split()[1])
