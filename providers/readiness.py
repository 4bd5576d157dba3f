"""Readiness checks of a cloud account for `spotctl doctor`: credentials, permissions by dry run,
quotas, images, networks, clocks. No check creates or changes anything.

A provider that supports them is a `ReadinessChecker`; not every provider is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Protocol, runtime_checkable

from providers.base import (
    AuthError,
    CapacityType,
    LaunchRequest,
    Offer,
    ProviderError,
    ThrottledError,
)

MAX_PARALLEL = 8
# EC2 refuses signatures that are five minutes off, and notice deadlines are wall time.
SKEW_FAILS_S, SKEW_WARNS_S = 60.0, 5.0

ANY_SOURCE = {"*", "0.0.0.0/0", "::/0", "internet", "any"}  # in the notations of the clouds


class Grade(str, Enum):
    """Severity of a finding. Only FAIL makes the doctor's result a failure."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CapacityNeed:
    """`count` machines of one type that a job needs at the same time.

    `cpus` and `accelerator_count` are per machine. `job_name` is "" for offers that the
    configuration allows without a job.
    """

    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    count: int = 1
    cpus: float = 0.0
    accelerator: str = ""
    accelerator_count: int = 0
    job_name: str = ""

    def describe(self) -> str:
        """Describe it, like "2 x p5.48xlarge for llama"."""
        count_text = f"{self.count} x " if self.count > 1 else ""
        return f"{count_text}{self.instance_type}" + (
            f" for {self.job_name}" if self.job_name else ""
        )


def need_of(offer: Offer, count: int = 1, job_name: str = "") -> CapacityNeed:
    """Return the need for `count` machines of an offer."""
    return CapacityNeed(
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        capacity_type=offer.capacity_type,
        count=count,
        cpus=offer.cpus,
        accelerator=offer.accelerator,
        accelerator_count=offer.accelerator_count,
        job_name=job_name,
    )


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `check` is "credentials", "permissions", "quota", "image", "network", "clock" or "queue";
    `region` is "" for the whole cloud. `fix` is the remedy where the grade is not OK. For a quota,
    `serves` are the needs of which it allows at least one machine, `lacks` the others.
    """

    check: str
    grade: Grade
    text: str
    fix: str = ""
    region: str = ""
    serves: tuple[CapacityNeed, ...] = ()
    lacks: tuple[CapacityNeed, ...] = ()


@runtime_checkable
class ReadinessChecker(Protocol):
    def check_readiness(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """Check everything that costs no money. Quotas and images are checked against `needs`.

        Raises nothing: a failed call is a finding.
        """
        ...


def passed(check: str, text: str, region: str = "") -> Finding:
    return Finding(check, Grade.OK, text, region=region)


def failed(check: str, text: str, fix: str, region: str = "") -> Finding:
    """A finding that prevents machines from starting."""
    return Finding(check, Grade.FAIL, text, fix, region)


def warning(check: str, text: str, fix: str, region: str = "") -> Finding:
    """A finding that somebody should look at."""
    return Finding(check, Grade.WARN, text, fix, region)


def run_check(
    check: str, fix: str, perform: Callable[[], Iterable[Finding]], region: str = ""
) -> list[Finding]:
    """Return the findings of `perform`; a ProviderError becomes a finding.

    A throttled call says nothing about the subject of the check, so it is only a warning.
    """
    try:
        return [*perform()]
    except AuthError as error:
        return [failed(check, str(error), fix, region)]
    except ThrottledError as error:
        retry = "retry in a minute: the cloud is throttling requests"
        return [warning(check, f"not checked: {error}", retry, region)]
    except ProviderError as error:
        return [failed(check, str(error), fix, region)]


def run_parallel(checks: Sequence[Callable[[], Sequence[Finding]]]) -> list[Finding]:
    """Run the checks in parallel, at most MAX_PARALLEL at once; return their findings in order."""
    with ThreadPoolExecutor(max(1, min(MAX_PARALLEL, len(checks)))) as pool:
        return [
            finding for findings in pool.map(lambda check: check(), checks) for finding in findings
        ]


def check_clock(cloud: str, date: str, before_s: float, after_s: float) -> list[Finding]:
    """Compare this box's clock with the Date header of an answer, which has whole seconds.

    The request was sent at `before_s` and answered at `after_s` (unix time). Returns nothing for a
    header that cannot be read.
    """
    try:
        server_s = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return []
    # The header was written somewhere between, in the second that began at `server_s`.
    behind_s, ahead_s = server_s - after_s, before_s - (server_s + 1)
    offset_s = max(behind_s, ahead_s, 0.0)
    direction = "behind" if behind_s > ahead_s else "ahead of"
    if offset_s < SKEW_WARNS_S:
        return [passed("clock", f"this box and {cloud} agree to within {SKEW_WARNS_S:.0f} s")]
    text = f"this box is {offset_s:.0f} s {direction} {cloud}"
    fix = "set this box's clock: timedatectl set-ntp true, and see `timedatectl timesync-status`"
    grade = Grade.FAIL if offset_s >= SKEW_FAILS_S else Grade.WARN
    return [Finding("clock", grade, text, fix)]


def check_quota(
    name: str,
    limit: float,
    unit: str,
    needs: Sequence[CapacityNeed],
    units_per_machine: Callable[[CapacityNeed], float],
    fix: str,
    region: str,
) -> Finding:
    """Compare a limit (below 0: unlimited) with the largest need.

    `units_per_machine` counts a machine in the unit of the limit. The finding `serves` the needs of
    which at least one machine fits, even if not all do.
    """
    largest = max(needs, key=lambda need: need.count * units_per_machine(need))
    needed = largest.count * units_per_machine(largest)
    limit_text = "no limit" if limit < 0 else f"{limit:g} {unit}"
    serves = tuple(need for need in needs if limit < 0 or units_per_machine(need) <= limit)
    sufficient = limit < 0 or needed <= limit
    return Finding(
        "quota",
        Grade.OK if sufficient else Grade.FAIL,
        f"{name}: {limit_text}; {needed:g} are needed ({largest.describe()})",
        "" if sufficient else fix,
        region,
        serves,
        tuple(need for need in needs if need not in serves),
    )


def check_ssh_access(
    sources: Sequence[str], location: str, fix: str, narrow_fix: str, region: str
) -> Finding:
    """Check the sources that the firewall allows to use SSH. `narrow_fix` is the remedy when
    everybody may; `location` describes where the machines are."""
    if not sources:
        return failed("network", "its firewall allows SSH from nowhere", fix, region)
    if ANY_SOURCE & {source.lower() for source in sources}:
        return warning("network", "its firewall allows SSH from everywhere", narrow_fix, region)
    return passed("network", f"{location}; SSH from {', '.join(sources)}", region)


def dry_run_request(need: CapacityNeed) -> LaunchRequest:
    """A launch request for dry runs only. Its keys belong to nobody."""
    token = f"spotd-doctor-{int(time.time())}"
    return LaunchRequest(
        token=token,
        name=token,
        region=need.region,
        zone=need.zone,
        instance_type=need.instance_type,
        capacity_type=need.capacity_type,
        tags={},
        ssh_user="spotd",
        ssh_public_key="",
        host_private_key="",
        host_public_key="",
    )
