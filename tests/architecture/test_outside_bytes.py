"""Bytes from outside are data and never code: no checkpoint is unpickled, no text evaluated, no
archive unpacked wherever it wants. And the control box reads no tensors at all."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import spotd

ROOT = Path(spotd.__file__).parent.parent
PACKAGES = ("spotd", "providers", "trainer", "migrations", "examples")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))

# Each of these can run code that stands in what it reads.
MODULES = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "joblib",
        "marshal",
        "shelve",
        "jsonpickle",
    }
)
CALLS = frozenset({"eval", "exec", "compile", "__import__", "execfile"})
# Of a library, by its last name and the attribute that is called.
UNSAFE = frozenset(
    {("yaml", name) for name in ("load", "load_all", "full_load", "unsafe_load", "unsafe_load_all")}
    | {("export", "load"), ("jit", "load"), ("package", "PackageImporter")}
)
# Allowed with this keyword alone, and only with this value.
GUARDED = {
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
}


def offences(source: str) -> list[str]:
    """What may not be done with bytes from outside, found in `source`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in MODULES]
            found += [
                f"{a.name} under another name"
                for a in node.names
                if a.asname and a.name in ("torch", "yaml", "numpy") and a.asname != "np"
            ]
        elif isinstance(node, ast.ImportFrom) and node.module:
            top, *_ = node.module.split(".")
            found += [node.module] if top in MODULES else []
            if top in ("torch", "yaml", "numpy"):
                found += [f"{node.module}.{a.name}" for a in node.names if "load" in a.name]
        elif isinstance(node, ast.Call):
            found += _judge(node)
    return found


def _judge(node: ast.Call) -> list[str]:
    called = node.func
    if isinstance(called, ast.Name):
        return [f"{called.id}()"] if called.id in CALLS else []
    if not isinstance(called, ast.Attribute):
        return []
    of = called.value
    owner = getattr(of, "id", None) or getattr(of, "attr", "")
    keywords = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
    name = f"{owner}.{called.attr}()"
    if (owner, called.attr) in UNSAFE:
        return [name]
    if (owner, called.attr) in GUARDED:
        keyword, value = GUARDED[owner, called.attr]
        return [] if keywords.get(keyword) is value else [f"{name} without {keyword}={value}"]
    if called.attr in ("extractall", "extract"):
        # Python 3.10 has no filter: `_safe_members` is ours, with tests of its own beside it.
        members = {k.arg: getattr(getattr(k.value, "func", None), "id", "") for k in node.keywords}
        safe = keywords.get("filter") == "data" or members.get("members") == "_safe_members"
        return [] if safe else [f"{name} without a filter"]
    return []


def test_bytes_are_data() -> None:
    found = {str(path.relative_to(ROOT)): offences(path.read_text()) for path in SOURCES}
    assert {name: bad for name, bad in found.items() if bad} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import cloudpickle as cp",
        "from marshal import loads",
        "from torch import load",
        "import torch as t",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "torch.export.load(path)",
        "torch.jit.load(path)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "np.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "tar.extractall(folder)",
        "tar.extractall(folder, filter='fully_trusted')",
    ],
)
def test_the_test_would_see_an_offence(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "yaml.safe_load(text)",
        "json.loads(text)",
        "tar.extractall(folder, filter='data')",
        "tar.extractall(folder, members=_safe_members(tar))",
        "re.compile(pattern)",
    ],
)
def test_what_is_safe_is_allowed(source: str) -> None:
    assert offences(source) == []


def test_all_packages_are_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} >= {
        "spotd",
        "providers",
        "trainer",
    }
    assert len(SOURCES) > 200


def test_torch_is_one_whose_own_loader_is_mended() -> None:
    """Before 2.6, and again before 2.10, weights_only ran code (CVE-2025-32434, CVE-2026-24747)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [torch] = [
        needed
        for needed in project["project"]["optional-dependencies"]["torch"]
        if needed.startswith("torch")
    ]
    found = re.search(r">=(\d+)\.(\d+)", torch)
    assert found
    assert (int(found[1]), int(found[2])) >= (2, 10)


def test_the_daemon_loads_no_library_that_reads_checkpoints() -> None:
    program = (
        "import sys, spotd.daemon.daemon, spotd.daemon.command\n"
        "heavy = {'torch', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
