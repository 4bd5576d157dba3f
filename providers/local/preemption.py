"""Preempt machines: publish and withdraw notices, reclaim, freeze and resume machines."""

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
from providers.local.machine import Machine, PlannedPreemption, publish_order
from providers.local.process_pool import MachineProcess, ProcessPoolError
from providers.local.process_tree import TreeError
from providers.local.scenario import Preemption

_ACKNOWLEDGED_S = 0.5  # from a machine's approval to its end, so that its call is answered first
_NOTICE_KINDS = ("preempt", "maintenance")  # that every cloud's metadata service can express
_MORE_KINDS = {"aws": ("rebalance",)}


class Preemptor:
    """Executes the preemptions of the scenario and of the control API."""

    def __init__(self, cloud: CloudState) -> None:
        self._cloud = cloud
        self.preemptions: list[PlannedPreemption] = []
        # Changes with each server start, because sequence numbers start over then.
        self.queue_id = uuid.uuid4().hex
        self._counts: dict[tuple[int, str], int] = {}
        cloud.listener = self.on_event
        for rule in cloud.market.scenario.preemptions:
            if rule.at_s is not None:
                cloud.timeline.after(rule.at_s, partial(self._preempt_matching, rule))

    def preempt(self, rule: Preemption) -> list[PlannedPreemption]:
        """Preempt one machine, or all that match the rule, now. Raises Refusal."""
        if not rule.instance:
            return self._preempt_matching(rule)
        with self._cloud.lock:
            machine = self._cloud.machines.get(rule.instance)
            if machine is None or machine.state is not InstanceState.RUNNING:
                raise Refusal("not_found", f"no running machine {rule.instance!r}")
        if not machine.spot and rule.kind in ("preempt", "rebalance"):
            raise Refusal("conflict", f"{rule.instance} is on demand: it is not preempted")
        return [self._preempt(machine, rule)]

    def withdraw(self, notice_id: str) -> PlannedPreemption:
        """Withdraw a notice before its deadline. Raises Refusal."""
        preemption = self._find(notice_id)
        machine = self._cloud.machines[preemption.instance_id]
        if machine.launch.personality == "gcp" and preemption.kind == "preempt":
            raise Refusal("conflict", "gcp never withdraws a preemption")
        if preemption.scheduled is not None and not preemption.scheduled.cancel():
            raise Refusal("conflict", f"it is too late: {notice_id} is being carried out")
        if machine.process is not None:
            report = machine.process.request({"withdraw": notice_id}, "withdrawn")
            preemption.withdrawn_at_us = int(str(report["at_us"]))
        return preemption

    def queued_notices(
        self, personality: str, deployment: str, after: int
    ) -> list[dict[str, object]]:
        """Queued notices with a sequence number above `after`. Only aws has such a queue."""
        self._cloud.apply_reply_faults(self._cloud.inject_faults("notices", personality))
        if personality != "aws":
            return []
        delay_us = int(self._cloud.market.scenario.aws_queue_delay_s * 1e6)
        now_us = time.time_ns() // 1000
        with self._cloud.lock:
            return [
                preemption.to_data()
                for preemption in self.preemptions
                if preemption.seq > after
                and 0 < preemption.published_at_us <= now_us - delay_us
                and not preemption.withdrawn_at_us
                and self._belongs_to(preemption, personality, deployment)
            ]

    def on_event(self, machine: Machine, event: Mapping[str, object]) -> None:
        """Handle an event of a machine: count it for the rules, or execute an approved notice."""
        match event:
            case {"event": "launched" | "exec" as name}:
                self._count_event(machine, str(name).removesuffix("ed"))
            case {"event": "acknowledged", "notice_id": str(notice_id), "at_us": int(at_us)}:
                preemption = self._find(notice_id)
                preemption.acknowledged_at_us = at_us
                if preemption.scheduled is not None:
                    self._cloud.timeline.after(_ACKNOWLEDGED_S, preemption.scheduled.run)

    def _find(self, notice_id: str) -> PlannedPreemption:
        with self._cloud.lock:
            for preemption in reversed(self.preemptions):
                if preemption.notice_id == notice_id:
                    return preemption
        raise Refusal("not_found", f"no notice {notice_id!r}")

    def _belongs_to(self, preemption: PlannedPreemption, personality: str, deployment: str) -> bool:
        launch = self._cloud.machines[preemption.instance_id].launch
        return launch.personality == personality and launch.tags.get(DEPLOYMENT_TAG) == deployment

    def _count_event(self, machine: Machine, event: str) -> None:
        for number, rule in enumerate(self._cloud.market.scenario.preemptions):
            if not rule.nth or rule.after != event or not _matches(rule, machine):
                continue
            with self._cloud.lock:
                count = self._counts[number, event] = self._counts.get((number, event), 0) + 1
            if count == rule.nth:
                self._cloud.timeline.after(rule.after_s, partial(self._try_preempt, machine, rule))

    def _preempt_matching(self, rule: Preemption) -> list[PlannedPreemption]:
        with self._cloud.lock:
            machines = [
                machine
                for machine in self._cloud.machines.values()
                if machine.state is InstanceState.RUNNING and _matches(rule, machine)
            ]
        started = [self._try_preempt(machine, rule) for machine in machines]
        return [preemption for preemption in started if preemption is not None]

    def _try_preempt(self, machine: Machine, rule: Preemption) -> PlannedPreemption | None:
        """Like `_preempt`, but None if it fails, as for a machine that has ended meanwhile."""
        try:
            return self._preempt(machine, rule)
        except (Refusal, ProcessPoolError) as error:
            print(f"local cloud: not taken away: {machine.ident}: {error}", file=sys.stderr)
            return None

    def _preempt(self, machine: Machine, rule: Preemption) -> PlannedPreemption:
        launch = machine.launch
        known = (*_NOTICE_KINDS, *_MORE_KINDS.get(launch.personality, ()))
        if rule.kind != "none" and rule.kind not in known:
            raise Refusal("conflict", f"{launch.personality} has no {rule.kind} warning")
        deadline_us = time.time_ns() // 1000 + int(rule.notice_s * 1e6)
        with self._cloud.lock:
            preemption = PlannedPreemption(
                notice_id=_notice_id(machine, rule.kind, deadline_us),
                seq=len(self.preemptions) + 1,
                instance_id=machine.ident,
                token=launch.token,
                kind=rule.kind,
                mode=rule.mode,
                notice_s=rule.notice_s,
                deadline_us=deadline_us,
                thaw_after_s=rule.thaw_after_s,
                zombie_s=rule.zombie_s,
            )
            self.preemptions.append(preemption)
        if rule.kind == "none":
            self._reclaim(machine, preemption)
            return preemption
        process = machine.process
        if process is None:
            raise Refusal("not_found", f"machine {machine.ident} has not started")
        report = process.request(publish_order(preemption), "published")
        preemption.published_at_us = int(str(report["at_us"]))
        if rule.kind != "rebalance":
            left_s = (deadline_us - time.time_ns() // 1000) / 1e6
            preemption.scheduled = self._cloud.timeline.after(
                left_s, lambda: self._reclaim(machine, preemption)
            )
        return preemption

    def _reclaim(self, machine: Machine, preemption: PlannedPreemption) -> None:
        """End a machine. Stop all of it first so that it can send nothing more, then kill it."""
        with self._cloud.lock:
            if machine.state is not InstanceState.RUNNING or machine.process is None:
                return
            process = machine.process
            frozen = preemption.mode == "frozen"
            if not frozen:
                machine.state = InstanceState.STOPPING
                machine.zombie = preemption.thaw_after_s is not None
        if frozen:
            self._freeze(process, preemption)
            return
        try:
            process.stop()
            preemption.reclaimed_at_us = time.time_ns() // 1000
            if preemption.thaw_after_s is not None:
                self._cloud.timeline.after(
                    preemption.thaw_after_s, lambda: self._thaw(machine, preemption)
                )
            elif preemption.mode == "silent":
                process.kill_below()
            else:
                process.kill()
        except TreeError as error:
            print(f"local cloud: {machine.ident}: {error}", file=sys.stderr)
        message = f"reclaimed by the cloud ({preemption.kind}, {preemption.mode})"
        self._cloud.close(machine, "reclaimed", message)

    def _freeze(self, process: MachineProcess, preemption: PlannedPreemption) -> None:
        """Stop the whole machine; the cloud still lists it as running until it is terminated."""
        try:
            process.stop()
        except TreeError as error:
            print(f"local cloud: {process.ident}: {error}", file=sys.stderr)
        preemption.reclaimed_at_us = time.time_ns() // 1000
        if preemption.thaw_after_s is not None:
            self._cloud.timeline.after(preemption.thaw_after_s, process.thaw)

    def _thaw(self, machine: Machine, preemption: PlannedPreemption) -> None:
        """Resume a machine that the cloud lists as ended: a zombie."""
        assert machine.process is not None  # noqa: S101  only machines with a process are reclaimed
        machine.process.thaw()
        preemption.thawed_at_us = time.time_ns() // 1000
        self._cloud.timeline.after(preemption.zombie_s, machine.process.kill)


def _matches(rule: Preemption, machine: Machine) -> bool:
    launch = machine.launch
    return (
        rule.personality in ("", launch.personality)
        and rule.zone in ("", launch.zone)
        and rule.instance in ("", launch.instance_id)
        and (machine.spot or rule.kind in ("none", "maintenance"))
    )


def _notice_id(machine: Machine, kind: str, deadline_us: int) -> str:
    """The notice's id, as the machine's metadata service shows it if it shows ids."""
    match machine.launch.personality, kind:
        case "aws", "preempt":
            return f"aws-terminate-{timestamp(deadline_us)}"
        case "aws", "maintenance":
            return f"instance-event-{uuid.uuid4().hex[:17]}"
        case "azure", _:
            return str(uuid.uuid4()).upper()
    return f"{machine.launch.personality}-{kind}-{uuid.uuid4().hex[:12]}"
