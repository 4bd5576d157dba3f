"""What CONTRIBUTING.md says to type works."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import spotd
from spotd.store.schema import REVISIONS

ROOT = Path(spotd.__file__).parent.parent


def test_a_new_revision_is_made_as_described(tmp_path: Path) -> None:
    """In a copy, because it writes a file beside the others."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=ignored)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = re.findall(r"^ *\$ alembic (.*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        alembic = Path(sys.executable).with_name("alembic")
        subprocess.run([alembic, *shlex.split(line)], cwd=tmp_path, check=True)
    [made] = (tmp_path / "migrations" / "versions").glob("0042_*.py")
    assert f"down_revision = '{REVISIONS[-1]}'" in made.read_text()
