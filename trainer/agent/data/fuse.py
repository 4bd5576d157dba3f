"""What a mount takes of a machine: rclone and fuse3, installed where they are not there and may be;
and mount points, as the kernel has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.agent.cleanup.wipe import mounts_seen
from trainer.agent.data.rclone import OLDEST
from trainer.agent.process.commands import asked

DEVICE = Path("/dev/fuse")
CONF = Path("/etc/fuse.conf")
OTHERS = "user_allow_other"  # the line of CONF that lets a plain user's mounts be seen by others
_INSTALL_S = 300.0
_ASK_S = 20.0
_PACKAGES = {"rclone": "rclone", "fusermount3": "fuse3"}
_LOCAL = "SPOTD_LOCAL_INSTANCE"  # a machine of a local cloud is somebody's own computer

Run = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]


class FuseError(Exception):
    """Nothing can be mounted here; the text says why, and what to do."""


@dataclass(frozen=True)
class Programs:
    """Where they are; `others`: what is mounted may be seen by other users of the machine;
    `version` is rclone's."""

    rclone: str
    fusermount: str
    others: bool
    version: tuple[int, int]


def ask(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """As `asked`, by nobody who could answer."""
    return asked(argv, timeout_s, DEBIAN_FRONTEND="noninteractive")


def find_programs(
    environ: Mapping[str, str], *, container: bool, run: Run = ask, device: Path = DEVICE
) -> Programs:
    """Have them, and see that they do. In a `container` others are root, and must see what is
    mounted. Raises FuseError."""
    path = environ.get("PATH", os.defpath)
    missing = _missing(path)
    if missing and _LOCAL not in environ:
        said = _install(missing, path, run)
    else:
        said = "on a local cloud nothing is"
    if missing := _missing(path):
        names = " ".join(missing)
        raise FuseError(
            f"{' and '.join(missing)} not on this machine, and not installed ({said}): add "
            f"`apt-get install -y {names}` to what makes its image, or write mode: COPY"
        )
    if not device.exists():
        raise FuseError(
            f"this machine has no {device}: its kernel has no FUSE (modprobe fuse), or it is a "
            f"container without --device {device} --cap-add SYS_ADMIN; or write mode: COPY"
        )
    rclone = str(shutil.which("rclone", path=path))
    words = run([rclone, "version"], _ASK_S).stdout
    found = re.search(r"rclone v(\d+)\.(\d+)", words)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < OLDEST:
        named = found[0] if found else f"{rclone}, which names no version,"
        wanted = ".".join(map(str, OLDEST))
        raise FuseError(f"{named} is too old: have one of v{wanted} or newer in the image")
    fusermount = shutil.which("fusermount3", path=path) or shutil.which("fusermount", path=path)
    others = _others(run)
    if container and not others:
        raise FuseError(
            f"what a plain user mounts cannot be seen in a container: add the line {OTHERS} to "
            f"{CONF} of the machine's image, or write mode: COPY"
        )
    return Programs(rclone, str(fusermount), others, version)


def _missing(path: str) -> list[str]:
    """Packages, by Debian's names."""
    found = {name: shutil.which(name, path=path) for name in _PACKAGES}
    found["fusermount3"] = found["fusermount3"] or shutil.which("fusermount", path=path)
    return [_PACKAGES[name] for name, where in found.items() if not where]


def _install(packages: Sequence[str], path: str, run: Run) -> str:
    """Why it could not be done; else nothing."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get", path=path):
        # cloud-init or unattended-upgrades may be at it too
        apt = [*sudo, "apt-get", "-o", "DPkg::Lock::Timeout=120", "-qq"]
        commands = [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *packages]]
    elif shutil.which("dnf", path=path):
        commands = [[*sudo, "dnf", "-q", "-y", "install", *packages]]
    else:
        return "neither apt-get nor dnf is here"
    for command in commands:
        done = run(command, _INSTALL_S)
        if done.returncode and command is commands[-1]:
            return f"{' '.join(command[len(sudo) :][:1])}: {_last(done.stderr or done.stdout)}"
    return ""


def _others(run: Run) -> bool:
    """Whether a mount of ours may be seen by other users; a plain user's may where root said so."""
    if os.geteuid() == 0 or _allowed():
        return True
    run(["sudo", "-n", "sh", "-c", f"echo {OTHERS} >> {CONF}"], _ASK_S)
    return _allowed()


def _allowed() -> bool:
    try:
        return OTHERS in map(str.strip, CONF.read_text(encoding="utf-8").splitlines())
    except OSError:
        return False


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300] or "it says nothing"


def is_mounted(folder: Path) -> bool:
    """Asks the kernel, and not whoever serves the mount, who may be dead."""
    return Path(os.path.realpath(folder.parent)) / folder.name in mounts_seen()


def unmount(fusermount: str, folder: Path) -> str:
    """Detach it at once, in use or not; why not, or nothing. Who serves it has been killed."""
    while is_mounted(folder):  # as often as it was mounted there
        done = ask([fusermount or "fusermount3", "-uz", str(folder)], _ASK_S)
        if done.returncode:
            return _last(done.stderr)
    return ""
