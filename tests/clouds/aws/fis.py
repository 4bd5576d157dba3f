"""The stand-in's Fault Injection Service. moto stores templates and experiments and lets time pass;
the effect on machines happens here, when an experiment starts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from moto.backends import get_backend

ACTION, TARGET = "aws:ec2:send-spot-instance-interruptions", "aws:ec2:spot-instance"
# (method, path) -> action; the id of what is asked for stands after it.
_VERBS = {
    ("POST", "experimentTemplates"): "CreateExperimentTemplate",
    ("GET", "experimentTemplates"): "GetExperimentTemplate",
    ("DELETE", "experimentTemplates"): "DeleteExperimentTemplate",
    ("POST", "experiments"): "StartExperiment",
    ("GET", "experiments"): "GetExperiment",
}


def action_of(method: str, path: str) -> str:
    """Return the requested action; "" for one that the stand-in lacks."""
    return _VERBS.get((method, path.strip("/").split("/")[0]), "")


def asked_of(path: str, body: bytes) -> dict[str, Any]:
    """Return the body, with the id in the path as "id"."""
    resource_id = path.strip("/").split("/")[1:]
    return {**(json.loads(body) if body else {}), **({"id": resource_id[0]} if resource_id else {})}


class Experiments:
    """`interrupt` preempts a spot machine; `roles` are those that an experiment may assume, None
    for any."""

    def __init__(self, account: str, interrupt: Callable[[str], None]) -> None:
        self._account = account
        self._interrupt = interrupt
        self.roles: set[str] | None = None

    def begin(self, region: str, answer: bytes) -> bytes:
        """Answer StartExperiment, after its effect has taken place."""
        reported = json.loads(answer)["experiment"]
        result = get_backend("fis")[self._account][region].experiments[reported["id"]]
        wrong = self._wrong(region, reported)
        if wrong:
            result.status = "failed"
            result.STATUS_REASONS = {**result.STATUS_REASONS, "failed": wrong}
            return answer
        for machine in _machines(reported):
            # It hears of it by and by, and may have to tell us something before.
            threading.Timer(0.0, self._interrupt, [machine]).start()
        return answer

    def _wrong(self, region: str, told: dict[str, Any]) -> str:
        if self.roles is not None and told["roleArn"] not in self.roles:
            return "Unable to assume role"
        for action in told["actions"].values():
            wanted = action["targets"].get("SpotInstances")
            target = told["targets"].get(wanted, {})
            if action["actionId"] != ACTION or target.get("resourceType") != TARGET:
                return f"no such action in the stand-in: {action}"
            if action["parameters"].get("durationBeforeInterruption") != "PT2M":
                return "the stand-in gives two minutes"
        ec2 = get_backend("ec2")[self._account][region]
        for machine in _machines(told):
            row = next(
                (instance for instance in ec2.all_instances() if instance.id == machine), None
            )
            if row is None or row.lifecycle != "spot" or row.state not in ("running", "pending"):
                return "Target resolution returned empty set"
        return ""


def _machines(told: dict[str, Any]) -> Iterator[str]:
    for target in told["targets"].values():
        for arn in target.get("resourceArns", ()):
            yield arn.rpartition("/")[2]
