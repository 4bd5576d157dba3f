"""The table of clouds is the only list of them, and what it names exists."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import providers.clouds
import spotd
import trainer
from providers.bill_export import BillExport
from providers.cloud_facts import Cloud, alternatives, load
from providers.clouds import CLOUD_OF_SCHEME, CLOUDS, NAMES, STORE_OF_SCHEME, STORES
from providers.section import FederateSection, LendSettings, NetworkedProvider
from spotd.act.bundle import sources

ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]

each = pytest.mark.parametrize("cloud", CLOUDS.values(), ids=list(CLOUDS))


def test_each_folder_describes_its_own_cloud() -> None:
    assert [cloud.name for cloud in CLOUDS.values()] == [*NAMES]
    assert {cloud.name for cloud in CLOUD_OF_SCHEME.values()} == set(STORES)
    assert {store.scheme for store in STORES.values()} == set(STORE_OF_SCHEME)
    assert len({cloud.colour for cloud in CLOUDS.values()}) == len(CLOUDS)


@each
def test_what_the_facts_name_exists(cloud: Cloud) -> None:
    assert callable(load(cloud.adapter))
    assert issubclass(load(cloud.section), NetworkedProvider)
    if cloud.sdk:
        import_module(cloud.sdk)
    if cloud.node_role_key:
        assert cloud.node_role_key in load(cloud.section).model_fields
    assert {option.key for option in cloud.setup.account} <= load(cloud.section).model_fields.keys()
    if cloud.bill:
        assert isinstance(load(cloud.bill.export), BillExport)


@each
def test_what_the_facts_of_a_store_name_exists(cloud: Cloud) -> None:
    if (store := cloud.store) is None:
        return
    assert all(callable(load(name)) for name in (store.adapter, store.settings, store.issuer))
    assert issubclass(load(store.lend), LendSettings)
    assert issubclass(load(store.federate), FederateSection)
    for other, arguments in store.trusts.items():
        identity = CLOUDS[other].identity
        assert identity is not None
        assert {*arguments} <= {*identity.arguments, "AUDIENCE"}


@each
def test_machines_have_what_they_need_of_each_cloud(cloud: Cloud) -> None:
    assert {f"{module.replace('.', '/')}.py" for module in cloud.node_modules} <= {*sources()}
    if cloud.identity:
        proofs = [name for name in (cloud.identity.proof, cloud.identity.signed) if name]
        assert all(callable(load(name)) for name in proofs)
        assert {name.partition(":")[0] for name in proofs} <= {*cloud.identity.modules}


@each
@pytest.mark.parametrize("module", ["apply", "notice", "policy", "script", "setup", "terraform"])
def test_the_modules_that_are_loaded_by_name_are_there(cloud: Cloud, module: str) -> None:
    assert (Path(providers.clouds.__file__).parent / cloud.name / f"{module}.py").is_file()


def lists_clouds(path: Path) -> bool:
    """Whether the code, not its prose, has a sequence, a set or a table of several clouds."""
    for node in ast.walk(ast.parse(path.read_text())):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        words = {word.value for word in items if isinstance(word, ast.Constant)}
        if words >= set(CLOUDS):
            return True
    return False


def test_no_other_module_lists_the_clouds() -> None:
    listing = [path for root in ROOTS for path in root.rglob("*.py") if lists_clouds(path)]
    assert listing == [Path(providers.clouds.__file__)]


def test_names_are_joined_as_a_sentence_does() -> None:
    assert alternatives(["a", "b", "c"]) == "a, b or c"
    assert alternatives(["a", "b"], "and") == "a and b"
    assert alternatives(["a"]) == "a"
