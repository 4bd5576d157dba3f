"""The Fault Injection Service of the stand-in. moto keeps templates and experiments, and lets time
pass; what an experiment does to machines happens here, when it begins."""

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
    """What is asked for; "" for what the stand-in has not."""
    return _VERBS.get((method, path.strip("/").split("/")[0]), "")


def asked_of(path: str, body: bytes) -> dict[str, Any]:
    """The body, and the id of the path as "id"."""
    ident = path.strip("/").split("/")[1:]
    return {**(json.loads(body) if body else {}), **({"id": ident[0]} if ident else {})}


class Experiments:
    """`interrupt` takes a spot machine back; `roles` are those that an experiment may assume, None:
    any."""

    def __init__(self, account: str, interrupt: Callable[[str], None]) -> None:
        self._account = account
        self._interrupt = interrupt
        self.roles: set[str] | None = None

    def begin(self, region: str, answer: bytes) -> bytes:
        """What StartExperiment answers, once what it began has its effect."""
        told = json.loads(answer)["experiment"]
        found = get_backend("fis")[self._account][region].experiments[told["id"]]
        wrong = self._wrong(region, told)
        if wrong:
            found.status = "failed"
            found.STATUS_REASONS = {**found.STATUS_REASONS, "failed": wrong}
            return answer
        for machine in _machines(told):
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
            row = next((one for one in ec2.all_instances() if one.id == machine), None)
            if row is None or row.lifecycle != "spot" or row.state not in ("running", "pending"):
                return "Target resolution returned empty set"
        return ""


def _machines(told: dict[str, Any]) -> Iterator[str]:
    for target in told["targets"].values():
        for arn in target.get("resourceArns", ()):
            yield arn.rpartition("/")[2]
