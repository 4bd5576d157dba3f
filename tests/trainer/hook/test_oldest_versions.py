"""The oldest supported transformers and Lightning, installed for real (soak)."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.trainer.hook.trainer_versions import recorded

ROOT = Path(__file__).parents[3]
# Each with what it needs in another version than the newest.
OLDEST = {
    "transformers 4.57.1": ("huggingface_hub<1", "tokenizers<0.23", "accelerate==1.10.0"),
    "lightning 2.5.0": ("setuptools<81",),
}
TESTS = {
    "transformers 4.57.1": ("test_hf_whole_step.py", "test_hf_arguments.py", "test_hf.py"),
    "lightning 2.5.0": ("test_lightning_whole_batch.py", "test_lightning_arguments.py"),
}
_SHOW = (
    "import json; from tests.trainer.hook.trainer_versions import installed;"
    "print(json.dumps(installed()))"
)


@pytest.mark.soak
@pytest.mark.parametrize("version", OLDEST)
def test_an_oldest_version(tmp_path: Path, version: str) -> None:
    """Its arguments are as recorded, and its runs keep what they keep without spotd."""
    python = install(tmp_path / "venv", version)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        [python, "-c", _SHOW], env=env, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert json.loads(shown.stdout.splitlines()[-1])[version] == recorded()[version]
    files = [str(Path(__file__).with_name(name)) for name in TESTS[version]]
    command = [python, "-m", "pytest", "-q", "-n", "1", "--soak", *files]
    assert subprocess.run(command, env=env, cwd=ROOT, check=False).returncode == 0


def install(folder: Path, version: str) -> str:
    """Make an environment with this version before all that is installed here."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    name, _, number = version.partition(" ")
    packages = [f"{name}=={number}", *OLDEST[version]]
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(own, "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(python)
