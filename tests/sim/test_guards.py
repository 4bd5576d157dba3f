"""Each layer that keeps machines from leaking, with all the others off; and that a planted bug of a
layer is found for itself, not for what was switched off beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pytest

import spotd.act.effects
import spotd.planner.planner
from spotd.act.effects import EffectContext
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from spotd.domain.states import NodeState
from spotd.planner.rules.apply_observations import settle_observed
from spotd.reaper.sweep import Reaper, SweepReport
from tests.sim.daemon import CloudClient
from tests.sim.oracles.desertion import DesertionOracle
from tests.sim.oracles.waste import WasteOracle
from tests.sim.planted_bugs.bug import put
from tests.sim.planted_bugs.guards import (
    database_first,
    late_record,
    no_doubt,
    no_grace,
    no_quarantine,
)
from tests.sim.planted_bugs.launches import no_sweep
from tests.sim.run import Case, run
from tests.sim.tiers import memory
from trainer.agent.main.deadman import Deadman

Layer = Callable[[ExitStack], None]
LISTINGS = frozenset({"list_misses", "list_stale"})  # what only the sweep makes good


def no_reaper(stack: ExitStack) -> None:
    """spot-reaper was never set up, and so pages nobody."""
    put(stack, Reaper, "go_round", lambda *_: SweepReport())
    put(stack, DesertionOracle, "_judge_pages", lambda *_: None)


def no_deadman(stack: ExitStack) -> None:
    """Agents go on for ever, and so nobody saves before the reaper comes."""
    put(stack, Deadman, "enabled", property(lambda _self: False))
    put(stack, Deadman, "should_power_off", lambda *_, **__: False)
    put(stack, DesertionOracle, "_told_to_end", lambda *_: None)


def every_power_switch(stack: ExitStack) -> None:
    """Every cloud's machines can switch themselves off."""
    begin = CloudClient.__init__

    def able(self: CloudClient, *args: Any) -> None:
        begin(self, *args)
        self.power_off = ("poweroff",)

    put(stack, CloudClient, "__init__", able)


def no_node_states(stack: ExitStack) -> None:
    """A node that is given up is gone at once, and its machine is told nothing."""

    def silent(effect: Effect, world: EffectContext) -> Callable[[], None]:
        return lambda: world.store.nodes.record_acknowledged(
            effect.node.id, EffectKind.TERMINATE, world.clock.now_us()
        )

    def hasty(d: Any) -> None:
        settle_observed(d)
        for node in d.nodes:
            if node.state is NodeState.TERMINATING and node.machine.terminated_at_us:
                d.set_node(node, state=NodeState.GONE)

    rules = (hasty if rule is settle_observed else rule for rule in spotd.planner.planner.RULES)
    put(stack, spotd.planner.planner, "RULES", tuple(rules))
    calls = {**spotd.act.effects._CALLS, EffectKind.TERMINATE: silent}
    put(stack, spotd.act.effects, "_CALLS", calls)


def _play(
    profile: str,
    seeds: Iterable[int],
    *layers: Layer,
    off: frozenset[str] = frozenset(),
    hours: float = 8.0,
) -> tuple[list[str], Counter[str]]:
    """The violations of these seeds, and what there was of everything."""
    found, counts = [], Counter[str]()
    with memory() as open_store, ExitStack() as stack:
        for layer in layers:
            layer(stack)
        if layers:  # each may make orphans; how long they live is judged all the same
            put(stack, WasteOracle, "_judge_sum", lambda _self: None)
        for seed in seeds:
            result = run(Case(seed, profile, hours=hours, off=off), open_store)
            counts += result.counts
            if result.violation is not None:
                found.append(str(result.violation))
    return found, counts


@pytest.mark.parametrize(
    ("profile", "others_off", "off"),
    [
        ("unknown", (no_sweep, no_deadman), LISTINGS),
        ("stubborn", (no_sweep, no_deadman), LISTINGS),
        ("calm", (no_node_states, no_deadman), LISTINGS),
        ("abandoned", (no_deadman,), frozenset()),
        ("abandoned", (no_reaper, every_power_switch), frozenset()),
    ],
    ids=["node states", "node states, stubborn", "sweep", "reaper", "dead-man"],
)
def test_each_leak_killer_stands_alone(
    profile: str, others_off: tuple[Layer, ...], off: frozenset[str]
) -> None:
    found, counts = _play(profile, range(2), *others_off, off=off)
    assert not found
    assert counts["machines"] >= 4
    by_the_reaper, by_themselves = counts["reaped"] > 0, counts["switched_off"] > 0
    if profile == "abandoned":
        assert by_the_reaper is (no_reaper not in others_off), counts
        assert by_themselves is (no_deadman not in others_off), counts


@pytest.mark.parametrize(
    ("profile", "all_off"),
    [("calm", (no_node_states, no_sweep)), ("abandoned", (no_reaper, no_deadman))],
)
def test_without_any_of_them_machines_leak(profile: str, all_off: tuple[Layer, ...]) -> None:
    found, _ = _play(profile, range(2), *all_off)
    assert found
    assert all(text.startswith(("L1", "L3")) for text in found), found


@pytest.mark.parametrize(
    ("profile", "off"),
    [
        ("calm", (no_doubt, late_record)),
        ("slow", (no_doubt, no_grace)),
        ("slow", (no_doubt, database_first)),
        ("restored", (no_quarantine,)),
        ("restored", (no_doubt,)),
    ],
    ids=["its grace", "its order", "its grace, out of order", "its doubt", "its quarantine"],
)
def test_any_one_layer_of_the_sweep_ends_nobody_wanted(
    profile: str, off: tuple[Layer, ...]
) -> None:
    """What is left on is enough; the planted bugs are those in which it is off as well."""
    found, _ = _play(profile, range(2), *off, hours=5.0)
    assert not found
