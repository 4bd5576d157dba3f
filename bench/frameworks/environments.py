"""The frameworks, each in a version of its own, and the virtual environments that they run in."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "frameworks"
PROGRAMS = "bench.frameworks.programs"
_TORCH = ("numpy", "obstore", "torch", "xxhash")
_TRANSFORMERS = ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2", "peft")

_TRL = (*_TRANSFORMERS, "trl", "datasets", "tokenizers")


@dataclass(frozen=True)
class Framework:
    """A framework in a version: what is installed, and the program that trains with it.

    `modules` are imported once, before the runs are forked. `directory`: the program writes
    checkpoints of its own to a folder, which spotd saves.
    """

    name: str
    packages: tuple[str, ...]
    program: str
    settings: str  # the name in bench/frameworks/options.py
    modules: tuple[str, ...] = ()
    shown: str = ""  # the package whose version is told
    environment: str = ""  # shared with others; by default its name
    directory: bool = False


FRAMEWORKS = (
    Framework("loop", ("torchdata",), "loop", "loop", ("torchdata.stateful_dataloader",), "torch"),
    Framework(
        "transformers-oldest",
        ("transformers==4.57.*", "accelerate==1.10.*"),
        "transformers_trainer",
        "transformers",
        _TRANSFORMERS,
        "transformers",
    ),
    Framework(
        "transformers-newest",
        ("transformers<6", "accelerate<2"),
        "transformers_trainer",
        "transformers",
        _TRANSFORMERS,
        "transformers",
    ),
    Framework(
        "lightning-oldest",
        ("lightning==2.5.0.post0", "torchdata"),
        "lightning_trainer",
        "lightning",
        ("lightning", "torchdata.stateful_dataloader"),
        "lightning",
    ),
    Framework(
        "lightning-newest",
        ("lightning<3", "torchdata"),
        "lightning_trainer",
        "lightning",
        ("lightning", "torchdata.stateful_dataloader"),
        "lightning",
    ),
    Framework(
        "accelerate",
        ("accelerate<2",),
        "accelerate_loop",
        "accelerate",
        ("accelerate",),
        "accelerate",
    ),
    Framework("trl-sft", ("trl<2",), "trl_trainer", "trl_sft", _TRL, "trl", "trl"),
    Framework("trl-dpo", ("trl<2",), "trl_trainer", "trl_dpo", _TRL, "trl", "trl"),
    Framework(
        "deepspeed",
        ("deepspeed",),
        "deepspeed_engine",
        "deepspeed",
        ("deepspeed",),
        "deepspeed",
        directory=True,
    ),
)
BY_NAME = {one.name: one for one in FRAMEWORKS}


def python_of(framework: Framework, folder: Path = FOLDER) -> Path:
    """Return the Python of the framework's environment; makes it the first time.

    torch and the saver's packages come from the environment that runs this. Raises
    subprocess.CalledProcessError.
    """
    place = folder / (framework.environment or framework.name)
    python = place / "bin" / "python"
    ready = place / ".ready"
    wanted = " ".join(framework.packages)
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {wanted} into {place}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = place / "lib" / version / "site-packages" / "shared.pth"
    shared.write_text(f"{sysconfig.get_path('purelib')}\n")
    install = [str(python), "-m", "pip", "install", "-q", "--upgrade", "--no-warn-conflicts"]
    if framework.name == "deepspeed":  # it builds with the torch that is here
        install.append("--no-build-isolation")
    env = {**os.environ, "DS_BUILD_OPS": "0"}
    subprocess.run([*install, *framework.packages], check=True, env=env)
    ready.write_text(wanted)
    return python


def version_of(framework: Framework, python: Path) -> str:
    """Return the version of the framework's package in this environment."""
    code = f"from importlib.metadata import version; print(version({framework.shown!r}))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return f"{framework.shown} {done.stdout.strip()}"


def preloaded(framework: Framework) -> tuple[str, ...]:
    """Return the modules that are imported before the runs are forked."""
    return (*_TORCH, *framework.modules)


def program_of(framework: Framework) -> str:
    """Return the module of its program."""
    return f"{PROGRAMS}.{framework.program}"
