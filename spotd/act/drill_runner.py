"""Run fault drills from the order to the result.

Every step is recorded before the next one: a daemon that dies in between leaves the drill to the
next one, and a node injects the fault once per drill, however often the request is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from providers.base import Provider, ProviderError
from providers.dollars import format_microusd
from spotd.act.node_link import LinkError
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.domain.events import Event, Severity
from spotd.domain.fault_drill import NOTICE_S, DrillEnd, DrillKind, FaultDrill
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.history.drill_judgement import DrillRecord, Report, Save, judge
from spotd.planner.core.shard_stores import longest_pause_s
from spotd.planner.rules.drill_admission import target, why_not
from spotd.security.secrets import JobKeys
from spotd.store.interface import Store
from spotd.wire import EXIT_FINISHED, STRIKE, Command, Reply

log = structlog.get_logger(__name__)

CALL_S = 20.0
STRIKE_S = 60.0  # for a node to take it; then nothing more is struck
ORDER_S = 60.0  # an order that no daemon began by then was given of a job as it was long ago
_LEFT = frozenset({NodeState.TERMINATING, NodeState.GONE})
DRILLED = "drill"  # the kind of all events about drills


class DrillLink(Protocol):
    """The calls to a node that drills need; see `act.link.SshLink`."""

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply: ...


class DrillRunner:
    """The periodic task.

    `market(now_us)` is the market that decisions use, safe mode included. While `contested()`
    returns a reason nothing is done, because the machines may belong to another daemon.
    """

    def __init__(
        self,
        link: DrillLink,
        keys: Callable[[str], JobKeys],
        providers: Mapping[str, Provider],
        market: Callable[[int], Market],
        clock: Clock,
        contested: Callable[[], str] = str,
    ) -> None:
        self._link = link
        self._keys = keys
        self._providers = providers
        self._market = market
        self._clock = clock
        self._contested = contested

    def look(self, store: Store) -> None:
        """Take every open drill one step on."""
        if self._contested():
            return
        for drill in store.drills.rows(unfinished=True):
            view = store.load_view(drill.job_id, self._clock.now_us())
            try:
                if view is not None:
                    self._step(store, drill, view)
            except (ArithmeticError, LookupError, ValueError):  # a job is in no other's way
                log.exception("a drill cannot continue", drill=drill.id)

    def _step(self, store: Store, drill: FaultDrill, view: View) -> None:
        now_us = self._clock.now_us()
        first = not drill.aimed_at_us
        if first:
            why, node = self._why_not(drill, view, now_us), target(view)
            if now_us - drill.asked_at_us > ORDER_S * S:
                why = f"no spotd started it within {ORDER_S:.0f} s"
            if why or node is None:
                self._end(store, view, _called_off(drill, now_us, why))
                return
            drill = replace(drill, node_id=node.id, aimed_at_us=now_us)
            if not store.drills.update(drill):
                return
        if not drill.struck_at_us:
            drill = self._strike(store, drill, view, first=first)
        if drill.struck_at_us:
            record = self._record(store, view)
            if (ended := judge(drill, record, self._clock.now_us())) is not None:
                self._end(store, view, ended)

    def _why_not(self, drill: FaultDrill, view: View, now_us: int) -> str:
        return why_not(view, self._market(now_us), drill.kind, drill.within_s, now_us)

    def _strike(self, store: Store, drill: FaultDrill, view: View, *, first: bool) -> FaultDrill:
        """Return the drill after the fault was injected; unchanged if that is unknown or will not
        happen.

        `first`: the node was recorded in this very call.
        """
        [node] = store.nodes.find([drill.node_id])
        at_us = self._clock.now_us()
        why: str | None
        if node.state in _LEFT or node.training.exit_code is not None:
            why = _own_end(node)  # else it was requested, and we died before that was on record
        else:
            try:
                why = self._tell(drill, view, node, at_us)
            except (LinkError, ProviderError, UserError) as error:
                log.warning("a drill could not inject its fault", drill=drill.id, error=str(error))
                return drill
        if why is None:
            return drill
        if why:
            self._end(store, view, _called_off(drill, at_us, why))
            return drill
        # A request of an earlier pass may have injected the fault as early as that, so the
        # measured recovery time is never too short.
        struck = replace(drill, struck_at_us=at_us if first else drill.aimed_at_us)
        text = (
            f"a drill injects a fault into {view.job.name} at step {node.training.last_step}: "
            f"{drill.kind.value}"
        )
        return struck if store.drills.update(struck, Event(DRILLED, text, node.id)) else drill

    def _tell(self, drill: FaultDrill, view: View, node: Node, now_us: int) -> str | None:
        """Return why the fault was not injected, "" if it was, None if it is not known yet.

        After STRIKE_S nothing is injected any more; this only checks whether it was, because a
        drill's effect must not count as the cloud's or the program's. Raises LinkError,
        ProviderError, UserError.
        """
        end_us = drill.aimed_at_us + int(STRIKE_S * S)
        late = f"it could not inject the fault within {STRIKE_S:.0f} s" if now_us > end_us else ""
        if drill.kind is not DrillKind.MACHINE:
            # A node looks for itself whether it is about to stop.
            data = {"drill": drill.id, "kind": drill.kind.value, "notice_s": NOTICE_S}
            command = Command(STRIKE, node.generation, data | ({"late": True} if late else {}))
            reply = self._link.send(node, self._keys(node.job_id), command, CALL_S)
            return "" if reply.ok else late or reply.error
        if late:  # it may be ending; one that is not is heard
            return late if node.agent.heard_at_us > end_us else None
        if why := self._why_not(drill, view, now_us):
            return why
        provider = self._providers.get(node.offer.provider)
        if provider is None:
            return f"the provider {node.offer.provider} is not configured"
        provider.terminate(node.instance_id)
        return ""

    def _record(self, store: Store, view: View) -> DrillRecord:
        job_id, nodes = view.job.id, store.nodes.of_job(view.job.id)
        claims = {
            row.event.node_id: step
            for row in store.events.of_kinds(job_id, ("claimed",))
            if isinstance(step := row.event.data.get("step"), int)
        }
        pause_s = longest_pause_s(
            nodes[-1].offer, view.job.spec, self._market(self._clock.now_us())
        )
        return DrillRecord(
            view.job,
            nodes,
            [
                Report(row.generation, row.from_step, row.to_step, row.losses, row.at_us)
                for row in store.progress.rows(job_id)
            ],
            [
                Save(row.generation, row.step, row.committed_at_us, row.stage_s + row.write_s)
                for row in store.checkpoints.rows(job_id)
            ],
            claims,
            [
                (row.start_us, row.end_us, row.rate_microusd_per_h)
                for row in store.ledger.segments(job_id)
                if row.state != "void"
            ],
            pause_s,
        )

    def _end(self, store: Store, view: View, drill: FaultDrill) -> None:
        text = f"the drill ({drill.kind.value}) of {view.job.name} {outcome_text(drill)}"
        failed = drill.end is DrillEnd.FAILED
        severity = Severity.ERROR if failed else Severity.INFO
        data = {"drill": drill.id, "end": drill.end.value if drill.end else ""}
        store.drills.update(drill, Event(DRILLED, text, drill.node_id, severity, failed, data=data))


def _own_end(node: Node) -> str:
    """Return why a node that left was not hit by the drill; "" if it was."""
    if node.training.exit_code == EXIT_FINISHED or node.departure.leave_reason not in (
        None,
        LeaveReason.DRILL,
    ):
        return "its machine ended for another reason"
    return ""


def _called_off(drill: FaultDrill, at_us: int, why: str) -> FaultDrill:
    return replace(drill, ended_at_us=at_us, end=DrillEnd.CALLED_OFF, text=why)


def outcome_text(drill: FaultDrill) -> str:
    """Return the result in words."""
    if drill.end is DrillEnd.PASSED:
        return f"passed: {figures(drill)}"
    if drill.end is DrillEnd.FAILED:
        return f"failed: {drill.text} ({figures(drill)})"
    return f"was cancelled: {drill.text}"


def figures(drill: FaultDrill) -> str:
    """Return the measurements in words."""
    findings = drill.found
    lost = (
        "steps lost not known"
        if findings.lost_steps is None
        else f"{findings.lost_steps} steps lost"
    )
    first = (
        ""
        if findings.first_step_s is None
        else f", {findings.first_step_s:.1f} s to the first step"
    )
    seam = (
        "losses not judged"
        if findings.sigmas is None
        else f"losses {findings.sigmas:.1f} sigma off"
    )
    return f"{lost}{first}, {seam}, {format_microusd(findings.cost_microusd)}"
