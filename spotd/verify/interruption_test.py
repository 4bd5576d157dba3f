"""Run an interruption test: train, save, interrupt the machine, watch the recovery, cancel.

The job is cancelled whatever happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from providers.base import ProviderError
from providers.dollars import format_usd
from providers.fault_injection import FaultInjector
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.base.errors import UserError
from spotd.domain.phase import FINISHED
from spotd.verify.interruption_report import Milestone, TestObservations, milestones

# The job's total cost and duration are limited by the daemon: see interruption_job.py.
TRAIN_TIMEOUT_S = 3600.0  # from submission to the first step
SAVE_TIMEOUT_S = 3600.0  # from the first step to a checkpoint
RESUME_TIMEOUT_S = 3600.0  # from the notice to a step on the replacement
END_TIMEOUT_S = 900.0  # from cancellation until every machine is gone
POLL_S = 1.0


class InterruptionTestError(Exception):
    """The test cannot continue; observations made so far are still valid."""


class Daemon(Protocol):
    """The daemon's API. Raises UserError."""

    def call(
        self, endpoint: Endpoint, *, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]: ...


@dataclass
class InterruptionTest:
    """An interruption test of a job that was already submitted.

    `on_milestone` is called for each milestone as it is reached. `observations` hold the result,
    also of a test that failed.
    """

    daemon: Daemon
    cloud: FaultInjector
    job_id: str
    on_milestone: Callable[[Milestone], None] = lambda _mark: None
    observations: TestObservations = field(default_factory=TestObservations)

    def run(self) -> None:
        """Run the test, cancel the job, and wait until its machines are gone.

        Failures are added to `observations`, including machines that remain. Raises UserError if
        the daemon fails, and KeyboardInterrupt.
        """
        try:
            self._run_phases()
        except (InterruptionTestError, ProviderError) as error:
            self.observations.failures.append(str(error))
        finally:
            try:
                self._cancel_and_wait()
            except UserError as error:
                message = f"{error.text}: whether the job was cancelled and has ended is not known"
                self.observations.failures.append(message)
                raise

    def _run_phases(self) -> None:
        started_s = time.monotonic()
        node = self._wait_for("started training", self._training_node, TRAIN_TIMEOUT_S)
        self.observations.node_id = node["id"]
        self._report("trains", _describe_node(node), started_s)
        started_s = time.monotonic()
        self._wait_for("saved a checkpoint", self._has_saved, SAVE_TIMEOUT_S)
        self._report("a checkpoint", f"of step {self.observations.saves[-1]['step']}", started_s)
        started_s, self.observations.requested_at_s = time.monotonic(), time.time()
        interruption = self.cloud.interrupt(self.observations.interrupted_node["instance_id"])
        self.observations.request_text = interruption.request
        self.observations.fee_usd = self.cloud.interruption_usd
        self._report("interruption requested", interruption.request, started_s)
        self._watch(interruption.notice_within_s)

    def _watch(self, notice_within_s: float) -> None:
        """Report milestones until the replacement trains. Raises InterruptionTestError."""
        reported: set[str] = set()
        deadline_s = time.monotonic() + notice_within_s
        noticed = False
        while True:
            self._refresh()
            for milestone in milestones(self.observations):
                if milestone.seconds is not None and milestone.name not in reported:
                    reported.add(milestone.name)
                    self.on_milestone(milestone)
            if self.observations.replacement.get("first_step_at"):
                return
            self._check_runs()
            interrupted_node = self.observations.interrupted_node
            if not noticed and (self.observations.notice or interrupted_node["gone_at"]):
                noticed, deadline_s = True, time.monotonic() + RESUME_TIMEOUT_S
            if time.monotonic() > deadline_s:
                expected = "trained again" if noticed else "heard a notice"
                raise InterruptionTestError(
                    f"the job has not {expected} in time: the steps above are all"
                )
            time.sleep(POLL_S)

    def _cancel_and_wait(self) -> None:
        """Cancel the job, wait until every machine is gone, and record the cost."""
        started_s = time.monotonic()
        self.daemon.call(routes.CANCEL_JOB(job=self.job_id))
        while time.monotonic() < started_s + END_TIMEOUT_S:
            self._refresh()
            remaining = [node for node in self.observations.job["nodes"] if node["state"] != "gone"]
            if not remaining and self.observations.job["phase"] in FINISHED:
                break
            time.sleep(POLL_S)
        else:
            names = ", ".join(node["instance_id"] or node["id"] for node in remaining)
            message = f"still there {END_TIMEOUT_S:.0f} s after its end: {names}"
            self.observations.failures.append(message)
        self.observations.cost = self.daemon.call(routes.JOB_COST(job=self.job_id))
        self._report("ended", format_usd(self.observations.cost["spend_usd"]), started_s)

    # --- the daemon's record

    def _refresh(self) -> None:
        """Fetch the job, and record new checkpoints and the step at which it resumed."""
        job = self.daemon.call(routes.SHOW_JOB(job=self.job_id))
        self.observations.job, newest = job, job["last_checkpoint"]
        if newest and newest not in self.observations.saves:
            self.observations.saves.append(newest)
        replacement = self.observations.replacement
        if replacement.get("claimed_at") and self.observations.resumed_step is None:
            self.observations.resumed_step = self._resumed_step(replacement["id"])

    def _resumed_step(self, node_id: str) -> int | None:
        after = 0
        while True:
            page = self.daemon.call(
                routes.READ_EVENTS(), query={"job": self.observations.job["id"], "after": after}
            )
            for event in page["items"]:
                if event["kind"] == "claimed" and event["node_id"] == node_id:
                    return int(event["data"]["step"])
            if not page["items"]:
                return None
            after = page["cursor"]

    def _training_node(self) -> dict[str, Any] | None:
        nodes = (node for node in self.observations.job["nodes"] if node["state"] == "running")
        return next((node for node in nodes if node["first_step_at"]), None)

    def _has_saved(self) -> bool:
        """Return whether the training machine has saved; it may be another than before."""
        node = self._training_node()
        if node is not None:
            self.observations.node_id = node["id"]
        generation = self.observations.interrupted_node.get("generation")
        return any(save["generation"] == generation for save in self.observations.saves)

    def _wait_for(self, goal: str, check: Callable[[], Any], timeout_s: float) -> Any:
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            self._refresh()
            result = check()
            if result:
                return result
            self._check_runs()
            time.sleep(POLL_S)
        raise InterruptionTestError(f"the job has not {goal} within {timeout_s:.0f} s")

    def _check_runs(self) -> None:
        job = self.observations.job
        if job["phase"] in FINISHED:
            message = f"the job {job['phase']} before it was over"
            raise InterruptionTestError(
                f"{message}: {job['outcome_text'] or 'it has no more steps'}"
            )

    def _report(self, name: str, text: str, started_s: float) -> None:
        self.on_milestone(Milestone(name, text, time.monotonic() - started_s))


def _describe_node(node: dict[str, Any]) -> str:
    price = f"at {format_usd(node['price_usd_per_h'])}/h"
    return f"{node['zone']} {node['instance_type']} {price}, {node['instance_id']}"
