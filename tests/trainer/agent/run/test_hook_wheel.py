"""`spotd_hook` in an environment of the job's own, by a wheel that the machine makes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from spotd.act.bundle import build_bundle
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.agent.node import Node
from tests.trainer.rig import ROOT
from trainer.agent.run.hook_wheel import (
    SAVER_REQUIREMENTS,
    build_hook_wheel,
    hook_wheel_path,
    write_hook_wheel,
)

IMPORT = "import spotd_hook, spotd_hook.results as it; print(it.__file__)"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """The Python of a new environment that has nothing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


def test_pip_installs_it_without_a_registry(tmp_path: Path, venv: Path) -> None:
    wheel = write_hook_wheel(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", str(venv), "--isolated"]
    subprocess.run([*pip, "install", "-q", "--no-index", str(wheel)], check=True, timeout=LIMIT_S)
    # Without our variables and in isolated mode: only what is installed.
    command = [str(venv), "-I", "-c", IMPORT]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert Path(said.stdout.strip()).is_relative_to(tmp_path / "venv")
    checked = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_python_imports_it_as_it_is(tmp_path: Path, venv: Path) -> None:
    wheel = write_hook_wheel(tmp_path)
    command = [str(venv), "-c", IMPORT]
    env = {"PYTHONPATH": str(wheel)}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert said.stdout.startswith(str(wheel))


def test_its_version_is_its_content(tmp_path: Path) -> None:
    wheel = write_hook_wheel(tmp_path)
    before = wheel.stat().st_mtime_ns
    assert write_hook_wheel(tmp_path) == wheel == hook_wheel_path(tmp_path)
    assert wheel.stat().st_mtime_ns == before, "it is not written again"
    assert wheel.read_bytes() == build_hook_wheel()
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    sources = (ROOT / "trainer" / "hook").rglob("spotd_hook/*.py")
    assert packed == {f"spotd_hook/{path.name}" for path in sources}


def test_its_extra_asks_for_what_the_box_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*SAVER_REQUIREMENTS} <= {*extras["optional-dependencies"]["torch"]}


@pytest.mark.parametrize("from_bundle", [True, False])
def test_a_job_installs_it_from_where_the_variable_says(
    node: Node, venv: Path, tmp_path: Path, *, from_bundle: bool
) -> None:
    """In `setup`, by the program's own environment, whatever the agent was started from."""
    if from_bundle:
        bundle = tmp_path / "spot-node.pyz"
        bundle.write_bytes(build_bundle().data)
        node = replace(node, program=(sys.executable, str(bundle)), environ={"PYTHONPATH": ""})
    pip = f"{sys.executable} -m pip --python {venv} --isolated install -q --no-index"
    with node:
        node.run()
        node.start(setup=f'{pip} "$SPOTD_HOOK"', run=f"{venv} -I -c '{IMPORT}'")
        exited = node.wait_for(wire.EXITED, LIMIT_S)
        assert exited.data["code"] == 0, node.log("setup") + node.log()
        assert str(venv.parents[1]) in node.log()
