"""Taking off a machine's disk what is secret or the machine's own, before an image is made of it.

What is removed is overwritten before: an image is of a disk's blocks, those of removed files
included. The tables are what docs/images.md lists. Everything else stays: that is what the image is
for. Nothing below a mount point is touched, because an image is of the machine's own disk alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.agent.base.paths import NodeError
from trainer.agent.cleanup.wipe import mounts_seen

# Of every user's home.
HOME_GONE = (
    ".ssh",
    ".spotd",
    ".local/share/recently-used.xbel",
    # Histories.
    ".bash_history",
    ".zsh_history",
    ".ash_history",
    ".python_history",
    ".lesshst",
    ".viminfo",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".node_repl_history",
    ".wget-hsts",
    ".local/share/fish/fish_history",
    ".ipython/profile_default/history.sqlite",
    # Logins.
    ".aws",
    ".azure",
    ".config/gcloud",
    ".boto",
    ".s3cfg",
    ".config/rclone/rclone.conf",
    ".docker/config.json",
    ".config/containers/auth.json",
    ".kube",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".gnupg",
    ".pypirc",
    ".npmrc",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    ".huggingface/token",
    ".kaggle/kaggle.json",
    ".config/kaggle/kaggle.json",
    ".config/pip/pip.conf",
    ".pip/pip.conf",
)
GONE = (
    "etc/ssh/ssh_host_*",
    "var/lib/dbus/machine-id",
    "etc/google_instance_id",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
)
# Folders that stay, without what is in them.
EMPTIED = (
    "tmp",
    "var/tmp",
    "var/crash",
    "var/lib/systemd/coredump",
    "var/spool/mail",
    "var/mail",
    "var/lib/waagent",
    "var/lib/amazon/ssm",
    "var/lib/dhcp",
    "var/lib/spotd",
    "var/log/journal",
)
CLOUD_INIT = "var/lib/cloud"
KEPT_OF_CLOUD_INIT = "seed"  # where an image may have its data source from; clouds use none
# Files that have to be there, empty; of a machine without an id systemd makes a new one.
BLANK = ("etc/machine-id",)
LOGS = "var/log"
# They write to what is removed, Azure's every few seconds.
STOPPED = (
    "walinuxagent",
    "waagent",
    "google-guest-agent",
    "google-guest-agent-manager",
    "amazon-ssm-agent",
    "snap.amazon-ssm-agent.amazon-ssm-agent",
    "rsyslog",
)
OVERWRITTEN_BYTES = 64 << 20  # of larger files, which hold data and no secrets, only the beginning
_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of Linux: the one that a machine itself has
_MOST_TOLD = 20

Run = Callable[[Sequence[str], float], object]


class CleanError(NodeError):
    """This is not to be cleaned, or not now."""


@dataclass
class Cleaned:
    """What came of it. Of a disk on which something failed no image may be made."""

    removed: int = 0
    blanked: int = 0
    failed: list[str] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "failed": self.failed[:_MOST_TOLD], "failures": len(self.failed)}


def check_rented(
    environ: Mapping[str, str],
    prepared_file: Path | None,
    namespace: Path = Path("/proc/self/ns/pid"),
) -> None:
    """Raises CleanError unless this is a whole machine that was rented for us: on any other, what
    follows would take somebody's keys."""
    if os.geteuid() != 0:
        raise CleanError("only root can take everything off: run it by `sudo -n`")
    if "SPOTD_LOCAL_INSTANCE" in environ or prepared_file is None or not prepared_file.is_file():
        raise CleanError(
            f"this machine was not prepared by spotd: there is no {prepared_file or 'such mark'}"
        )
    if namespace.stat().st_ino != _PID_NAMESPACE:
        raise CleanError("this is a container, and not a machine: its disk is somebody else's")


def clean(root: Path, home: Path, run: Run | None = None) -> Cleaned:
    """Clean the disk whose files are below `root`; `home` is the agent's folder. Twice is as once.
    Raises CleanError while an agent is at work there, and then nothing was done."""
    run = run or _run
    with _quiet(home):
        run(("systemctl", "stop", *STOPPED), 60.0)
        run(("journalctl", "--relinquish-var"), 30.0)  # from here on it is kept in memory alone
        work = _Work(root, {os.path.normpath(mount) for mount in mounts_seen()})
        for path in _doomed(root, home):
            work.remove_from(path)
        for path in _files(root / LOGS, work.kept):
            work.blank(path)
        for name in BLANK:
            work.blank(root / name)
    os.sync()
    run(("fstrim", "--all"), 300.0)  # where the disk can be told that blocks are free
    return work.done


def _doomed(root: Path, home: Path) -> Iterator[Path]:
    for folder in _homes(root):
        yield from (folder / name for name in HOME_GONE)
    yield home
    for pattern in GONE:
        yield from sorted(root.glob(pattern))
    for name in EMPTIED:
        yield from _children(root / name)
    for path in _children(root / CLOUD_INIT):
        if path.name != KEPT_OF_CLOUD_INIT:
            yield path


def _homes(root: Path) -> list[Path]:
    """Of root, and of whoever has one; also of users that nobody knows any more."""
    found = [root / "root", *_children(root / "home")]
    try:
        lines = (root / "etc/passwd").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        parts = line.split(":")
        if len(parts) > 5 and parts[5].startswith("/") and parts[5] != "/":
            found.append(root / parts[5].lstrip("/"))
    return list(dict.fromkeys(found))


def _children(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def _files(folder: Path, kept: set[str]) -> Iterator[Path]:
    for path in _children(folder):
        if str(path) in kept or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path, kept)
        elif path.is_file():
            yield path


class _Work:
    """On the disk below `root`; `kept` are mount points."""

    def __init__(self, root: Path, kept: set[str]) -> None:
        self._root = Path(os.path.realpath(root))
        self.kept = kept
        self.done = Cleaned()

    def remove_from(self, path: Path) -> None:
        """As `remove`, where it really lies; nothing on another disk."""
        real = Path(os.path.realpath(path.parent)) / path.name
        if not real.is_relative_to(self._root):
            return
        above = real.parents[: len(real.relative_to(self._root).parts) - 1]
        if not any(str(folder) in self.kept for folder in above):
            self.remove(real)

    def remove(self, path: Path) -> None:
        """A file, or a folder with all below it but mount points. Links are never followed."""
        if str(path) in self.kept:
            return
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                for child in list(path.iterdir()):
                    self.remove(child)
                if not self._holds_a_mount(path):
                    path.rmdir()
                return
            # Another name of the file may be in what stays: caches of packages are made of such.
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                _overwrite(path)
            path.unlink()
            self.done.removed += 1
        except FileNotFoundError:
            return
        except OSError as error:
            self._fail(path, error)

    def blank(self, path: Path) -> None:
        """Without anything in it, for whoever writes there; links and what is not there stay so."""
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            return
        try:
            _overwrite(path)
            os.truncate(path, 0)
            self.done.blanked += 1
        except OSError as error:
            self._fail(path, error)

    def _holds_a_mount(self, path: Path) -> bool:
        return any(mount.startswith(f"{path}/") for mount in self.kept)

    def _fail(self, path: Path, error: OSError) -> None:
        self.done.failed.append(f"{path}: {error.strerror or error}")


def _overwrite(path: Path) -> None:
    """Zeros where the file was, on the disk itself."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        left = min(os.fstat(descriptor).st_size, OVERWRITTEN_BYTES)
        zeros = bytes(min(left, 1 << 20))
        while left > 0:
            left -= os.write(descriptor, zeros[:left])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _quiet(home: Path) -> Iterator[None]:
    """Every agent's lock below `home`, held. Raises CleanError where an agent holds it."""
    with ExitStack() as held:
        for path in sorted(home.glob("*/g*/agent.lock")):
            lock = held.enter_context(path.open("rb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CleanError(f"an agent is at work in {path.parent}: stop it first") from None
        yield


def _run(argv: Sequence[str], limit_s: float) -> object:
    """A program that may be missing, and whose word changes nothing."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        return subprocess.run(argv, check=False, timeout=limit_s, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
