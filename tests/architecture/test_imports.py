"""The import contracts see what they are there for: each is broken once, in a copy of the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from grimp import ImportGraph, build_graph

import spotd
from providers.clouds import CLOUDS
from tests.architecture.test_purity import PURE, offences

ROOT = Path(spotd.__file__).parent.parent
# An import where it does not belong, and the contract that forbids it.
PLANTED = {
    ("spotd/store/rows.py", "spotd.daemon.pool"): "the daemon and its doors above the loop",
    ("spotd/planner/planner.py", "spotd.daemon.pool"): "the daemon and its doors above the loop",
    (
        "spotd/planner/planner.py",
        "spotd.daemon.sdnotify",
    ): "the daemon and its doors above the loop",
    (
        "spotd/planner/offers/cooldowns.py",
        "spotd.base.log",
    ): "the daemon and its doors above the loop",
    ("spotd/domain/job.py", "spotd.base.errors"): "the daemon and its doors above the loop",
    ("spotd/reaper/sweep.py", "spotd.store.interface"): "spot-reaper works with the daemon and its",
    ("spotd/reaper/notify.py", "spotd.act.alerts"): "spot-reaper works with the daemon and its",
    ("providers/base.py", "spotd.wire"): "providers know nothing of spotd or trainer",
    ("providers/stores/base.py", "trainer.fence"): "providers know nothing of spotd or trainer",
    ("spotd/act/link.py", "trainer.reference.world"): "spotd and trainer meet at wire alone",
    (
        "trainer/hook/spotd_hook/agent_client.py",
        "spotd.wire",
    ): "what training programs import is theirs",
    ("trainer/train.py", "spotd.security.secrets"): "of spotd the trainer knows wire alone",
    ("trainer/reference/world.py", "spotd.base.errors"): "of spotd the trainer knows wire alone",
    (
        "trainer/reference/world.py",
        "providers.local.cloud_state",
    ): "the trainer knows nothing of the local cloud",
}


def lint(folder: Path) -> str:
    """What the import linter says of the tree in `folder`, as one line."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is linted."""
    for package in ("spotd", "providers", "trainer", "migrations"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def plant(path: Path, module: str) -> None:
    with path.open("a") as file:
        file.write(f"\nimport {module}\n")


def test_an_import_where_it_does_not_belong_is_seen(tree: Path) -> None:
    for path, module in PLANTED:
        plant(tree / path, module)
    said = lint(tree)
    summary, found = said.split("Broken contracts", 1)
    assert "3 kept" in summary  # the order within three folders
    for (path, module), contract in PLANTED.items():
        importer = path.removesuffix(".py").replace("/", ".")
        assert re.search(rf"{re.escape(contract)}[^:]* BROKEN", summary), summary
        assert f"{importer} -> {module} (l." in found, found


def test_two_modules_that_need_each_other_are_seen(tree: Path) -> None:
    plant(tree / "spotd/cli/render.py", "spotd.cli.run")
    plant(tree / "providers/stores/base.py", "providers.stores.s3")
    plant(tree / "trainer/fence.py", "trainer.reference.compare")
    said = lint(tree)
    assert "no two modules of a package need each other BROKEN" in said
    for package in ("spotd.cli", "providers.stores", "trainer"):
        assert f"No cycles are allowed in {package}." in said


def crossings(graph: ImportGraph) -> list[tuple[str, ...]]:
    """The imports by which one provider's folder reaches another's."""
    chains = (
        graph.find_shortest_chain(f"providers.{one}", f"providers.{other}", as_packages=True)
        for one, other in permutations(("local", *CLOUDS), 2)
    )
    return [chain for chain in chains if chain]


def test_one_clouds_adapter_knows_nothing_of_anothers() -> None:
    """Here and not among the contracts, so that the table of clouds is their only list."""
    graph = build_graph("providers", cache_dir=None)
    assert crossings(graph) == []
    chain = ("providers.aws.notice", "providers.dollars", "providers.local.cloud_state")
    for importer, imported in pairwise(chain):
        graph.add_import(importer=importer, imported=imported)
    assert chain in crossings(graph)


def test_a_new_module_has_to_find_its_place(tree: Path) -> None:
    (tree / "spotd" / "misplaced.py").touch()
    assert "misplaced" in lint(tree)


def test_chance_in_a_plan_or_a_phase_is_seen() -> None:
    for path in (ROOT / "spotd/domain/plan.py", ROOT / "spotd/domain/phase.py"):
        assert path in PURE
        assert offences(path.read_text() + "\nimport random\n") == ["random"]
