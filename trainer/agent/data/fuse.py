"""Programs and permissions that mounts need: rclone and fuse3, installed if missing; and mount
points."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.agent.cleanup.wipe import mount_points
from trainer.agent.data.rclone import MIN_VERSION
from trainer.agent.process.processes import run_command

DEVICE = Path("/dev/fuse")
CONF = Path("/etc/fuse.conf")
ALLOW_OTHER = "user_allow_other"  # in CONF, lets other users see a plain user's mounts
DISCONNECTED_S = 1.0  # for the answer of a mount's server, which may hang
_INSTALL_S = 300.0
_COMMAND_S = 20.0
_PACKAGES = {"rclone": "rclone", "fusermount3": "fuse3"}
_LOCAL = "SPOTD_LOCAL_INSTANCE"  # a machine of the local cloud is the user's own computer

Run = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]


class FuseError(Exception):
    """Nothing can be mounted here; the message has the reason and the fix."""


@dataclass(frozen=True)
class Programs:
    """Paths of the programs, rclone's version, and whether other users of the machine can see a
    mount."""

    rclone: str
    fusermount: str
    allow_other: bool
    version: tuple[int, int]


def run_noninteractive(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command that must not ask questions."""
    return run_command(argv, timeout_s, DEBIAN_FRONTEND="noninteractive")


def ensure_programs(
    environ: Mapping[str, str],
    *,
    container: bool,
    run: Run = run_noninteractive,
    device: Path = DEVICE,
) -> Programs:
    """Find or install the programs that mounting needs.

    In a `container` the program is root, and must see mounts of the agent's user. Raises FuseError.
    """
    path = environ.get("PATH", os.defpath)
    missing = _missing(path)
    if missing and _LOCAL not in environ:
        install_error = _install(missing, path, run)
    else:
        install_error = "nothing is installed on a local cloud"
    if missing := _missing(path):
        names = " ".join(missing)
        raise FuseError(
            f"{' and '.join(missing)} not on this machine, and could not be installed "
            f"({install_error}): add `apt-get install -y {names}` to the setup of its image, "
            "or use mode: COPY"
        )
    if not device.exists():
        raise FuseError(
            f"this machine has no {device}: its kernel has no FUSE (modprobe fuse), or it is a "
            f"container without --device {device} --cap-add SYS_ADMIN; or use mode: COPY"
        )
    rclone = str(shutil.which("rclone", path=path))
    output = run([rclone, "version"], _COMMAND_S).stdout
    match = re.search(r"rclone v(\d+)\.(\d+)", output)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < MIN_VERSION:
        version_name = match[0] if match else f"{rclone}, which names no version,"
        minimum = ".".join(map(str, MIN_VERSION))
        raise FuseError(f"{version_name} is too old: install v{minimum} or newer in the image")
    fusermount = shutil.which("fusermount3", path=path) or shutil.which("fusermount", path=path)
    allow_other = _can_allow_other(run)
    if container and not allow_other:
        raise FuseError(
            "a container cannot see the mounts of an ordinary user: add the line "
            f"{ALLOW_OTHER} to {CONF} in the machine's image, or use mode: COPY"
        )
    return Programs(
        rclone=rclone, fusermount=str(fusermount), allow_other=allow_other, version=version
    )


def _missing(path: str) -> list[str]:
    """Return the missing packages by their Debian names."""
    paths = {name: shutil.which(name, path=path) for name in _PACKAGES}
    paths["fusermount3"] = paths["fusermount3"] or shutil.which("fusermount", path=path)
    return [_PACKAGES[name] for name, program in paths.items() if not program]


def _install(packages: Sequence[str], path: str, run: Run) -> str:
    """Install the packages and return the error, or ""."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get", path=path):
        # cloud-init or unattended-upgrades may hold the lock
        apt = [*sudo, "apt-get", "-o", "DPkg::Lock::Timeout=120", "-qq"]
        commands = [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *packages]]
    elif shutil.which("dnf", path=path):
        commands = [[*sudo, "dnf", "-q", "-y", "install", *packages]]
    else:
        return "neither apt-get nor dnf is here"
    for command in commands:
        result = run(command, _INSTALL_S)
        if result.returncode and command is commands[-1]:
            program = command[len(sudo)]
            return f"{program}: {_last_line(result.stderr or result.stdout)}"
    return ""


def _can_allow_other(run: Run) -> bool:
    """Whether other users can see our mounts; a plain user's only where root has allowed it."""
    if os.geteuid() == 0 or _is_allowed():
        return True
    run(["sudo", "-n", "sh", "-c", f"echo {ALLOW_OTHER} >> {CONF}"], _COMMAND_S)
    return _is_allowed()


def _is_allowed() -> bool:
    try:
        return ALLOW_OTHER in map(str.strip, CONF.read_text(encoding="utf-8").splitlines())
    except OSError:
        return False


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300] or "no output"


def is_mounted(folder: Path) -> bool:
    """Check with the kernel, not with the process that serves the mount, which may be dead."""
    return Path(os.path.realpath(folder.parent)) / folder.name in mount_points()


def is_disconnected(folder: Path, wait_s: float = DISCONNECTED_S) -> bool:
    """Return whether the mount at `folder` has lost its serving process, according to the kernel.

    The kernel knows first: reads fail while that process, or one that waits for it, still ends. A
    server that is alive but does not answer within `wait_s` seconds is not lost.
    """
    lost = threading.Event()

    def ask() -> None:
        try:
            os.statvfs(folder)  # always asks the server: nothing of it is cached
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                lost.set()

    # In a thread, because nothing can interrupt the call when the server does not answer.
    asking = threading.Thread(target=ask, name="statvfs", daemon=True)
    asking.start()
    asking.join(wait_s)
    return lost.is_set()


def unmount(fusermount: str, folder: Path) -> str:
    """Detach the mount at once, even if in use; returns the error, or "". Its server is killed
    before."""
    while is_mounted(folder):  # it may be mounted there several times
        result = run_noninteractive([fusermount or "fusermount3", "-uz", str(folder)], _COMMAND_S)
        if result.returncode:
            return _last_line(result.stderr)
    return ""
