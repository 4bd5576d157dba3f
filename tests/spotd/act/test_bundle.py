"""The bundle: all that the agent needs, the same bytes every time, found without importing."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trainer
from spotd.act import bundle
from spotd.act.bundle import build_bundle

BUILD = """
import sys
from spotd.act.bundle import build_bundle
print(build_bundle().digest)
print(sorted(name for name in sys.modules if name.split(".")[0] == "trainer"))
"""


def names() -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(build_bundle().data)).namelist())


def test_the_same_bytes_in_another_process_that_never_imports_the_trainer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    digest, imported = done.stdout.splitlines()
    found = build_bundle()
    assert digest == found.digest == hashlib.sha256(found.data).hexdigest()
    assert imported == "[]"


def test_what_is_in_it() -> None:
    assert {
        "__main__.py",
        "trainer/__init__.py",
        "trainer/node.py",
        "trainer/fence.py",
        "trainer/agent/main/agent.py",
        "spotd/__init__.py",
        "spotd/wire/__init__.py",
        "providers/base.py",
        "providers/stores/local.py",
        "providers/aws/notice.py",
    } <= names()
    assert not [name for name in names() if not name.endswith(".py")]


def test_nothing_of_the_control_box_is_in_it() -> None:
    ours = [name for name in names() if name.startswith("spotd/")]
    assert [n for n in ours if n != "spotd/__init__.py" and not n.startswith("spotd/wire/")] == []
    assert "trainer/reference/state.py" not in names(), "it needs torch"


def test_every_module_of_the_agent_is_in_it() -> None:
    folder = Path(trainer.__file__).parent / "agent"
    assert {f"trainer/agent/{path.name}" for path in folder.glob("*.py")} <= names()


def test_the_saver_runs_from_it(tmp_path: Path) -> None:
    """By a Python that has xxhash, and nothing else of ours."""
    path = tmp_path / "node.pyz"
    path.write_bytes(build_bundle().data)
    code = f"import sys; sys.path.insert(0, {str(path)!r}); import trainer.saver.__main__ as found"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}; print(found.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.startswith(str(path))


def test_another_content_is_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_bundle()
    monkeypatch.setattr(bundle, "_MAIN", bundle._MAIN + "\n")
    assert build_bundle().digest != before.digest


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "SOURCES", ("no_such_package/x.py",))
    with pytest.raises(FileNotFoundError, match="no_such_package"):
        build_bundle()
