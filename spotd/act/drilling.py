"""Drills, from the order to the verdict. Every step is on record before the next one: a daemon that
dies in between leaves it to the next, and a node strikes once for each drill, however often it is
told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from providers.base import Provider, ProviderError
from spotd.act.effects import LinkError
from spotd.clock import Clock
from spotd.decide.carriage import longest_pause_s
from spotd.decide.drilling import target, why_not
from spotd.drill import NOTICE_S, Drill, DrillEnd, DrillKind
from spotd.errors import UserError
from spotd.history.drills import Record, Report, Save, judge
from spotd.model import Event, Market, Node, S, Severity, View
from spotd.states import NodeState
from spotd.store.base import Store
from spotd.vault import JobKeys
from spotd.wire import STRIKE, Command, Reply

log = structlog.get_logger(__name__)

EVERY_S = 1.0
CALL_S = 20.0
STRIKE_S = 60.0  # for a node to take it; then nobody knows, and nothing more is struck
_LEFT = frozenset({NodeState.TERMINATING, NodeState.GONE})
DRILLED = "drill"  # the kind of all events about drills


class StrikeLink(Protocol):
    """What it takes on a node; see `act.link.SshLink`."""

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply: ...


class Drilling:
    """The duty. `market(now_us)` is what decisions see; `contested` and safe mode are in it."""

    def __init__(
        self,
        link: StrikeLink,
        keys: Callable[[str], JobKeys],
        providers: Mapping[str, Provider],
        market: Callable[[int], Market],
        clock: Clock,
    ) -> None:
        self._link = link
        self._keys = keys
        self._providers = providers
        self._market = market
        self._clock = clock

    def look(self, store: Store) -> None:
        """Take every open drill one step on."""
        for drill in store.drills(unfinished=True):
            view = store.load_view(drill.job_id, self._clock.now_us())
            if view is not None:
                self._step(store, drill, view)

    def _step(self, store: Store, drill: Drill, view: View) -> None:
        now_us = self._clock.now_us()
        if not drill.aimed_at_us:
            market = self._market(now_us)
            why, node = why_not(view, market, drill.kind, drill.within_s, now_us), target(view)
            if why or node is None:
                self._end(store, view, _called_off(drill, now_us, why))
                return
            drill = replace(drill, node_id=node.id, aimed_at_us=now_us)
            if not store.set_drill(drill):
                return
        if not drill.struck_at_us:
            drill = self._strike(store, drill, view)
        if drill.struck_at_us:
            record = self._record(store, view)
            if (ended := judge(drill, record, self._clock.now_us())) is not None:
                self._end(store, view, ended)

    def _strike(self, store: Store, drill: Drill, view: View) -> Drill:
        """The drill once it has struck; as it was where that is not known yet, or will not be."""
        [node] = store.find_nodes([drill.node_id])
        at_us = self._clock.now_us()
        why = ""
        if node.state in _LEFT or node.exit_code is not None:
            # It was told, and we died before that was on record; what else it may have been, a
            # notice of its cloud for one, would be on record as that.
            at_us = min(at for at in (node.exited_at_us, node.left_at_us, at_us) if at)
        elif not (why := self._belated(drill, view, at_us)):
            try:
                why = self._tell(drill, node)
            except (LinkError, ProviderError, UserError) as error:
                log.warning("a drill could not strike", drill=drill.id, error=str(error))
                return drill
        if why:
            self._end(store, view, _called_off(drill, at_us, why))
            return drill
        if drill.kind is DrillKind.AGENT:
            at_us = drill.aimed_at_us  # the reply that it died with came by a second one
        struck = replace(drill, struck_at_us=at_us)
        if not store.set_drill(struck):
            return drill
        text = f"a drill strikes {view.job.name} at step {node.last_step}: {drill.kind.value}"
        store.add_event(drill.job_id, Event(DRILLED, text, node.id), at_us)
        return struck

    def _belated(self, drill: Drill, view: View, now_us: int) -> str:
        """Why one that was aimed at an earlier look strikes no more; "" where it may. A node looks
        for itself whether it is about to stop; a cloud that ends a machine does not."""
        if now_us - drill.aimed_at_us > STRIKE_S * S:
            return f"it could not strike within {STRIKE_S:.0f} s"
        if drill.kind is not DrillKind.MACHINE:
            return ""
        return why_not(view, self._market(now_us), drill.kind, drill.within_s, now_us)

    def _tell(self, drill: Drill, node: Node) -> str:
        """Why it did not strike; "" if it did. Raises LinkError, ProviderError, UserError."""
        if drill.kind is DrillKind.MACHINE:
            provider = self._providers.get(node.offer.provider)
            if provider is None:
                return f"the provider {node.offer.provider} is not configured"
            provider.terminate(node.instance_id)
            return ""
        data = {"drill": drill.id, "kind": drill.kind.value, "notice_s": NOTICE_S}
        command = Command(STRIKE, node.generation, data)
        reply = self._link.send(node, self._keys(node.job_id), command, CALL_S)
        return "" if reply.ok else reply.error

    def _record(self, store: Store, view: View) -> Record:
        job_id, nodes = view.job.id, store.job_nodes(view.job.id)
        claims = {
            row.event.node_id: step
            for row in store.events_of(job_id, ("claimed",))
            if isinstance(step := row.event.data.get("step"), int)
        }
        pause_s = longest_pause_s(
            nodes[-1].offer, view.job.spec, self._market(self._clock.now_us())
        )
        return Record(
            view.job,
            nodes,
            [
                Report(row.generation, row.from_step, row.to_step, row.losses, row.at_us)
                for row in store.progress(job_id)
            ],
            [
                Save(row.generation, row.step, row.committed_at_us, row.stage_s + row.write_s)
                for row in store.checkpoints(job_id)
            ],
            claims,
            [
                (row.start_us, row.end_us, row.rate_microusd_per_h)
                for row in store.segments(job_id)
                if row.state != "void"
            ],
            pause_s,
        )

    def _end(self, store: Store, view: View, drill: Drill) -> None:
        if not store.set_drill(drill):
            return
        text = f"the drill ({drill.kind.value}) of {view.job.name} {told(drill)}"
        failed = drill.end is DrillEnd.FAILED
        severity = Severity.ERROR if failed else Severity.INFO
        data = {"drill": drill.id, "end": drill.end.value if drill.end else ""}
        event = Event(DRILLED, text, drill.node_id, severity, failed, data=data)
        store.add_event(drill.job_id, event, drill.ended_at_us)


def _called_off(drill: Drill, at_us: int, why: str) -> Drill:
    return replace(drill, ended_at_us=at_us, end=DrillEnd.CALLED_OFF, text=why)


def told(drill: Drill) -> str:
    """How it ended, in words."""
    if drill.end is DrillEnd.PASSED:
        return f"passed: {figures(drill)}"
    if drill.end is DrillEnd.FAILED:
        return f"failed: {drill.text} ({figures(drill)})"
    return f"was called off: {drill.text}"


def figures(drill: Drill) -> str:
    """What was measured, in words."""
    found = drill.found
    lost = "steps lost not known" if found.lost_steps is None else f"{found.lost_steps} steps lost"
    first = "" if found.first_step_s is None else f", {found.first_step_s:.1f} s to the first step"
    seam = "losses not judged" if found.sigmas is None else f"losses {found.sigmas:.1f} sigma off"
    return f"{lost}{first}, {seam}, ${found.cost_microusd / 1e6:.4f}"
