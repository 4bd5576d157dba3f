"""Decisions of spot-reaper from a listing: it knows tags and a clock, and nothing else.

The daemon renews every machine that it needs every hour. If an expiry has passed, no living daemon
needs the machine. After half of the time without a renewal an alert is sent: a control box is dead,
and the training will save and end when the time is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from providers.base import UNATTENDED_TAG, Instance, InstanceState
from spotd.domain.units import S
from spotd.planner.core.expiry import LATE_SHARE

SKEW_S = 300.0  # by so much may the clocks of two machines differ
LONGEST_S = 720 * 3600.0  # an expiry further ahead is none that `limits.unattended_h` allows
USUAL_S = 86_400.0  # the time of a machine whose tags do not say it

_LIVING = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING)


class MachineProblem(str, Enum):
    """A problem of a machine."""

    EXPIRED = "expired"
    SILENT = "silent"  # half of its time has passed without a renewal
    UNTAGGED = "untagged"  # it says of no time when it may be ended
    STRANGE = "strange"  # it says of one that is none, or the clock here is far behind


@dataclass(frozen=True)
class Finding:
    """A machine with a problem. `expires_at_us` is 0 if unknown."""

    found: MachineProblem
    instance: Instance
    expires_at_us: int = 0
    silent_s: float = 0.0


def look(
    instances: Iterable[Instance], deployment: str, now_us: int, unattended_s: float | None = None
) -> list[Finding]:
    """Return every problem of one listing, without the machines of other deployments.

    `unattended_s` replaces the machines' own tags.
    """
    living = (instance for instance in instances if instance.state in _LIVING)
    ours = (i for i in living if i.tags.get("spotd-deployment") == deployment)
    findings = (_look_at(instance, now_us, unattended_s) for instance in ours)
    return [finding for finding in findings if finding is not None]


def _look_at(instance: Instance, now_us: int, unattended_s: float | None) -> Finding | None:
    expires_us = instance.expires_at_us
    if not expires_us:
        return Finding(MachineProblem.UNTAGGED, instance)
    if expires_us - now_us > (LONGEST_S + SKEW_S) * S:
        return Finding(MachineProblem.STRANGE, instance, expires_us)
    time_s = unattended_s or _tagged_s(instance)
    silent_s = time_s - (expires_us - now_us) / S
    if now_us > expires_us + SKEW_S * S:
        return Finding(MachineProblem.EXPIRED, instance, expires_us, silent_s)
    if silent_s > LATE_SHARE * time_s:
        return Finding(MachineProblem.SILENT, instance, expires_us, silent_s)
    return None


def _tagged_s(instance: Instance) -> float:
    text = instance.tags.get(UNATTENDED_TAG, "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 9 else USUAL_S
