"""State of the local cloud: launch, list and terminate machines."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from providers.base import InstanceState, LaunchRequest
from providers.local.api_errors import GarbledReply, LostReply, NotVisible, Refusal
from providers.local.launch_validation import DEPLOYMENT_TAG, prepare, request_digest, validate
from providers.local.ledger import Ledger, MachineEnd
from providers.local.leftovers import Leftovers
from providers.local.machine import Machine
from providers.local.market import Market
from providers.local.process_pool import ProcessPool, ProcessPoolError, SpawnRequest
from providers.local.scenario import Fault, Scenario, Zone
from providers.local.site import MachineSite, SiteError
from providers.local.timeline import Timeline

_TERMINATED_VISIBLE_US = 3600 * 1_000_000
_CALL_ERRORS = {  # faults that replace any call by an error
    "http_500": ("internal", "internal error (fault of the scenario)"),
    "throttled": ("throttled", "too many calls (fault of the scenario)"),
    "unauthorized": ("unauthorized", "credentials refused (fault of the scenario)"),
}
_LAUNCH_ERRORS = {  # faults that refuse a launch, unless its token is known already
    "no_capacity": ("no_capacity", "no capacity in this zone (fault of the scenario)"),
    "quota": ("quota", "quota of this region is used up (fault of the scenario)"),
    "price": ("price", "the price is above the cap (fault of the scenario)"),
    "rejected": ("rejected", "the request is wrong (fault of the scenario)"),
}
_REJECTED_ERROR = {"rejected": _LAUNCH_ERRORS["rejected"]}

Faults: TypeAlias = list[Fault]
Rows: TypeAlias = list[dict[str, object]]
Listener: TypeAlias = Callable[[Machine, Mapping[str, object]], None]


class CloudState:
    """The machines and their market. Thread-safe.

    Every API call may raise Refusal, NotVisible, LostReply or GarbledReply. `listener(machine,
    event)` is called without the lock for each event a machine reports ("launched", "exec", ...).
    `on_death` is called if the fork server dies.
    """

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        on_death: Callable[[], None],
        site: MachineSite | None = None,
    ) -> None:
        self._site = site
        self._started_s = time.monotonic()
        self.market = Market(scenario, self.elapsed_s)
        self.timeline = Timeline()
        # First, because it takes the lock of the folder.
        self.pool = ProcessPool(folder, on_death, site.program if site else None)
        self.ledger = Ledger(folder)
        self.leftovers = Leftovers()
        self.lock = threading.RLock()
        self.machines: dict[str, Machine] = {}
        self.listener: Listener = lambda _machine, _event: None
        self._tokens: dict[tuple[str, str], Machine] = {}
        self._launch_count = 0
        self._restore()

    def elapsed_s(self) -> float:
        """Seconds since the start, the time base of the scenario."""
        return time.monotonic() - self._started_s

    def _restore(self) -> None:
        contents = self.ledger.contents
        for ident, launch in contents.launches.items():
            end = contents.ends[ident]
            state = InstanceState.FAILED if end.error_code else InstanceState.TERMINATED
            self._add(Machine(launch, state, end))
        self.pool.discard(list(contents.launches))

    def _add(self, machine: Machine) -> None:
        self.machines[machine.ident] = machine
        self._tokens[machine.launch.personality, machine.launch.token] = machine

    # --- API calls

    def launch(self, personality: str, request: LaunchRequest) -> dict[str, object]:
        """Launch a machine, or return the one launched with this token, even if it has ended."""
        faults = self.inject_faults("launch", personality, request.zone)
        with self.lock:
            existing = self._tokens.get((personality, request.token))
            if existing is None:
                zone = self._admit(personality, request, faults)
                machine, spawn_request = self._reserve(personality, request, zone)
        if existing is not None:
            if existing.launch.digest != request_digest(request):
                message = f"token {request.token} was used for another request"
                raise Refusal("token_mismatch", message)
            self.apply_reply_faults(faults)
            return {"instance_id": existing.ident}
        failures = [fault for fault in faults if fault.kind == "fails_later"]
        if failures:
            spawn_request.close()
            self.timeline.after(failures[0].seconds, lambda: self._fail_launch(machine))
        else:
            self._start(machine, spawn_request)
        self.apply_reply_faults(faults)
        if any(fault.kind == "pending" for fault in faults):
            return {"operation": f"operation-{machine.ident}"}
        return {"instance_id": machine.ident}

    def terminate(self, personality: str, instance_id: str) -> None:
        """Terminate a machine. Unknown and ended machines are ignored."""
        faults = self.inject_faults("terminate", personality)
        with self.lock:
            machine = self.machines.get(instance_id)
            owned = machine is not None and machine.launch.personality == personality
        if machine is not None and owned:
            self.end(machine, "terminated_by_user")
            if any(fault.kind == "leftovers" for fault in faults):
                self.leftovers.add(machine.launch, time.time_ns() // 1000)
        self.apply_reply_faults(faults)

    def renew(self, personality: str, instance_id: str, expires_at_s: int) -> None:
        """Move the expiry tag of a live machine to a later time, never back. Unknown and ended
        machines are ignored."""
        faults = self.inject_faults("renew", personality)
        with self.lock:
            machine = self.machines.get(instance_id)
            if machine is not None and machine.launch.personality == personality:
                machine.renew(expires_at_s)
        self.apply_reply_faults(faults)

    def list(self, personality: str, deployment: str) -> Rows:
        """The deployment's machines, including those that ended within the last hour."""
        faults = self.inject_faults("list", personality)
        since_us = time.time_ns() // 1000 - _TERMINATED_VISIBLE_US
        now_s = time.monotonic()
        with self.lock:
            rows = [
                machine.to_data()
                for machine in self.machines.values()
                if machine.launch.personality == personality
                and machine.launch.tags.get(DEPLOYMENT_TAG) == deployment
                and machine.visible_at_s <= now_s
                and (machine.end is None or machine.end.ended_at_us > since_us)
            ]
        self.apply_reply_faults(faults)
        return rows

    def list_leftovers(self, personality: str, deployment: str) -> Rows:
        """Resources that the deployment's machines left behind."""
        faults = self.inject_faults("leftovers", personality)
        rows = self.leftovers.rows(personality, deployment)
        self.apply_reply_faults(faults)
        return rows

    def discard(self, personality: str, leftover_id: str) -> None:
        """Delete a leftover. Unknown ids are ignored."""
        faults = self.inject_faults("discard", personality)
        self.leftovers.discard(personality, leftover_id)
        self.apply_reply_faults(faults)

    def offers(self, personality: str) -> Rows:
        """All offers of a personality."""
        faults = self.inject_faults("offers", personality)
        rows = [
            {**vars(offer), "capacity_type": offer.capacity_type.value}
            for offer in self.market.offers(personality)
        ]
        self.apply_reply_faults(faults)
        return rows

    def meter(self) -> Rows:
        """Machine-seconds by token, up to now for running ones. Failed launches count as zero."""
        now_us = time.time_ns() // 1000
        rows: Rows = []
        with self.lock:
            for machine in self.machines.values():
                launch, end = machine.launch, machine.end
                until_us = end.ended_at_us if end else now_us
                failed = machine.state is InstanceState.FAILED
                seconds = 0.0 if failed else (until_us - launch.launched_at_us) / 1e6
                rows.append(
                    {
                        "token": launch.token,
                        "instance_id": launch.instance_id,
                        "personality": launch.personality,
                        "zone": launch.zone,
                        "instance_type": launch.instance_type,
                        "capacity_type": launch.capacity_type.value,
                        "deployment": launch.tags.get(DEPLOYMENT_TAG, ""),
                        "launched_at_us": launch.launched_at_us,
                        "ended_at_us": end.ended_at_us if end else None,
                        "end_reason": end.reason if end else "",
                        "seconds": max(0.0, seconds),
                    }
                )
        return rows

    # --- termination

    def end(self, machine: Machine, reason: str, error: str = "") -> None:
        """Kill a machine and stop billing it, in the background. Later calls have no effect."""
        with self.lock:
            if machine.state is InstanceState.STOPPING:
                return
            was_alive = machine.alive
            if was_alive:
                machine.state = InstanceState.STOPPING
        process = machine.process
        if was_alive:
            threading.Thread(target=self._kill, args=(machine, reason, error)).start()
        elif process is not None and process.stopped and not machine.zombie:
            retention_s = self.market.scenario.silent_retention_s
            self.timeline.after(retention_s, process.kill)

    def _kill(self, machine: Machine, reason: str, error: str) -> None:
        try:
            if machine.process is not None:
                machine.process.kill()
        except Exception:  # noqa: BLE001  billing must stop in any case
            traceback.print_exc()
        self.close(machine, reason, error)

    def close(self, machine: Machine, reason: str, error: str = "", error_code: str = "") -> None:
        """Record the end of a machine and stop billing. Only the first end counts."""
        with self.lock:
            if machine.end is None:
                at_us = time.time_ns() // 1000
                machine.end = MachineEnd(machine.ident, at_us, reason, error, error_code)
                failed = bool(error_code)
                machine.state = InstanceState.FAILED if failed else InstanceState.TERMINATED
                self.ledger.end(machine.end)

    def shutdown(self) -> None:
        """Kill all machines and the fork server."""
        self.timeline.close()
        with self.lock:
            machines = [
                machine for machine in self.machines.values() if machine.process is not None
            ]
        threads = [
            threading.Thread(
                target=self._kill, args=(machine, "server_gone", "the local cloud was stopped")
            )
            for machine in machines
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.pool.close()
        self.ledger.close()

    # --- parts of a launch

    def _admit(self, personality: str, request: LaunchRequest, faults: Faults) -> Zone:
        for fault in faults:
            if fault.kind in _LAUNCH_ERRORS:
                raise Refusal(*_LAUNCH_ERRORS[fault.kind])
        zone = validate(self.market, personality, request)
        used = sum(
            machine.alive
            and machine.launch.zone == zone.name
            and machine.launch.personality == personality
            and machine.launch.capacity_type is request.capacity_type
            for machine in self.machines.values()
        )
        if used >= self.market.capacity(zone, request.capacity_type):
            raise Refusal(
                "no_capacity", f"no {request.capacity_type.value} capacity in {zone.name}"
            )
        return zone

    def _reserve(
        self, personality: str, request: LaunchRequest, zone: Zone
    ) -> tuple[Machine, SpawnRequest]:
        self._launch_count += 1
        scenario = self.market.scenario
        try:
            launch, spawn_request = prepare(
                personality=personality,
                request=request,
                zone=zone,
                number=self._launch_count,
                first_call_delay_s=scenario.azure_first_call_delay_s,
                site=self._site,
            )
        except SiteError as error:
            raise Refusal("no_capacity", str(error)) from None
        machine = Machine(launch, InstanceState.PENDING)
        machine.visible_at_s = time.monotonic() + scenario.visibility_s
        self._add(machine)
        self.ledger.launch(launch)
        if request.max_run_s:
            self.timeline.after(request.max_run_s, lambda: self.end(machine, "max_run"))
        return machine, spawn_request

    def _start(self, machine: Machine, spawn_request: SpawnRequest) -> None:
        try:
            process = self.pool.spawn(spawn_request, lambda event: self._on_event(machine, event))
        except (ProcessPoolError, OSError) as error:
            self.close(machine, "failed", str(error), "UnknownOutcome")
            raise Refusal("internal", str(error)) from None
        with self.lock:
            machine.process = process
            ended = not machine.alive or machine.state is InstanceState.STOPPING
            if not ended:
                machine.state = InstanceState.RUNNING
        if ended:  # terminated while it was starting
            process.kill()
        else:
            self.listener(machine, {"event": "launched"})

    def _fail_launch(self, machine: Machine) -> None:
        launch = machine.launch
        message = f"no capacity for {launch.instance_type} in {launch.zone} after all"
        self.close(machine, "failed", message, "CapacityError")

    def _on_event(self, machine: Machine, event: Mapping[str, object]) -> None:
        with self.lock:
            match event:
                case {"event": "booted", "at_us": int(at_us)}:
                    machine.booted_at_us = at_us
                case {"event": "exec", "at_us": int(at_us)}:
                    machine.first_exec_at_us = at_us
                case {"event": "powered_off"} if machine.state is InstanceState.RUNNING:
                    self.end(machine, "powered_off", "the machine was switched off from inside")
                case {"event": "gone"} if machine.state is InstanceState.RUNNING:
                    self.end(machine, "crashed", "the machine died by itself")
        self.listener(machine, event)

    # --- faults

    def inject_faults(self, operation: str, personality: str, zone: str = "") -> Faults:
        """Apply the faults that delay or replace this call; return the others that hit it."""
        faults = self.market.take_faults(operation, personality, zone)
        # "rejected" refuses new launches only, so `_admit` checks it.
        errors = _CALL_ERRORS if operation == "launch" else _CALL_ERRORS | _REJECTED_ERROR
        for fault in faults:
            if fault.kind == "delay":
                time.sleep(fault.seconds)
            elif fault.kind in errors:
                code, message = errors[fault.kind]
                raise Refusal(code, message, fault.seconds)
            elif fault.kind == "invisible":
                raise NotVisible
        return faults

    @staticmethod
    def apply_reply_faults(faults: Faults) -> None:
        """Raise LostReply or GarbledReply if a fault says that the response gets lost."""
        kinds = {fault.kind for fault in faults}
        if "lost_reply" in kinds:
            raise LostReply
        if "garbage" in kinds:
            raise GarbledReply
