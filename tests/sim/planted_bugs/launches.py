"""Bugs of how machines are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import spotd.planner.placement.rank
import spotd.planner.planner
import spotd.planner.rules.finish_job
import spotd.planner.rules.place_job
import spotd.planner.spot_policy.deadline_slack
import tests.sim.memory.commit
from providers.base import CapacityError, Launched, LaunchRequest, Offer, UnknownOutcome
from spotd.act.effects import launch_request
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import Effect, Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.observe.sweep import Sweep
from tests.sim.daemon import KEYS, CloudClient, StoreClient
from tests.sim.planted_bugs.bug import Bug, put


def _no_client_token(stack: ExitStack) -> None:
    launch = CloudClient.launch

    def forgetful(self: CloudClient, request: LaunchRequest) -> Launched:
        self._cloud._by_token.pop((request.token, request.region), None)
        return launch(self, request)  # type: ignore[return-value]

    put(stack, CloudClient, "launch", forgetful)


def _token_without_location(stack: ExitStack) -> None:
    def placeless(deployment: str, node: str, offer: Offer, asked_at_us: int) -> str:
        job, generation, *_ = node.split("-")
        return f"spotd-{deployment}-{job}-{generation}"

    put(stack, spotd.planner.rules.place_job, "launch_token", placeless)


def _create_then_record(stack: ExitStack) -> None:
    commit = StoreClient.commit_many

    def eager(self: StoreClient, plans: Sequence[tuple[Any, Plan]], now_us: int) -> Any:
        for view, plan in plans:
            for change in plan.changes:
                if type(change).__name__ == "AddNode":
                    node: Node = change.node  # type: ignore[union-attr]
                    effect = Effect(EffectKind.LAUNCH, node, view.job, 0)
                    request = launch_request(effect, KEYS, self.deployment.id())
                    self._outside.clouds[node.offer.provider].launch(request)
        return commit(self, plans, now_us)

    put(stack, StoreClient, "commit_many", eager)


def _deadline_unguarded(stack: ExitStack) -> None:
    put(
        stack,
        spotd.planner.spot_policy.deadline_slack,
        "spare_looks",
        lambda _situation: float("inf"),
    )


def no_sweep(stack: ExitStack) -> None:
    """Switch the sweep off: it would clear up behind other layers."""
    put(stack, Sweep, "_overdue", lambda *_: [])


def _unknown_given_up(stack: ExitStack) -> None:
    no_sweep(stack)
    launch = CloudClient.launch

    def sure(self: CloudClient, request: LaunchRequest) -> Any:
        try:
            return launch(self, request)
        except UnknownOutcome as error:
            raise CapacityError(str(error)) from None

    put(stack, CloudClient, "launch", sure)
    _forget_doubts(stack)


def _forget_doubts(stack: ExitStack) -> None:
    """A refusal ends a launch, whatever may have been made before."""
    leave = _draft().terminate

    def gone(self: Any, node: Node, reason: LeaveReason, text: str, **more: Any) -> None:
        leave(self, node, reason, text, **more)
        if reason is LeaveReason.CAPACITY and not node.instance_id:
            self.set_node(node, state=NodeState.GONE)

    put(stack, _draft(), "terminate", gone)


def _draft() -> type:
    found: type = spotd.planner.rules.place_job.PlanBuilder
    return found


def _cancel_forgets(stack: ExitStack) -> None:
    """SkyPilot's issue 4410: a cancel while a machine is on its way forgets that machine."""
    no_sweep(stack)
    leave = _draft().terminate

    def forget(self: Any, node: Node, reason: LeaveReason, text: str, **more: Any) -> None:
        leave(self, node, reason, text, **more)
        if node.state is NodeState.LAUNCHING:
            self.set_node(node, state=NodeState.GONE)

    put(stack, _draft(), "terminate", forget)


def _impatient(stack: ExitStack) -> None:
    place_job, coming = (
        spotd.planner.rules.place_job.place_job,
        spotd.planner.rules.place_job._candidates,
    )

    def up(d: Any) -> dict[int, list[Node]]:
        gangs = coming(d).items()
        return {n: gang for n, gang in gangs if all(node.startup.hello_at_us for node in gang)}

    def hasty(d: Any) -> None:
        with patch.object(spotd.planner.rules.place_job, "_candidates", up):
            place_job(d)

    rules = (hasty if rule is place_job else rule for rule in spotd.planner.planner.RULES)
    put(stack, spotd.planner.planner, "RULES", tuple(rules))


def _hedge_loser_kept(stack: ExitStack) -> None:
    leave: Callable[..., None] = _draft().terminate

    def kind(self: Any, node: Node, reason: LeaveReason, text: str, **more: Any) -> None:
        if reason is not LeaveReason.HEDGE_LOST:
            leave(self, node, reason, text, **more)

    put(stack, _draft(), "terminate", kind)


def _all_chosen(stack: ExitStack) -> None:
    put(stack, tests.sim.memory.commit, "_rule", lambda *_: None)  # no index refuses a second one
    choose = spotd.planner.rules.place_job.choose

    def generous(d: Any) -> None:
        for node in d.current:
            if node.state is NodeState.BOOTING and node.startup.hello_at_us and not node.chosen:
                d.set_node(node, chosen=True)

    rules = (generous if rule is choose else rule for rule in spotd.planner.planner.RULES)
    put(stack, spotd.planner.planner, "RULES", tuple(rules))


def _budget_after_the_create(stack: ExitStack) -> None:
    spent = spotd.planner.rules.finish_job._spent_now

    def late(d: Any) -> int:
        return spent(d) if any(n.state is NodeState.BOOTING for n in d.nodes) else 0

    put(stack, spotd.planner.rules.finish_job, "_spent_now", late)
    put(stack, spotd.store.limits.LimitRoom, "take", lambda *_: "")


def _limits_unread(stack: ExitStack) -> None:
    put(stack, tests.sim.memory.commit.LimitRoom, "take", lambda *_: "")


def _cap_ignored(stack: ExitStack) -> None:
    refuse = spotd.planner.placement.rank._excluded

    def generous(offer: Offer, spec: JobSpec, *more: Any) -> Any:
        return refuse(offer, changed(spec, max_hourly_microusd=0), *more)

    put(stack, spotd.planner.placement.rank, "_excluded", generous)


LAUNCHING = (
    Bug(
        "no client token",
        "each retry of a create counts as a new request",
        frozenset({"L2"}),
        _no_client_token,
        "unknown",
    ),
    Bug(
        "token without location",
        "candidates share one token",
        frozenset({"L2", "P1", "X1"}),
        _token_without_location,
    ),
    Bug(
        "create then record",
        "the machine is created before its intent is committed",
        frozenset({"X1"}),
        _create_then_record,
    ),
    Bug(
        "unknown create given up",
        "a create without an answer is treated as refused",
        frozenset({"L1", "L3"}),
        _unknown_given_up,
        "unknown",
        without="sweep",
    ),
    Bug(
        "cancel forgets a launch",
        "a launch in flight is forgotten when its job is cancelled",
        frozenset({"L1", "L3"}),
        _cancel_forgets,
        "fickle",
        without="sweep",
    ),
    Bug(
        "impatient",
        "a booting machine is not waited for: every pass requests another",
        frozenset({"P3"}),
        _impatient,
        "calm",
    ),
    Bug(
        "hedge loser kept",
        "the candidate that answers second stays",
        frozenset({"L1c"}),
        _hedge_loser_kept,
    ),
    Bug(
        "all chosen",
        "each of two candidates is chosen when it answers",
        frozenset({"D2"}),
        _all_chosen,
        "slow",
        without="index",
    ),
    Bug(
        "budget after the create",
        "a job's budget is checked only after money is spent",
        frozenset({"B1"}),
        _budget_after_the_create,
        "poor",
    ),
    Bug(
        "limits ignored",
        "each job requests what it needs, whatever the limits of all jobs together",
        frozenset({"B1"}),
        _limits_unread,
        "limited",
    ),
    Bug(
        "deadline unguarded",
        "the job stays on spot while there is any, however little time is left",
        frozenset({"K1"}),
        _deadline_unguarded,
        "hurried",
    ),
    Bug(
        "price cap ignored",
        "the cheapest offer is taken, whatever it costs",
        frozenset({"B2"}),
        _cap_ignored,
    ),
)
