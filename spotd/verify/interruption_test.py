"""A rehearsal, step by step: the job trains and saves, its cloud is asked to take its machine, the
daemon is watched, the job is cancelled. Whatever happens, the job is cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from providers.base import ProviderError
from providers.fault_injection import Interrupter
from spotd.base.errors import UserError
from spotd.verify.interruption_report import Milestone, TestObservations, milestones

# How long is waited. What a job may cost and take, the daemon holds it to: see jobfile.py.
TRAINS_S = 3600.0  # from its submission to the first step
SAVES_S = 3600.0  # from there to a checkpoint
RESUMES_S = 3600.0  # from the notice to a step on the next machine
ENDS_S = 900.0  # from its cancellation until every machine is gone
LOOK_S = 1.0
_FINISHED = ("succeeded", "failed", "cancelled")


class InterruptionTestError(Exception):
    """It could not go on; what was seen until then stands."""


class Daemon(Protocol):
    """The API, as the command line has it. Raises UserError."""

    def get(self, path: str, **query: object) -> dict[str, Any]: ...

    def post(self, path: str, body: Any = None) -> dict[str, Any]: ...


@dataclass
class InterruptionTest:
    """Of a job that was submitted. `tell` hears of each step with the seconds since the one before;
    `seen` is what it came to, also of one that failed."""

    daemon: Daemon
    cloud: Interrupter
    job_path: str
    tell: Callable[[Milestone], None] = lambda _mark: None
    seen: TestObservations = field(default_factory=TestObservations)

    def run(self) -> None:
        """All of it; the job is cancelled and its machines are gone when this is over, or `seen`
        says that they are not. Raises what stops this program, and UserError of the daemon's."""
        try:
            self._play()
        except (InterruptionTestError, ProviderError) as error:
            self.seen.failed.append(str(error))
        finally:
            try:
                self._end()
            except UserError as error:
                text = f"{error.text}: whether the job was cancelled and has ended is not known"
                self.seen.failed.append(text)
                raise

    def _play(self) -> None:
        began_s = time.monotonic()
        node = self._until("trains", self._training, TRAINS_S)
        self.seen.node_id = node["id"]
        self._tell("trains", _where(node), began_s)
        began_s = time.monotonic()
        self._until("has saved a checkpoint", self._saved, SAVES_S)
        self._tell("a checkpoint", f"of step {self.seen.saves[-1]['step']}", began_s)
        began_s, self.seen.asked_s = time.monotonic(), time.time()
        found = self.cloud.interrupt(self.seen.old["instance_id"])
        self.seen.asked, self.seen.fee_usd = found.asked, self.cloud.interruption_usd
        self._tell("interruption asked for", found.asked, began_s)
        self._watch(found.heard_within_s)

    def _watch(self, heard_within_s: float) -> None:
        """Until the next machine trains, or there is nothing to wait for."""
        told: set[str] = set()
        late_s = time.monotonic() + heard_within_s
        heard = False
        while True:
            self._look()
            for mark in milestones(self.seen):
                if mark.seconds is not None and mark.name not in told:
                    told.add(mark.name)
                    self.tell(mark)
            if self.seen.new.get("first_step_at"):
                return
            self._check_runs()
            if not heard and (self.seen.notice or self.seen.old["gone_at"]):
                heard, late_s = True, time.monotonic() + RESUMES_S
            if time.monotonic() > late_s:
                what = "trained again" if heard else "heard a notice"
                raise InterruptionTestError(f"the job has not {what} in time: what is above is all")
            time.sleep(LOOK_S)

    def _end(self) -> None:
        """Cancelled, and every machine gone; what it cost."""
        began_s = time.monotonic()
        self.daemon.post(f"{self.job_path}/cancel")
        while time.monotonic() < began_s + ENDS_S:
            self._look()
            left = [n for n in self.seen.job["nodes"] if n["state"] != "gone"]
            if not left and self.seen.job["phase"] in _FINISHED:
                break
            time.sleep(LOOK_S)
        else:
            names = ", ".join(n["instance_id"] or n["id"] for n in left)
            self.seen.failed.append(f"still there {ENDS_S:.0f} s after its end: {names}")
        self.seen.cost = self.daemon.get(f"{self.job_path}/cost")
        self._tell("ended", f"{self.seen.cost['spend_usd']:.4f} USD", began_s)

    # --- the daemon's record

    def _look(self) -> None:
        """The job as it is; checkpoints are told of one by one."""
        job = self.daemon.get(self.job_path)
        self.seen.job, newest = job, job["last_checkpoint"]
        if newest and newest not in self.seen.saves:
            self.seen.saves.append(newest)
        new = self.seen.new
        if new.get("claimed_at") and self.seen.resumed_step is None:
            self.seen.resumed_step = self._resumed(new["id"])

    def _resumed(self, node_id: str) -> int | None:
        after = 0
        while True:
            page = self.daemon.get("/v1/events", job=self.seen.job["id"], after=after)
            for event in page["items"]:
                if event["kind"] == "claimed" and event["node_id"] == node_id:
                    return int(event["data"]["step"])
            if not page["items"]:
                return None
            after = page["cursor"]

    def _training(self) -> dict[str, Any] | None:
        nodes = (n for n in self.seen.job["nodes"] if n["state"] == "running")
        return next((n for n in nodes if n["first_step_at"]), None)

    def _saved(self) -> bool:
        """By the machine that trains; another one may have taken its place by itself meanwhile."""
        node = self._training()
        if node is not None:
            self.seen.node_id = node["id"]
        generation = self.seen.old.get("generation")
        return any(save["generation"] == generation for save in self.seen.saves)

    def _until(self, what: str, look: Callable[[], Any], patience_s: float) -> Any:
        end_s = time.monotonic() + patience_s
        while time.monotonic() < end_s:
            self._look()
            found = look()
            if found:
                return found
            self._check_runs()
            time.sleep(LOOK_S)
        raise InterruptionTestError(
            f"the job has not come so far that it {what} in {patience_s:.0f} s"
        )

    def _check_runs(self) -> None:
        job = self.seen.job
        if job["phase"] in _FINISHED:
            said = f"the job {job['phase']} before it was over"
            raise InterruptionTestError(f"{said}: {job['outcome_text'] or 'it has no more steps'}")

    def _tell(self, name: str, text: str, began_s: float) -> None:
        self.tell(Milestone(name, text, time.monotonic() - began_s))


def _where(node: dict[str, Any]) -> str:
    price = f"at ${node['price_usd_per_h']:.4f}/h"
    return f"{node['zone']} {node['instance_type']} {price}, {node['instance_id']}"
