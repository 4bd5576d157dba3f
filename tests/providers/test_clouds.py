"""The table of clouds is the only list of them."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import get_args

import providers.clouds
import spotd
import trainer
from providers.clouds import CLOUD_OF_SCHEME, CLOUDS, CloudName

ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]


def test_the_table_has_each_name_of_the_type() -> None:
    assert tuple(CLOUDS) == get_args(CloudName)
    assert {cloud.name for cloud in CLOUD_OF_SCHEME.values()} == set(CLOUDS)


def test_the_factories_of_each_cloud_exist() -> None:
    for cloud in CLOUDS.values():
        for target in (cloud.adapter, cloud.issuer):
            module, name = target.split(":")
            assert callable(getattr(import_module(module), name))
        import_module(cloud.sdk)


def lists_clouds(path: Path) -> bool:
    """Whether the code, not its prose, has a sequence or a set of all clouds' names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            words = {word.value for word in node.elts if isinstance(word, ast.Constant)}
            if words >= set(CLOUDS):
                return True
    return False


def test_no_other_module_lists_the_clouds() -> None:
    listing = [path for root in ROOTS for path in root.rglob("*.py") if lists_clouds(path)]
    assert listing == [Path(providers.clouds.__file__)]
