"""Programs that mounts need: found, installed, or named in an error that tells how to install
them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trainer.agent.data import fuse
from trainer.agent.data.fuse import FuseError, Programs, ensure_programs


@dataclass
class Machine:
    """A folder of programs. The installer creates `mends` and prints `said`."""

    folder: Path
    mends: tuple[str, ...] = ()
    said: str = ""
    version: str = "rclone v1.60.1-DEV"
    ran: list[list[str]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": str(self.folder)}

    def has(self, *names: str) -> None:
        for name in names:
            (self.folder / name).write_text("#!/bin/sh\n")
            (self.folder / name).chmod(0o700)

    def run(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        del timeout_s
        self.ran.append(list(argv))
        if argv[-1] == "version":
            return subprocess.CompletedProcess(argv, 0, f"{self.version}\n- os\n", "")
        if "install" in argv and self.said:
            return subprocess.CompletedProcess(argv, 100, "", f"E: first\n{self.said}\n")
        if "install" in argv:
            self.has(*self.mends)
        return subprocess.CompletedProcess(argv, 0, "", "")

    def find(self, *, container: bool = False, **more: str) -> Programs:
        return ensure_programs(
            {**self.environ, **more}, container=container, run=self.run, device=self.folder
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(fuse, "CONF", tmp_path / "fuse.conf")
    (tmp_path / "bin").mkdir()
    return Machine(tmp_path / "bin")


def test_what_is_there_is_taken_and_nothing_installed(machine: Machine) -> None:
    machine.has("rclone", "fusermount3", "apt-get")
    found = machine.find()
    assert found.rclone == str(machine.folder / "rclone")
    assert [argv[-1] for argv in machine.ran if "install" in argv] == []


def test_what_is_missing_is_installed(machine: Machine) -> None:
    machine.has("apt-get")
    machine.mends = ("rclone", "fusermount3")
    machine.find()
    [install] = [argv for argv in machine.ran if "install" in argv]
    assert install[-2:] == ["rclone", "fuse3"]


def test_what_cannot_be_installed_is_named_with_the_line_of_the_image(machine: Machine) -> None:
    machine.has("apt-get", "rclone")
    machine.said = "E: Unable to locate package fuse3"
    with pytest.raises(FuseError) as error:
        machine.find()
    assert str(error.value) == (
        "fuse3 not on this machine, and could not be installed (apt-get: E: Unable to locate "
        "package fuse3): add `apt-get install -y fuse3` to the setup of its image, "
        "or use mode: COPY"
    )


def test_on_somebodys_own_computer_nothing_is_installed(machine: Machine) -> None:
    machine.has("apt-get")
    with pytest.raises(FuseError, match="nothing is installed on a local cloud"):
        machine.find(SPOTD_LOCAL_INSTANCE="i-1")
    assert machine.ran == []


def test_an_old_rclone_and_a_kernel_without_fuse_are_told(machine: Machine) -> None:
    machine.has("rclone", "fusermount3")
    machine.version = "rclone v1.50.2"
    with pytest.raises(FuseError, match=r"rclone v1\.50 is too old: .* v1\.53"):
        machine.find()
    with pytest.raises(FuseError, match=r"has no .*/none: .*modprobe fuse"):
        ensure_programs(
            machine.environ, container=False, run=machine.run, device=machine.folder / "none"
        )


def test_a_plain_users_mount_is_seen_in_a_container_where_root_allows_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has("rclone", "fusermount3")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert not machine.find().allow_other
    with pytest.raises(FuseError, match="user_allow_other"):
        machine.find(container=True)
    fuse.CONF.write_text("# user_allow_other\n user_allow_other\n")
    assert machine.find(container=True).allow_other


def test_the_real_programs_are_found_here() -> None:
    assert shutil.which("rclone"), "rclone is missing: tests/system-packages installs it"
    assert Path(ensure_programs({"PATH": "/usr/bin:/bin"}, container=True).fusermount).exists()
