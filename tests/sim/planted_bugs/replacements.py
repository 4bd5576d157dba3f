"""Bugs of how machines are given up: too soon, for the wrong reason, or not at all."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import spotd.daemon.reconcile
import spotd.observe.nodes
import spotd.planner.core.next_effect
import spotd.planner.planner
import spotd.planner.rules.replace_node
import spotd.store.instances
from providers.base import NoticeKind
from spotd import wire
from spotd.act.jump_hosts import JumpHosts
from spotd.base.clock import ListeningSince, SystemClock
from spotd.domain.node import EffectKind, Node, NoticeRecord
from spotd.domain.plan import ChangeJob, ChangeNode, Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.planner.rules.apply_observations import settle_observed
from spotd.planner.rules.disk_full import move_when_full
from tests.sim.machine import SimAgent
from tests.sim.planted_bugs.bug import Bug, put
from tests.sim.planted_bugs.launches import no_sweep

HURRY_US = 30_000_000  # most machines take longer to come up


def _terminated_once(stack: ExitStack) -> None:
    need = spotd.planner.core.next_effect._need_terminating

    def trusting(node: Node, *more: Any) -> EffectKind | None:
        wanted = need(node, *more)
        again = node.machine.terminated_at_us and wanted is EffectKind.TERMINATE
        return EffectKind.SURVEY if again else wanted

    put(stack, spotd.planner.core.next_effect, "_need_terminating", trusting)


def _hurried(stack: ExitStack) -> None:
    boot_end = spotd.planner.rules.replace_node._boot_end

    def early(d: Any, node: Node) -> tuple[int, str]:
        end_us, text = boot_end(d, node)
        return (
            (node.requested_at_us + HURRY_US, text)
            if not node.startup.hello_at_us
            else (end_us, text)
        )

    put(stack, spotd.planner.rules.replace_node, "_boot_end", early)


def _gone_when_told(stack: ExitStack) -> None:
    no_sweep(stack)

    def hasty(d: Any) -> None:
        settle_observed(d)
        for node in d.nodes:
            if node.state is NodeState.TERMINATING and node.machine.terminated_at_us:
                d.set_node(node, state=NodeState.GONE)

    rules = (hasty if rule is settle_observed else rule for rule in spotd.planner.planner.RULES)
    put(stack, spotd.planner.planner, "RULES", tuple(rules))


def _one_listing_is_proof(stack: ExitStack) -> None:
    proof = lambda _self, row: bool(row.instance_id)  # noqa: E731
    put(stack, spotd.store.instances.Listing, "proves_absent", proof)


def _rebalance_obeyed(stack: ExitStack) -> None:
    put(stack, NoticeRecord, "takes_machine", property(lambda notice: not notice.withdrawn))


def _withdrawal_unheard(stack: ExitStack) -> None:
    takes = property(lambda notice: notice.kind is not NoticeKind.REBALANCE)
    put(stack, NoticeRecord, "takes_machine", takes)


def _metadata_outage_obeyed(stack: ExitStack) -> None:
    say = SimAgent.say

    def alarmed(self: SimAgent, kind: str, data: Any) -> None:
        say(self, kind, data)
        if kind == wire.METADATA and not data["up"]:
            notice = {"notice_id": "silence", "kind": "preempt", "remaining_s": 120.0}
            say(self, wire.NOTICE, {**notice, "source": "imds", "text": ""})

    put(stack, SimAgent, "say", alarmed)


def _preemption_charged(stack: ExitStack) -> None:
    decide = spotd.daemon.reconcile.decide
    innocent = (LeaveReason.PREEMPTED, LeaveReason.LOST)

    def strict(view: Any, market: Any, now_us: int) -> Plan:
        plan = decide(view, market, now_us)
        changes = [change for change in plan.changes if isinstance(change, ChangeNode)]
        charged = sum(change.fields.get("leave_reason") in innocent for change in changes)
        failures = view.job.backoff.failures + charged
        if not charged or view.job.outcome is not None:
            return plan
        fields: dict[str, object] = {"failures": failures}
        if failures > 1:
            fields["stop_text"] = "restarts on errors used up"
        return replace(plan, changes=(*plan.changes, ChangeJob(fields)))

    put(stack, spotd.daemon.reconcile, "decide", strict)


def _own_sleep_is_their_silence(stack: ExitStack) -> None:
    put(stack, ListeningSince, "since_us", lambda _self: 0)
    put(stack, spotd.observe.nodes, "STALL_S", 1e9)


def _full_disk_unheeded(stack: ExitStack) -> None:
    rules = (rule for rule in spotd.planner.planner.RULES if rule is not move_when_full)
    put(stack, spotd.planner.planner, "RULES", tuple(rules))


def _jump_host_unasked(stack: ExitStack) -> None:
    put(stack, JumpHosts, "reached_since", lambda _self: {})


def _clock_believed(stack: ExitStack) -> None:
    def at_its_word(self: SystemClock) -> int:
        self._now_us = max(self._now_us, self._wall_ns() // 1000)
        return self._now_us

    put(stack, SystemClock, "now_us", at_its_word)


def _seen(*invariants: str) -> frozenset[str]:
    return frozenset(invariants)


LEAVING = (
    Bug(
        "hurried",
        "a machine gets half a minute to boot, and then the next one is requested",
        _seen("P3"),
        _hurried,
        "slow",
    ),
    Bug(
        "terminated once",
        "a terminate that the cloud accepted is not repeated",
        _seen("L3"),
        _terminated_once,
        "stubborn",
    ),
    Bug(
        "gone when accepted",
        "a machine counts as gone when the cloud accepts its terminate",
        _seen("L1", "L3"),
        _gone_when_told,
        without="sweep",
    ),
    Bug(
        "one listing is proof",
        "a machine that is missing from one listing counts as gone",
        _seen("D1", "G1"),
        _one_listing_is_proof,
    ),
    Bug(
        "rebalance obeyed",
        "a rebalance recommendation is treated as a preemption",
        _seen("D1"),
        _rebalance_obeyed,
    ),
    Bug(
        "withdrawal ignored",
        "a withdrawn notice still takes effect",
        _seen("D1"),
        _withdrawal_unheard,
        within=60,
    ),
    Bug(
        "metadata outage obeyed",
        "a silent metadata service is treated as a preemption",
        _seen("D1"),
        _metadata_outage_obeyed,
    ),
    Bug(
        "preemption charged",
        "a preemption counts as a failure of the job",
        _seen("P1"),
        _preemption_charged,
    ),
    Bug(
        "own sleep is their silence",
        "a daemon that was suspended counts that time as the nodes' silence",
        _seen("D1"),
        _own_sleep_is_their_silence,
    ),
    Bug(
        "full disk ignored",
        "a job stays on a machine whose disk stays full",
        _seen("P1"),
        _full_disk_unheeded,
        "full",
    ),
    Bug(
        "jump host not checked",
        "an outage of a jump host counts as silence of the machines behind it",
        _seen("D1"),
        _jump_host_unasked,
        "jumped",
    ),
    Bug(
        "clock believed",
        "a wall clock that is set ahead counts as time that passed",
        _seen("A1", "B1", "D1", "P1"),
        _clock_believed,
        within=60,
    ),
)
