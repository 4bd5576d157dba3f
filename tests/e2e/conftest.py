"""What all runs of a session share, made once however many workers there are: the installed wheel,
and the reference that their final states are compared with."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.installed import install
from tests.e2e.rig import Reference, load_reference, make_reference


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One worker at a time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the whole session, not of one worker."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "e2e"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def python(common: Path) -> Path:
    """The interpreter of an environment that has spotd from a wheel, and not the checkout."""
    with _alone(common):
        mark = common / "python"
        if not mark.exists():
            folder = common / "installed"
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that was interrupted
            folder.mkdir()
            mark.write_text(str(install(folder)))
        return Path(mark.read_text())


@pytest.fixture(scope="session")
def reference(common: Path, python: Path) -> Reference:
    """The job, left alone."""
    with _alone(common):
        path = common / "reference.json"
        if not path.exists():
            folder = common / "reference"
            shutil.rmtree(folder, ignore_errors=True)
            make_reference(python, folder).save(path)
        return load_reference(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    """For one box: outside the checkout, and short, because sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="spotd-e2e-"))
    yield path
    shutil.rmtree(path)
