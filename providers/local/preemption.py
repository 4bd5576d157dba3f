"""Taking machines away: warnings, withdrawals, reclaims with or without a last word, zombies."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping
from functools import partial

from providers.base import InstanceState
from providers.local.api_errors import Refusal
from providers.local.aws_documents import timestamp
from providers.local.cloud_state import CloudState
from providers.local.launch_validation import DEPLOYMENT_TAG
from providers.local.machine import Machine, PlannedPreemption, order_of
from providers.local.process_pool import MachineProcess, ProcessPoolError
from providers.local.process_tree import TreeError
from providers.local.scenario import Preemption

_AGREED_S = 0.5  # from a machine's agreement to its end: its call is answered first
_SPEAKS = {  # which warnings a cloud's documents have words for
    "aws": ("preempt", "rebalance", "maintenance"),
    "gcp": ("preempt", "maintenance"),
    "azure": ("preempt", "maintenance"),
}


class Taker:
    """Plays the scenario's preemptions and those ordered through the control API."""

    def __init__(self, world: CloudState) -> None:
        self._world = world
        self.takings: list[PlannedPreemption] = []
        self.queue_id = uuid.uuid4().hex  # of the numbers in the queue, which begin anew with us
        self._counts: dict[tuple[int, str], int] = {}
        world.listener = self.hear
        for rule in world.market.scenario.preemptions:
            if rule.at_s is not None:
                world.timeline.after(rule.at_s, partial(self._take_matching, rule))

    def take(self, rule: Preemption) -> list[PlannedPreemption]:
        """Take away one machine, or all of a zone that match, now. Raises Refusal."""
        if not rule.instance:
            return self._take_matching(rule)
        with self._world.lock:
            machine = self._world.machines.get(rule.instance)
            if machine is None or machine.state is not InstanceState.RUNNING:
                raise Refusal("not_found", f"no running machine {rule.instance!r}")
        if not machine.spot and rule.kind in ("preempt", "rebalance"):
            raise Refusal("conflict", f"{rule.instance} is on demand: it is not preempted")
        return [self._take(machine, rule)]

    def withdraw(self, notice_id: str) -> PlannedPreemption:
        """Take a notice back before its time is up. Raises Refusal."""
        taking = self._find(notice_id)
        machine = self._world.machines[taking.instance_id]
        if machine.launch.personality == "gcp" and taking.kind == "preempt":
            raise Refusal("conflict", "gcp never takes a preemption back")
        if taking.appointment is not None and not taking.appointment.cancel():
            raise Refusal("conflict", f"it is too late: {notice_id} is being carried out")
        if machine.body is not None:
            report = machine.body.ask({"withdraw": notice_id}, "withdrawn")
            taking.withdrawn_at_us = int(str(report["at_us"]))
        return taking

    def queue(self, personality: str, deployment: str, after: int) -> list[dict[str, object]]:
        """The cloud-side warnings with a number above `after`; only aws has such a queue."""
        self._world.lose(self._world.suffer("notices", personality))
        if personality != "aws":
            return []
        delay_us = int(self._world.market.scenario.aws_queue_delay_s * 1e6)
        now_us = time.time_ns() // 1000
        with self._world.lock:
            return [
                taking.to_data()
                for taking in self.takings
                if taking.seq > after
                and 0 < taking.published_at_us <= now_us - delay_us
                and not taking.withdrawn_at_us
                and self._is_of(taking, personality, deployment)
            ]

    def hear(self, machine: Machine, event: Mapping[str, object]) -> None:
        """Something happened on a machine: rules that count it, and events it agreed to."""
        match event:
            case {"event": "launched" | "exec" as what}:
                self._count(machine, str(what).removesuffix("ed"))
            case {"event": "acknowledged", "notice_id": str(name), "at_us": int(at_us)}:
                taking = self._find(name)
                taking.acknowledged_at_us = at_us
                if taking.appointment is not None:
                    self._world.timeline.after(_AGREED_S, taking.appointment.begin)

    def _find(self, notice_id: str) -> PlannedPreemption:
        with self._world.lock:
            for taking in reversed(self.takings):
                if taking.notice_id == notice_id:
                    return taking
        raise Refusal("not_found", f"no notice {notice_id!r}")

    def _is_of(self, taking: PlannedPreemption, personality: str, deployment: str) -> bool:
        launch = self._world.machines[taking.instance_id].launch
        return launch.personality == personality and launch.tags.get(DEPLOYMENT_TAG) == deployment

    def _count(self, machine: Machine, what: str) -> None:
        for number, rule in enumerate(self._world.market.scenario.preemptions):
            if not rule.nth or rule.after != what or not _matches(rule, machine):
                continue
            with self._world.lock:
                count = self._counts[number, what] = self._counts.get((number, what), 0) + 1
            if count == rule.nth:
                self._world.timeline.after(rule.after_s, partial(self._take_quietly, machine, rule))

    def _take_matching(self, rule: Preemption) -> list[PlannedPreemption]:
        with self._world.lock:
            found = [
                machine
                for machine in self._world.machines.values()
                if machine.state is InstanceState.RUNNING and _matches(rule, machine)
            ]
        taken = [self._take_quietly(machine, rule) for machine in found]
        return [taking for taking in taken if taking is not None]

    def _take_quietly(self, machine: Machine, rule: Preemption) -> PlannedPreemption | None:
        """As `_take`, for machines that may have ended meanwhile."""
        try:
            return self._take(machine, rule)
        except (Refusal, ProcessPoolError) as error:
            print(f"local cloud: not taken away: {machine.ident}: {error}", file=sys.stderr)
            return None

    def _take(self, machine: Machine, rule: Preemption) -> PlannedPreemption:
        launch = machine.launch
        if rule.kind != "none" and rule.kind not in _SPEAKS[launch.personality]:
            raise Refusal("conflict", f"{launch.personality} has no {rule.kind} warning")
        deadline_us = time.time_ns() // 1000 + int(rule.notice_s * 1e6)
        with self._world.lock:
            taking = PlannedPreemption(
                notice_id=_name(machine, rule.kind, deadline_us),
                seq=len(self.takings) + 1,
                instance_id=machine.ident,
                token=launch.token,
                kind=rule.kind,
                mode=rule.mode,
                notice_s=rule.notice_s,
                deadline_us=deadline_us,
                thaw_after_s=rule.thaw_after_s,
                zombie_s=rule.zombie_s,
            )
            self.takings.append(taking)
        if rule.kind == "none":
            self._reclaim(machine, taking)
            return taking
        body = machine.body
        if body is None:
            raise Refusal("not_found", f"machine {machine.ident} has not started")
        report = body.ask(order_of(taking), "published")
        taking.published_at_us = int(str(report["at_us"]))
        if rule.kind != "rebalance":
            left_s = (deadline_us - time.time_ns() // 1000) / 1e6
            taking.appointment = self._world.timeline.after(
                left_s, lambda: self._reclaim(machine, taking)
            )
        return taking

    def _reclaim(self, machine: Machine, taking: PlannedPreemption) -> None:
        """Stop the whole machine first, so that it tells nobody; then kill what is to die."""
        with self._world.lock:
            if machine.state is not InstanceState.RUNNING or machine.body is None:
                return
            body = machine.body
            frozen = taking.mode == "frozen"
            if not frozen:
                machine.state = InstanceState.STOPPING
                machine.zombie = taking.thaw_after_s is not None
        if frozen:
            self._freeze(body, taking)
            return
        try:
            body.stop()
            taking.reclaimed_at_us = time.time_ns() // 1000
            if taking.thaw_after_s is not None:
                self._world.timeline.after(taking.thaw_after_s, lambda: self._thaw(machine, taking))
            elif taking.mode == "silent":
                body.kill_below()
            else:
                body.kill()
        except TreeError as error:
            print(f"local cloud: {machine.ident}: {error}", file=sys.stderr)
        text = f"reclaimed by the cloud ({taking.kind}, {taking.mode})"
        self._world.close(machine, "reclaimed", text)

    def _freeze(self, body: MachineProcess, taking: PlannedPreemption) -> None:
        """Stop the whole machine and tell nobody: its cloud does not know. Terminate ends it."""
        try:
            body.stop()
        except TreeError as error:
            print(f"local cloud: {body.ident}: {error}", file=sys.stderr)
        taking.reclaimed_at_us = time.time_ns() // 1000
        if taking.thaw_after_s is not None:
            self._world.timeline.after(taking.thaw_after_s, body.thaw)

    def _thaw(self, machine: Machine, taking: PlannedPreemption) -> None:
        """The zombie: long gone for the cloud, it runs once more."""
        assert machine.body is not None  # noqa: S101  only machines with one are reclaimed
        machine.body.thaw()
        taking.thawed_at_us = time.time_ns() // 1000
        self._world.timeline.after(taking.zombie_s, machine.body.kill)


def _matches(rule: Preemption, machine: Machine) -> bool:
    launch = machine.launch
    return (
        rule.personality in ("", launch.personality)
        and rule.zone in ("", launch.zone)
        and rule.instance in ("", launch.instance_id)
        and (machine.spot or rule.kind in ("none", "maintenance"))
    )


def _name(machine: Machine, kind: str, deadline_us: int) -> str:
    """The id under which the machine itself sees the notice, where its documents carry one."""
    match machine.launch.personality, kind:
        case "aws", "preempt":
            return f"aws-terminate-{timestamp(deadline_us)}"
        case "aws", "maintenance":
            return f"instance-event-{uuid.uuid4().hex[:17]}"
        case "azure", _:
            return str(uuid.uuid4()).upper()
    return f"{machine.launch.personality}-{kind}-{uuid.uuid4().hex[:12]}"
