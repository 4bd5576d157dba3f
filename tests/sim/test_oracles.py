"""Every invariant has somebody who judges it."""

from __future__ import annotations

import inspect
import re

import pytest

import tests.sim.oracles
from tests.sim.faults import Faults
from tests.sim.kernel import Kernel
from tests.sim.oracles import ORACLES, Oracles
from tests.sim.tiers import memory
from tests.sim.world import SimWorld

# Of facts about reliability; T1 is a test of whole runs, and C2 has no rule in the product.
NAMED = frozenset(
    ("L1", "L1c", "L2", "L3", "S1", "S2", "S3", "F1", "F2", "C1", "D1", "D2", "G1", "B1", "B2")
    + ("R1", "P1", "P2", "P3", "A1", "X1", "Q1")
)


@pytest.fixture
def oracles() -> Oracles:
    kernel = Kernel()
    world = SimWorld(kernel, Faults(1, {}))
    with memory() as open_store:
        world.store = open_store(lambda: kernel.now_us, world.notify)
    return Oracles(world)


def test_every_invariant_is_named_and_told_of() -> None:
    assert ORACLES.keys() == NAMED
    page = tests.sim.oracles.__doc__ or ""
    told = set(re.findall(r"\b([A-Z]\d[a-z]?)\b", page))
    assert told == NAMED | {"T1", "C2"}


@pytest.mark.parametrize("invariant", sorted(NAMED))
def test_every_invariant_has_its_oracle(oracles: Oracles, invariant: str) -> None:
    for name in ORACLES[invariant]:
        source = inspect.getsource(inspect.getmodule(getattr(oracles, name)) or tests.sim.oracles)
        assert f'"{invariant}"' in source, f"{name} does not judge {invariant}"
