"""The cloud itself: machines asked for, listed and ended. Taking them away is `taking.py`."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from providers.base import InstanceState, LaunchRequest
from providers.local.api_errors import Garble, HangUp, NotVisible, Refusal
from providers.local.launch_validation import DEPLOYMENT_TAG, check, digest_of, prepare
from providers.local.ledger import Ledger, MachineEnd
from providers.local.leftovers import Leftovers
from providers.local.machine import Machine
from providers.local.market import Market
from providers.local.process_pool import ProcessPool, ProcessPoolError, SpawnRequest
from providers.local.scenario import Fault, Scenario, Zone
from providers.local.site import MachineSite, SiteError
from providers.local.timeline import Timeline

_TERMINATED_VISIBLE_US = 3600 * 1_000_000
_OUTRIGHT = {  # faults that answer in place of the call
    "http_500": ("internal", "internal error (fault of the scenario)"),
    "throttled": ("throttled", "too many calls (fault of the scenario)"),
    "unauthorized": ("unauthorized", "credentials refused (fault of the scenario)"),
}
_INSTEAD = {  # faults that refuse a launch which is not a replay
    "no_capacity": ("no_capacity", "no capacity in this zone (fault of the scenario)"),
    "quota": ("quota", "quota of this region is used up (fault of the scenario)"),
    "price": ("price", "the price is above the cap (fault of the scenario)"),
    "rejected": ("rejected", "the request is wrong (fault of the scenario)"),
}
_ANY_OTHER = {"rejected": _INSTEAD["rejected"]}

Faults: TypeAlias = list[Fault]
Rows: TypeAlias = list[dict[str, object]]
Listener: TypeAlias = Callable[[Machine, Mapping[str, object]], None]


class CloudState:
    """Every verb may raise Refusal, HangUp or Garble; safe to call from several threads.

    `listener` hears what machines report ("launched", "exec", "acknowledged"); no lock is held.
    """

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        lost: Callable[[], None],
        site: MachineSite | None = None,
    ) -> None:
        self._site = site
        self._began_s = time.monotonic()
        self.market = Market(scenario, self.elapsed_s)
        self.timeline = Timeline()
        # First, because it makes the folder ours alone.
        self.nursery = ProcessPool(folder, lost, site.program if site else None)
        self.ledger = Ledger(folder)
        self.leftovers = Leftovers()
        self.lock = threading.RLock()
        self.machines: dict[str, Machine] = {}
        self.listener: Listener = lambda _machine, _event: None
        self._tokens: dict[tuple[str, str], Machine] = {}
        self._born = 0
        self._restore()

    def elapsed_s(self) -> float:
        """Time since the start, by which the scenario counts."""
        return time.monotonic() - self._began_s

    def _restore(self) -> None:
        books = self.ledger.books
        for ident, launch in books.launches.items():
            end = books.ends[ident]
            state = InstanceState.FAILED if end.error_code else InstanceState.TERMINATED
            self._keep(Machine(launch, state, end))
        self.nursery.discard(list(books.launches))

    def _keep(self, machine: Machine) -> None:
        self.machines[machine.ident] = machine
        self._tokens[machine.launch.personality, machine.launch.token] = machine

    # --- the verbs

    def launch(self, personality: str, request: LaunchRequest) -> dict[str, object]:
        """One machine for one token: asked again, the same machine, ended or not."""
        faults = self.suffer("launch", personality, request.zone)
        with self.lock:
            known = self._tokens.get((personality, request.token))
            if known is None:
                zone = self._admit(personality, request, faults)
                machine, birth = self._reserve(personality, request, zone)
        if known is not None:
            if known.launch.digest != digest_of(request):
                text = f"token {request.token} was used for another request"
                raise Refusal("token_mismatch", text)
            self.lose(faults)
            return {"instance_id": known.ident}
        late_s = [f.seconds for f in faults if f.kind == "fails_later"]
        if late_s:
            birth.close()
            self.timeline.after(late_s[0], lambda: self._fail(machine))
        else:
            self._start(machine, birth)
        self.lose(faults)
        if any(f.kind == "pending" for f in faults):
            return {"operation": f"operation-{machine.ident}"}
        return {"instance_id": machine.ident}

    def terminate(self, personality: str, instance_id: str) -> None:
        """End a machine; one that is not there or has ended is fine."""
        faults = self.suffer("terminate", personality)
        with self.lock:
            machine = self.machines.get(instance_id)
            known = machine is not None and machine.launch.personality == personality
        if machine is not None and known:
            self.end(machine, "terminated_by_user")
            if any(f.kind == "leftovers" for f in faults):
                self.leftovers.leave(machine.launch, time.time_ns() // 1000)
        self.lose(faults)

    def renew(self, personality: str, instance_id: str, expires_at_s: int) -> None:
        """Move the expiry tag of a living machine on, never back; one that is not there or has
        ended is fine."""
        faults = self.suffer("renew", personality)
        with self.lock:
            machine = self.machines.get(instance_id)
            if machine is not None and machine.launch.personality == personality:
                machine.renew(expires_at_s)
        self.lose(faults)

    def list(self, personality: str, deployment: str) -> Rows:
        """The deployment's machines, those that ended within the last hour included."""
        faults = self.suffer("list", personality)
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
        self.lose(faults)
        return rows

    def left(self, personality: str, deployment: str) -> Rows:
        """What the deployment's machines left behind."""
        faults = self.suffer("leftovers", personality)
        rows = self.leftovers.rows(personality, deployment)
        self.lose(faults)
        return rows

    def discard(self, personality: str, leftover_id: str) -> None:
        """Delete one of those; one that is not there is fine."""
        faults = self.suffer("discard", personality)
        self.leftovers.discard(personality, leftover_id)
        self.lose(faults)

    def offers(self, personality: str) -> Rows:
        """Everything on sale."""
        faults = self.suffer("offers", personality)
        rows = [
            {**vars(offer), "capacity_type": offer.capacity_type.value}
            for offer in self.market.offers(personality)
        ]
        self.lose(faults)
        return rows

    def meter(self) -> Rows:
        """Machine-seconds by token, running ones up to now. Failed creates count as nothing."""
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

    # --- ends

    def end(self, machine: Machine, reason: str, error: str = "") -> None:
        """Kill a machine and stop billing, in the background; at most once a machine."""
        with self.lock:
            if machine.state is InstanceState.STOPPING:
                return
            was_alive = machine.alive
            if was_alive:
                machine.state = InstanceState.STOPPING
        body = machine.body
        if was_alive:
            threading.Thread(target=self._kill, args=(machine, reason, error)).start()
        elif body is not None and body.stopped and not machine.zombie:
            retention_s = self.market.scenario.silent_retention_s
            self.timeline.after(retention_s, body.kill)

    def _kill(self, machine: Machine, reason: str, error: str) -> None:
        try:
            if machine.body is not None:
                machine.body.kill()
        except Exception:  # noqa: BLE001  it costs nothing more, but somebody must look at this
            traceback.print_exc()
        self.close(machine, reason, error)

    def close(self, machine: Machine, reason: str, error: str = "", error_code: str = "") -> None:
        """Stop billing now; only the first end counts."""
        with self.lock:
            if machine.end is None:
                at_us = time.time_ns() // 1000
                machine.end = MachineEnd(machine.ident, at_us, reason, error, error_code)
                failed = bool(error_code)
                machine.state = InstanceState.FAILED if failed else InstanceState.TERMINATED
                self.ledger.end(machine.end)

    def shutdown(self) -> None:
        """End everything and leave nothing running."""
        self.timeline.close()
        with self.lock:
            machines = [m for m in self.machines.values() if m.body is not None]
        threads = [
            threading.Thread(
                target=self._kill, args=(m, "server_gone", "the local cloud was stopped")
            )
            for m in machines
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.nursery.close()
        self.ledger.close()

    # --- parts of a launch

    def _admit(self, personality: str, request: LaunchRequest, faults: Faults) -> Zone:
        for fault in faults:
            if fault.kind in _INSTEAD:
                raise Refusal(*_INSTEAD[fault.kind])
        zone = check(self.market, personality, request)
        used = sum(
            m.alive
            and m.launch.zone == zone.name
            and m.launch.personality == personality
            and m.launch.capacity_type is request.capacity_type
            for m in self.machines.values()
        )
        if used >= self.market.capacity(zone, request.capacity_type):
            raise Refusal(
                "no_capacity", f"no {request.capacity_type.value} capacity in {zone.name}"
            )
        return zone

    def _reserve(
        self, personality: str, request: LaunchRequest, zone: Zone
    ) -> tuple[Machine, SpawnRequest]:
        self._born += 1
        scenario = self.market.scenario
        try:
            launch, birth = prepare(
                personality=personality,
                request=request,
                zone=zone,
                number=self._born,
                first_call_delay_s=scenario.azure_first_call_delay_s,
                site=self._site,
            )
        except SiteError as error:
            raise Refusal("no_capacity", str(error)) from None
        machine = Machine(launch, InstanceState.PENDING)
        machine.visible_at_s = time.monotonic() + scenario.visibility_s
        self._keep(machine)
        self.ledger.launch(launch)
        if request.max_run_s:
            self.timeline.after(request.max_run_s, lambda: self.end(machine, "max_run"))
        return machine, birth

    def _start(self, machine: Machine, birth: SpawnRequest) -> None:
        try:
            body = self.nursery.bear(birth, lambda event: self._hear(machine, event))
        except (ProcessPoolError, OSError) as error:
            self.close(machine, "failed", str(error), "UnknownOutcome")
            raise Refusal("internal", str(error)) from None
        with self.lock:
            machine.body = body
            ended = not machine.alive or machine.state is InstanceState.STOPPING
            if not ended:
                machine.state = InstanceState.RUNNING
        if ended:  # terminated while it was being born
            body.kill()
        else:
            self.listener(machine, {"event": "launched"})

    def _fail(self, machine: Machine) -> None:
        launch = machine.launch
        text = f"no capacity for {launch.instance_type} in {launch.zone} after all"
        self.close(machine, "failed", text, "CapacityError")

    def _hear(self, machine: Machine, event: Mapping[str, object]) -> None:
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

    def suffer(self, operation: str, personality: str, zone: str = "") -> Faults:
        """The faults that hit this call, once those that answer in its place have done so."""
        faults = self.market.take_faults(operation, personality, zone)
        # A launch is looked at for what it asks; a replay asks for nothing.
        outright = _OUTRIGHT if operation == "launch" else _OUTRIGHT | _ANY_OTHER
        for fault in faults:
            if fault.kind == "delay":
                time.sleep(fault.seconds)
            elif fault.kind in outright:
                code, text = outright[fault.kind]
                raise Refusal(code, text, fault.seconds)
            elif fault.kind == "invisible":
                raise NotVisible
        return faults

    @staticmethod
    def lose(faults: Faults) -> None:
        """What was done is answered in a way that nobody can use, where a fault says so."""
        kinds = {fault.kind for fault in faults}
        if "lost_reply" in kinds:
            raise HangUp
        if "garbage" in kinds:
            raise Garble
