"""Bugs of the layers that guard machines: leases, the sweep, the quarantine, listings.

The layers stand behind each other, and each hides what another one does wrong: so those that are
right are switched off, and `tests/sim/test_guards.py` shows that it is the bug that is found then,
and not that they are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import spotd.observe.clouds
import spotd.observe.sweep
import spotd.planner.core.orphan_policy
import spotd.planner.rules.place_job
import spotd.reaper.sweep
import spotd.store.instances
import tests.sim.memory.duties
from providers.base import Instance, Offer
from spotd.act.effects import launch_request
from spotd.domain.node import EffectKind
from spotd.domain.plan import AddNode, Effect, Plan
from spotd.observe.clouds import InstanceSurvey
from spotd.observe.leftovers import LeftoverSweep
from spotd.planner.core.orphan_policy import DatabaseState, Orphan
from spotd.store.instances import ENDED
from spotd.store.orphans import NodeRowTimes
from tests.sim.daemon import KEYS, StoreClient
from tests.sim.memory.repositories import MemoryDeployment
from tests.sim.oracles.clouds import CloudOracle
from tests.sim.oracles.turns import TurnOracle
from tests.sim.planted_bugs.bug import Bug, put
from tests.sim.planted_bugs.replacements import _seen

RECORD_S = 5.0  # from a create to its record, where that comes after it


def no_doubt(stack: ExitStack) -> None:
    """Switched off: what no row names, and what would end many at once, is held."""
    stray = spotd.observe.sweep._stray

    def sure(instance: Instance, past: NodeRowTimes | None, seen_us: int) -> Any:
        return stray(instance, past or NodeRowTimes(0, 0), seen_us)

    put(stack, spotd.observe.sweep, "_stray", sure)
    put(stack, spotd.planner.core.orphan_policy, "BLAST_LEAST", 10**6)


def no_quarantine(stack: ExitStack) -> None:
    """Switched off: nothing unknown is ended after a restore."""
    put(stack, MemoryDeployment, "set_quarantine", lambda *_: None)


def no_grace(stack: ExitStack) -> None:
    """Switched off: an orphan is ended when it was one for a while."""
    put(stack, spotd.planner.core.orphan_policy, "GRACE_S", 0.0)


def late_record(stack: ExitStack) -> None:
    """Switched off: the intent before the create, and who judges that, or how long others wait
    while it is late."""
    put(stack, CloudOracle, "_judge_intent", lambda *_: None)
    put(stack, TurnOracle, "look", lambda *_: None)
    commit = StoreClient.commit_many

    def eager(self: StoreClient, plans: Sequence[tuple[Any, Plan]], now_us: int) -> Any:
        added = [(v, c.node) for v, p in plans for c in p.changes if isinstance(c, AddNode)]
        for view, node in added:
            effect = Effect(EffectKind.LAUNCH, node, view.job, 0)
            request = launch_request(effect, KEYS, self.deployment.id())
            self._outside.clouds[node.offer.provider].launch(request)
        if added:
            self._outside.kernel.sleep(RECORD_S)
        return commit(self, plans, now_us)

    put(stack, StoreClient, "commit_many", eager)


def database_first(stack: ExitStack) -> None:
    """What is wanted is read, and then what there is: what was asked for in between is nobody's."""

    def backwards(self: InstanceSurvey, provider: str, store: Any) -> None:
        wanted = {node.token for node in store.nodes.active()}
        lane = self._lanes[provider]
        answer = lane.ask()
        answer.record(store)
        living = [i for i in answer.instances if i.state not in ENDED]
        orphans = [i for i in living if i.token not in wanted]
        lane.listing.sweep.run(store, answer.instances, orphans)

    put(stack, InstanceSurvey, "sweep", backwards)


def _sweep_without_grace(stack: ExitStack) -> None:
    no_doubt(stack)
    late_record(stack)
    no_grace(stack)


def _database_first(stack: ExitStack) -> None:
    no_doubt(stack)
    no_grace(stack)
    database_first(stack)


def _restored_kills(stack: ExitStack) -> None:
    no_quarantine(stack)
    no_doubt(stack)


def _lease_without_epoch(stack: ExitStack) -> None:
    put(stack, tests.sim.memory.duties, "hold", lambda *_: None)
    put(stack, tests.sim.memory.duties, "check", lambda *_: None)


def _no_margin(stack: ExitStack) -> None:
    put(stack, tests.sim.memory.duties, "MARGIN_S", 0.0)


def _reaps_others(stack: ExitStack) -> None:
    """spot-reaper goes by expiries, whoever's machines they are of."""
    look = spotd.reaper.sweep.look

    def whoever(instances: Sequence[Instance], deployment: str, *more: Any) -> Any:
        return look((adopted(one, deployment) for one in instances), deployment, *more)

    def adopted(instance: Instance, deployment: str) -> Instance:
        return replace(instance, tags={**instance.tags, "spotd-deployment": deployment})

    put(stack, spotd.reaper.sweep, "look", whoever)


def _leftovers_untold(stack: ExitStack) -> None:
    put(stack, LeftoverSweep, "_page", lambda *_: None)


def _leftovers_kept(stack: ExitStack) -> None:
    put(stack, LeftoverSweep, "_discard", lambda *_: None)


def _missing_once(stack: ExitStack) -> None:
    lacks = spotd.store.instances.Listing.lacks

    def proof(self: Any, row: Any) -> bool:
        speaks = row.booted_at_us and not row.link_down_at_us and not row.terminated_at_us
        return lacks(self, row) and not speaks

    put(stack, spotd.store.instances.Listing, "proves_absent", proof)


def _pause_counts(stack: ExitStack) -> None:
    def whole(self: Any, row: Any) -> Any:
        return row.missed_at_us

    put(stack, spotd.store.instances.Listing, "missed_since_us", whole)


def _token_of_names(stack: ExitStack) -> None:
    token = spotd.planner.rules.place_job.launch_token

    def timeless(deployment: str, node: str, offer: Offer, _asked_at_us: int) -> str:
        return token(deployment, node, offer, 0)

    put(stack, spotd.planner.rules.place_job, "launch_token", timeless)


def _no_breaker(stack: ExitStack) -> None:
    put(stack, spotd.planner.core.orphan_policy, "BLAST_LEAST", 10**6)


def _old_word(stack: ExitStack) -> None:
    def released(stray: Orphan, record: DatabaseState) -> bool:
        return (stray.launched_at_us or stray.since_us) <= record.released_at_us

    put(stack, spotd.planner.core.orphan_policy, "_released", released)


GUARDING = (
    Bug(
        "lease without epoch",
        "a daemon that lost a periodic task's lease continues the task",
        _seen("S1", "S2"),
        _lease_without_epoch,
        "two",
    ),
    Bug(
        "lease without margin",
        "a task starts although its lease is about to end",
        _seen("S2"),
        _no_margin,
        "late",
    ),
    Bug(
        "another's reaped",
        "the reaper ends expired machines of every deployment",
        _seen("S3"),
        _reaps_others,
        "abandoned",
    ),
    Bug(
        "leftovers not reported",
        "nobody is alerted of a disk that is held because no row requested it",
        _seen("L3"),
        _leftovers_untold,
        "littered",
    ),
    Bug(
        "leftovers kept",
        "a disk stays after its machine is gone",
        _seen("L3"),
        _leftovers_kept,
        "littered",
    ),
    Bug(
        "sweep without grace",
        "a machine that has no row for a moment is ended",
        _seen("G1"),
        _sweep_without_grace,
        "calm",
        without="intent, doubt",
    ),
    Bug(
        "sweep reads the database first",
        "a machine that is requested while the cloud is listed is ended",
        _seen("G1"),
        _database_first,
        "slow",
        without="grace, doubt",
    ),
    Bug(
        "restored database kills",
        "machines that a restored copy of the database lacks are ended",
        _seen("G1"),
        _restored_kills,
        "restored",
    ),
    Bug(
        "no breaker",
        "many machines that the rows call gone at once are ended",
        _seen("G1"),
        _no_breaker,
        "forgotten",
    ),
    Bug(
        "old release counts",
        "a person's earlier release of orphans also ends machines that a job wanted then",
        _seen("G1"),
        _old_word,
        "forgotten",
    ),
    Bug(
        "token of names alone",
        "a restored copy of the database issues the same tokens again",
        _seen("P1", "L1", "X1"),
        _token_of_names,
        "restored",
    ),
    Bug(
        "missing once is gone",
        "a machine with a broken link that is missing from one listing counts as gone",
        _seen("D1"),
        _missing_once,
        "stale",
    ),
    Bug(
        "a pause counts as missing",
        "a machine that two listings lack counts as missing in between, when nobody asked",
        _seen("D1"),
        _pause_counts,
        "gaps",
    ),
)
