"""People who may log in to this machine besides the daemon: each with keys of their own, so that
one can be shown out and the others stay.

A key that is taken away lets nobody in any more; who is in already is put out as well, because an
SSH server asks for the key only once.
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

MAX_KEYS = 8  # of one user: logins that begin at the same time
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,64}")
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{40,120}")
# No forwarding of anything: what a login is for is a shell.
_OPTIONS = "restrict,pty"
# What OpenSSH calls a process that serves a login, with a session ("sshd: ada@pts/0") or without
# one yet ("sshd: ada"); the one that listens goes by its path.
_SERVING = re.compile(r"sshd(-session)?: [^/\[]")


class SshAccessError(NodeError):
    """A name or a key that is none."""


def admit(home: Path, user: str, public_key: str) -> None:
    """Let `user` in with this key. Raises VisitorError."""
    if not _KEY.fullmatch(public_key):
        raise SshAccessError("the key to admit is no ed25519 public key")
    mark = _mark(user)
    with _keys(home) as lines:
        mine = [line for line in lines if line.endswith(mark)]
        for old in mine[: max(len(mine) + 1 - MAX_KEYS, 0)]:
            lines.remove(old)
        lines.append(f"{_OPTIONS} {public_key}{mark}")


def dismiss(home: Path, user: str, environ: Mapping[str, str]) -> int:
    """Take the keys of `user` away, and end every login but our own: which of them came with which
    key, nobody knows. Whoever may, logs in again; the daemon does so by itself. How many were
    ended. Raises VisitorError."""
    mark = _mark(user)
    with _keys(home) as lines:
        lines[:] = [line for line in lines if not line.endswith(mark)]
    if "SPOTD_LOCAL_INSTANCE" in environ:
        return 0  # a machine that is a process on somebody's own: its server sees to that itself
    ended = 0
    for pid in _logins():
        kill_tree(pid)
        login = identify(pid)
        ended += login is not None and send_signal(login, signal.SIGKILL)
    return ended


def _mark(user: str) -> str:
    if not _NAME.fullmatch(user):
        raise SshAccessError(f"{user[:80]!r} is no name of a user")
    return f" spotd-user:{user}"


@contextmanager
def _keys(home: Path) -> Iterator[list[str]]:
    """The lines of authorized_keys, to be changed; written whole or not at all, one at a time."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "authorized_keys"
    with (folder / ".spotd-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = path.read_text().splitlines() if path.exists() else []
        before = list(lines)
        yield lines
        if lines == before:
            return
        aside = folder / ".spotd-authorized_keys"
        with aside.open("w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


def _logins() -> list[int]:
    """Processes that serve a login of this user, those that serve us aside."""
    ours = set(_ancestors(os.getpid()))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in ours:
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            mine = entry.stat().st_uid == os.geteuid()
        except OSError:
            continue  # ended, or hidden from us
        if mine and _SERVING.match(words):
            found.append(int(entry.name))
    return found


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return
        pid = int(text[text.rindex(")") + 2 :].split()[1])
