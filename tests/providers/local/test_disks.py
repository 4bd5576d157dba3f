"""Deleting a machine's disk unmounts what was mounted there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local import disks
from tests.fixtures.waiting import wait_until

USER = "nobody"  # root runs the test as this ordinary user


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of that user's."""
    with tempfile.TemporaryDirectory(prefix="spotd-disks-") as name:
        if os.geteuid() == 0:
            os.chown(name, pwd.getpwnam(USER).pw_uid, -1)
        yield Path(name)


def as_user(*argv: str | Path) -> list[str]:
    drop = ["setpriv", "--reuid", USER, "--clear-groups", "--"] if os.geteuid() == 0 else []
    return [*drop, *map(str, argv)]


def test_a_dead_mount_of_an_ordinary_user_is_no_hindrance(folder: Path) -> None:
    """A FUSE mount whose program was killed with the machine: its mount point raises ENOTCONN."""
    point = folder / "machine" / "a bucket"
    subprocess.run(as_user("mkdir", "-p", point, folder / "source"), check=True)
    rclone = shutil.which("rclone")
    assert rclone is not None
    command = as_user(rclone, "--config", "/dev/null", "mount", folder / "source", point)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    with subprocess.Popen(command, env=environ) as mount:
        try:
            mounts = Path("/proc/self/mountinfo")
            wait_until("the mount", lambda: str(folder) in mounts.read_text())
        finally:
            mount.kill()
    shutil.copy(disks.__file__, folder / "disks.py")
    (folder / "disks.py").chmod(0o644)
    code = "import pathlib, sys, disks; disks.discard(pathlib.Path(sys.argv[1]))"
    python = shutil.which("python3", path="/usr/bin:/bin")
    assert python is not None
    subprocess.run(
        as_user(python, "-c", code, folder / "machine"),
        cwd=folder,
        env=environ | {"PYTHONPATH": str(folder)},
        check=True,
    )
    assert not (folder / "machine").exists()
    assert str(folder) not in mounts.read_text()
