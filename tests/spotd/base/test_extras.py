"""Hints name packages that can be had, never our own."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import spotd
from spotd.base.extras import install_command

ROOT = Path(spotd.__file__).parent.parent
# Not this file's own pattern, nor what the changelog says of the past.
OURS = re.compile(r"pip3? install[^\n|]*?[\s'\"]spotd(?:[-_]hook)?(?:\[|['\"\s]|$)", re.MULTILINE)


@pytest.mark.parametrize(
    ("extras", "packages"),
    [
        (("aws",), {"boto3", "obstore"}),
        (("postgres",), {"psycopg[binary]"}),
        (("torch", "demo"), {"torch", "numpy", "xxhash", "obstore", "moto[s3,server]"}),
    ],
)
def test_the_packages_of_an_extra(extras: tuple[str, ...], packages: set[str]) -> None:
    pip, install, *names = shlex.split(install_command(*extras))
    assert (pip, install) == ("pip", "install")
    assert {re.split(r"[<>=]", name)[0] for name in names} == packages
    assert all(re.search("[<>=]", name) for name in names), "with their versions"


def test_nobody_is_sent_to_a_registry_for_spotd() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    assert len(paths) > 1000
    found = {}
    for path in paths:
        if path.suffix in {".png", ".gz"} or path == Path(__file__) or not path.is_file():
            continue
        if matches := OURS.findall(path.read_text(errors="replace")):
            found[str(path.relative_to(ROOT))] = matches
    assert found == {}


@pytest.mark.parametrize(
    "line",
    ["pip install spotd", "pip install 'spotd[torch]'", "pip install -q spotd-hook && x"],
)
def test_such_a_line_is_seen(line: str) -> None:
    assert OURS.search(line)
    assert not OURS.search('pip install "$SPOTD_HOOK" torch; pip install ./spotd-0.1.0.whl')
