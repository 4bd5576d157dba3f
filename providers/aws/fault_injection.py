"""Preempt a spot machine on request, by an experiment of AWS's Fault Injection Service (FIS).

The experiment acts by a role of its own (policy.py), which can reach only spot machines of this
deployment. The template that FIS requires is deleted as soon as the experiment runs. Reference: FIS
User Guide, action aws:ec2:send-spot-instance-interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from providers.aws.clients import Clients
from providers.aws.listing import DEPLOYMENT_TAG
from providers.base import ProviderError, RejectedError, UnknownOutcome
from providers.fault_injection import Interruption
from providers.iam.policy import INTERRUPT

ACTION = "aws:ec2:send-spot-instance-interruptions"
NOTICE_DURATION = "PT2M"  # the minimum of FIS, and EC2's notice time
# FIS price list of 2026-11-23 (aws.amazon.com/fis/pricing; GovCloud: 0.12): 0.10 USD per action
# minute, rounded to minutes. This action lasts as long as its notice, plus a minute for its start.
MAX_FEE_USD = 3 * 0.10
NOTICE_WITHIN_S = 300.0  # our estimate: FIS guarantees nothing
START_TIMEOUT_S = 60.0  # for an experiment to start
POLL_S = 1.0
_WAITING = ("pending", "initiating")
_FAILED = ("failed", "stopped", "cancelled")


def experiment_template(machine: str, role: str, deployment: str) -> dict[str, Any]:
    """Return the parameters of CreateExperimentTemplate; `machine` and `role` are ARNs."""
    return {
        "description": f"spotd deployment {deployment}: a requested spot interruption",
        "targets": {
            "machine": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [machine],
                "selectionMode": "ALL",
            }
        },
        "actions": {
            "interrupt": {
                "actionId": ACTION,
                "parameters": {"durationBeforeInterruption": NOTICE_DURATION},
                "targets": {"SpotInstances": "machine"},
            }
        },
        "stopConditions": [{"source": "none"}],
        "roleArn": role,
        "tags": {DEPLOYMENT_TAG: deployment},
    }


def interrupt(clients: Clients, deployment: str, region: str, instance: str) -> Interruption:
    """Start the experiment; returns when it runs. Raises ProviderError."""

    def fis(operation: str, **parameters: Any) -> dict[str, Any]:
        return clients.call(region, operation, service="fis", **parameters)

    # arn:aws:sts::123456789012:assumed-role/...
    _, partition, _, _, account, _ = str(
        clients.call(region, "get_caller_identity", service="sts")["Arn"]
    ).split(":", 5)
    machine = f"arn:{partition}:ec2:{region}:{account}:instance/{instance}"
    role = f"arn:{partition}:iam::{account}:role/spotd-{INTERRUPT}-{deployment}"
    created = fis("create_experiment_template", **experiment_template(machine, role, deployment))
    template_id = str(created["experimentTemplate"]["id"])
    try:
        started = fis(
            "start_experiment", experimentTemplateId=template_id, tags={DEPLOYMENT_TAG: deployment}
        )
        experiment = _wait_for_start(fis, str(started["experiment"]["id"]))
    finally:
        with suppress(ProviderError):  # a template has no effect by itself, and costs nothing
            fis("delete_experiment_template", id=template_id)
    return Interruption(
        f"FIS experiment {experiment} of {ACTION}, {NOTICE_DURATION}", NOTICE_WITHIN_S
    )


def _wait_for_start(fis: Any, experiment: str) -> str:
    """Return the experiment once it runs or is over. Raises RejectedError with FIS's reason when it
    failed."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        state: Mapping[str, Any] = fis("get_experiment", id=experiment)["experiment"]["state"]
        status, reason = str(state.get("status")), str(state.get("reason", ""))
        if status in _FAILED:
            raise RejectedError(f"FIS experiment {experiment} {status}: {reason}", code=status)
        if status not in _WAITING:
            return experiment
        if time.monotonic() > deadline_s:
            raise UnknownOutcome(
                f"FIS experiment {experiment} is {status} after {START_TIMEOUT_S:.0f} s"
            )
        time.sleep(POLL_S)
