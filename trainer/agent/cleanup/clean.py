"""Remove secrets and machine-specific files from a disk before an image is made of it.

Files are overwritten before they are removed, because an image copies a disk's blocks, also those
of removed files. docs/images.md lists the tables below. Everything else stays, as that is the
purpose of an image. Nothing below a mount point is touched, because an image contains the machine's
own disk alone.
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
from trainer.agent.cleanup.wipe import mount_points

# In every user's home.
HOME_REMOVED = (
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
REMOVED = (
    "etc/ssh/ssh_host_*",
    "var/lib/dbus/machine-id",
    "etc/google_instance_id",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
)
# Folders whose content is removed.
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
CLOUD_INIT_RETAINED = "seed"  # an image may have its data source here; clouds use none
# Files that must exist but be empty; systemd makes a new machine id then.
TRUNCATED = ("etc/machine-id",)
LOGS = "var/log"
# Services that write to what is removed, Azure's every few seconds.
STOPPED_SERVICES = (
    "walinuxagent",
    "waagent",
    "google-guest-agent",
    "google-guest-agent-manager",
    "amazon-ssm-agent",
    "snap.amazon-ssm-agent.amazon-ssm-agent",
    "rsyslog",
)
OVERWRITTEN_BYTES = 64 << 20  # larger files hold data and no secrets: only their start
_PID_NAMESPACE = 0xEFFFFFFC  # Linux's PROC_PID_INIT_INO: the machine's own, outside containers
_MAX_REPORTED = 20

Run = Callable[[Sequence[str], float], object]


class CleanError(NodeError):
    """The machine must not be cleaned, or not now."""


@dataclass
class CleanReport:
    """The removed and emptied files. After a failure no image may be made of the disk."""

    removed: int = 0
    blanked: int = 0
    failed: list[str] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        data = asdict(self)
        return {**data, "failed": self.failed[:_MAX_REPORTED], "failures": len(self.failed)}


def check_rented(
    environ: Mapping[str, str],
    prepared_file: Path | None,
    namespace: Path = Path("/proc/self/ns/pid"),
) -> None:
    """Raise CleanError unless this is a whole machine that spotd rented.

    On any other machine the clean-up would delete a user's keys.
    """
    if os.geteuid() != 0:
        raise CleanError("only root can clean the disk: run it with `sudo -n`")
    if "SPOTD_LOCAL_INSTANCE" in environ or prepared_file is None or not prepared_file.is_file():
        raise CleanError(
            f"this machine was not prepared by spotd: there is no {prepared_file or 'such mark'}"
        )
    if namespace.stat().st_ino != _PID_NAMESPACE:
        raise CleanError("this is a container, not a machine: its disk belongs to its host")


def clean(root: Path, home: Path, run: Run | None = None) -> CleanReport:
    """Clean the disk whose files are below `root`; `home` is the agent's folder. Idempotent.

    Raises CleanError while an agent is running there, and then nothing was done.
    """
    run = run or _run
    with _agents_locked(home):
        run(("systemctl", "stop", *STOPPED_SERVICES), 60.0)
        run(("journalctl", "--relinquish-var"), 30.0)  # from now on it writes to memory only
        cleaner = _Cleaner(root, {os.path.normpath(mount) for mount in mount_points()})
        for path in _paths_to_remove(root, home):
            cleaner.remove_from(path)
        for path in _files(root / LOGS, cleaner.mount_points):
            cleaner.truncate(path)
        for name in TRUNCATED:
            cleaner.truncate(root / name)
    os.sync()
    run(("fstrim", "--all"), 300.0)  # tell the disk which blocks are free, where it supports that
    return cleaner.report


def _paths_to_remove(root: Path, home: Path) -> Iterator[Path]:
    for folder in _homes(root):
        yield from (folder / name for name in HOME_REMOVED)
    yield home
    for pattern in REMOVED:
        yield from sorted(root.glob(pattern))
    for name in EMPTIED:
        yield from _children(root / name)
    for path in _children(root / CLOUD_INIT):
        if path.name != CLOUD_INIT_RETAINED:
            yield path


def _homes(root: Path) -> list[Path]:
    """Return the homes of root and all users, also of users who are no longer in /etc/passwd."""
    folders = [root / "root", *_children(root / "home")]
    try:
        lines = (root / "etc/passwd").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        parts = line.split(":")
        if len(parts) > 5 and parts[5].startswith("/") and parts[5] != "/":
            folders.append(root / parts[5].lstrip("/"))
    return list(dict.fromkeys(folders))


def _children(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(folder.iterdir())


def _files(folder: Path, mount_points: set[str]) -> Iterator[Path]:
    for path in _children(folder):
        if str(path) in mount_points or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path, mount_points)
        elif path.is_file():
            yield path


class _Cleaner:
    """Removes files below `root`, except mount points."""

    def __init__(self, root: Path, mount_points: set[str]) -> None:
        self._root = Path(os.path.realpath(root))
        self.mount_points = mount_points
        self.report = CleanReport()

    def remove_from(self, path: Path) -> None:
        """Like `remove`, after resolving links in the parent; does nothing for a path on another
        disk."""
        real = Path(os.path.realpath(path.parent)) / path.name
        if not real.is_relative_to(self._root):
            return
        above = real.parents[: len(real.relative_to(self._root).parts) - 1]
        if not any(str(folder) in self.mount_points for folder in above):
            self.remove(real)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its content except mount points. Links are not
        followed."""
        if str(path) in self.mount_points:
            return
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                for child in list(path.iterdir()):
                    self.remove(child)
                if not self._holds_a_mount(path):
                    path.rmdir()
                return
            # A hard link to the file may stay, as in package caches: do not overwrite its content.
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                _overwrite(path)
            path.unlink()
            self.report.removed += 1
        except FileNotFoundError:
            return
        except OSError as error:
            self._fail(path, error)

    def truncate(self, path: Path) -> None:
        """Empty a regular file. Links and missing files are left alone."""
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            return
        try:
            _overwrite(path)
            os.truncate(path, 0)
            self.report.blanked += 1
        except OSError as error:
            self._fail(path, error)

    def _holds_a_mount(self, path: Path) -> bool:
        return any(mount.startswith(f"{path}/") for mount in self.mount_points)

    def _fail(self, path: Path, error: OSError) -> None:
        self.report.failed.append(f"{path}: {error.strerror or error}")


def _overwrite(path: Path) -> None:
    """Write zeros over the file's blocks."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        remaining = min(os.fstat(descriptor).st_size, OVERWRITTEN_BYTES)
        zeros = bytes(min(remaining, 1 << 20))
        while remaining > 0:
            remaining -= os.write(descriptor, zeros[:remaining])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _agents_locked(home: Path) -> Iterator[None]:
    """Hold every agent's lock below `home`. Raises CleanError if an agent holds one."""
    with ExitStack() as locks:
        for path in sorted(home.glob("*/g*/agent.lock")):
            lock = locks.enter_context(path.open("rb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CleanError(f"an agent is running in {path.parent}: stop it first") from None
        yield


def _run(argv: Sequence[str], limit_s: float) -> object:
    """Run a program that may be missing; its result does not matter."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        return subprocess.run(argv, check=False, timeout=limit_s, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
