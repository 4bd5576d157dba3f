"""A spot machine that AWS takes back on request: an experiment of its Fault Injection Service
(FIS), of one action on one machine.

What an experiment may do, it does by a role of its own (policy.py), which reaches spot machines of
our deployment alone. The template that FIS wants first is removed as soon as its experiment runs.
Reference: FIS User Guide, action aws:ec2:send-spot-instance-interruptions.
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
NOTICE = "PT2M"  # the least that FIS takes, and what EC2 gives
# By FIS's price list of 2026-11-23 (aws.amazon.com/fis/pricing; GovCloud: 0.12): 0.10 USD for each
# minute that an action lasts, rounded to minutes. This one lasts as long as its notice; a minute
# more is for its beginning.
MOST_USD = 3 * 0.10
HEARD_S = 300.0  # ours: FIS promises nothing
BEGUN_S = 60.0  # for an experiment to have begun
ASK_S = 1.0
_WAITING = ("pending", "initiating")
_FAILED = ("failed", "stopped", "cancelled")


def template(machine: str, role: str, deployment: str) -> dict[str, Any]:
    """The parameters of CreateExperimentTemplate; `machine` and `role` are ARNs."""
    return {
        "description": f"spotd deployment {deployment}: a spot interruption that was asked for",
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
                "parameters": {"durationBeforeInterruption": NOTICE},
                "targets": {"SpotInstances": "machine"},
            }
        },
        "stopConditions": [{"source": "none"}],
        "roleArn": role,
        "tags": {DEPLOYMENT_TAG: deployment},
    }


def interrupt(clients: Clients, deployment: str, region: str, instance: str) -> Interruption:
    """Back when the experiment has begun. Raises ProviderError."""

    def fis(operation: str, **parameters: Any) -> dict[str, Any]:
        return clients.call(region, operation, service="fis", **parameters)

    # arn:aws:sts::123456789012:assumed-role/...
    _, partition, _, _, account, _ = str(
        clients.call(region, "get_caller_identity", service="sts")["Arn"]
    ).split(":", 5)
    machine = f"arn:{partition}:ec2:{region}:{account}:instance/{instance}"
    role = f"arn:{partition}:iam::{account}:role/spotd-{INTERRUPT}-{deployment}"
    made = fis("create_experiment_template", **template(machine, role, deployment))
    ident = str(made["experimentTemplate"]["id"])
    try:
        begun = fis(
            "start_experiment", experimentTemplateId=ident, tags={DEPLOYMENT_TAG: deployment}
        )
        experiment = _begun(fis, str(begun["experiment"]["id"]))
    finally:
        with suppress(ProviderError):  # a template does nothing by itself, and costs nothing
            fis("delete_experiment_template", id=ident)
    return Interruption(f"FIS experiment {experiment} of {ACTION}, {NOTICE}", HEARD_S)


def _begun(fis: Any, experiment: str) -> str:
    """The experiment once it runs or is over. Raises RejectedError with FIS's reason for one that
    failed."""
    end_s = time.monotonic() + BEGUN_S
    while True:
        state: Mapping[str, Any] = fis("get_experiment", id=experiment)["experiment"]["state"]
        status, reason = str(state.get("status")), str(state.get("reason", ""))
        if status in _FAILED:
            raise RejectedError(f"FIS experiment {experiment} {status}: {reason}", code=status)
        if status not in _WAITING:
            return experiment
        if time.monotonic() > end_s:
            raise UnknownOutcome(f"FIS experiment {experiment} is {status} after {BEGUN_S:.0f} s")
        time.sleep(ASK_S)
