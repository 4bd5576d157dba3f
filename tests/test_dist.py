"""The archives: what they hold is checked, and that two builds are the same."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from spotd.act.bundle import sources
from tests import dist


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist and a wheel, each built twice and found equal."""
    return dist.build_twice(tmp_path_factory.mktemp("dist"))


def test_the_wheel_has_what_machines_and_the_daemon_need(made: tuple[Path, Path]) -> None:
    assert dist.missing(made[1]) == []
    with zipfile.ZipFile(made[1]) as archive:
        names = {*archive.namelist()}
    for name in sources():
        assert name in names or name.replace("trainer/hook/", "") in names, name
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


def test_the_sdist_names_nobody(made: tuple[Path, Path]) -> None:
    with tarfile.open(made[0]) as archive:
        members = archive.getmembers()
    assert {(member.uid, member.uname, member.mode) for member in members} == {(0, "", 0o644)}
    assert {member.mtime for member in members} == {dist.epoch()}


def test_a_wheel_without_migrations_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    poor = tmp_path / "spotd-0-py3-none-any.whl"
    with zipfile.ZipFile(made[1]) as archive, zipfile.ZipFile(poor, "w") as copy:
        for name in archive.namelist():
            if not name.startswith("migrations/"):
                copy.writestr(name, archive.read(name))
    assert set(dist.missing(poor)) == {need for need in dist.NEEDED if need.startswith("migr")}
    with pytest.raises(dist.DistError, match="lacks migrations"):
        dist.smoke(poor, tmp_path / "installed", offline=True)
