"""What a cloud says about its own readiness, for `spotctl doctor`: credentials, permissions by dry
run, quotas, images, networks, clocks. Nothing that is asked here makes or changes anything.

A provider that can be examined is an `Examiner`; it need not be one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
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

AT_ONCE = 8
# EC2 refuses a signature that is off by five minutes, and deadlines of notices are wall time.
SKEW_FAILS_S, SKEW_WARNS_S = 60.0, 5.0

ANYBODY = {"*", "0.0.0.0/0", "::/0", "internet", "any"}  # as one cloud or another writes it


class Grade(str, Enum):
    """How bad a finding is. Only FAIL makes the doctor's answer a bad one."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CapacityNeed:
    """A job asks for `count` machines of a type in a place, at once. `cpus` and `accelerator_count`
    are those of one machine; `whose` is the job, "" for what the configuration allows."""

    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    count: int = 1
    cpus: float = 0.0
    accelerator: str = ""
    accelerator_count: int = 0
    whose: str = ""

    def words(self) -> str:
        """ "2 x p5.48xlarge for llama"."""
        many = f"{self.count} x " if self.count > 1 else ""
        return f"{many}{self.instance_type}" + (f" for {self.whose}" if self.whose else "")


def need_of(offer: Offer, count: int = 1, whose: str = "") -> CapacityNeed:
    """That many machines of an offer."""
    return CapacityNeed(
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        capacity_type=offer.capacity_type,
        count=count,
        cpus=offer.cpus,
        accelerator=offer.accelerator,
        accelerator_count=offer.accelerator_count,
        whose=whose,
    )


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `check` is "credentials", "permissions", "quota", "image",
    "network", "clock" or "queue"; `place` a region, "" for all of the cloud. `fix` says what to do
    where it is not OK. A quota names in `serves` those of which it lets one machine be made, and in
    `lacks` the others."""

    check: str
    grade: Grade
    text: str
    fix: str = ""
    place: str = ""
    serves: tuple[CapacityNeed, ...] = ()
    lacks: tuple[CapacityNeed, ...] = ()


@runtime_checkable
class ReadinessChecker(Protocol):
    """A provider that can be examined."""

    def examine(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """Everything that can be known without spending money; `needs` are what quotas and images
        are held against. Raises nothing: what fails is a finding."""
        ...


def good(check: str, text: str, place: str = "") -> Finding:
    """A finding that is as it should be."""
    return Finding(check, Grade.OK, text, place=place)


def bad(check: str, text: str, fix: str, place: str = "") -> Finding:
    """A finding that keeps machines from being had."""
    return Finding(check, Grade.FAIL, text, fix, place)


def doubtful(check: str, text: str, fix: str, place: str = "") -> Finding:
    """A finding that somebody should look at."""
    return Finding(check, Grade.WARN, text, fix, place)


def tried(
    check: str, fix: str, look: Callable[[], Iterable[Finding]], place: str = ""
) -> list[Finding]:
    """What `look` finds; a cloud's refusal is a finding, too. A cloud that is slow, or says that it
    is asked too often, says nothing about what was to be looked at."""
    try:
        return [*look()]
    except AuthError as error:
        return [bad(check, str(error), fix, place)]
    except ThrottledError as error:
        again = "again in a minute: the cloud took no more questions"
        return [doubtful(check, f"not looked at: {error}", again, place)]
    except ProviderError as error:
        return [bad(check, str(error), fix, place)]


def side_by_side(looks: Sequence[Callable[[], Sequence[Finding]]]) -> list[Finding]:
    """All of them, some at once, in their order."""
    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(looks)))) as pool:
        return [found for answer in pool.map(lambda look: look(), looks) for found in answer]


def clock(whose: str, date: str, before_s: float, after_s: float) -> list[Finding]:
    """How far this clock is from that of an answer's Date header, which has whole seconds; it was
    asked for at `before_s` and there at `after_s` (unix time). Nothing for a header that cannot be
    read."""
    try:
        theirs_s = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return []
    # The header was written somewhere between, in a second that began at `theirs_s`.
    behind_s, ahead_s = theirs_s - after_s, before_s - (theirs_s + 1)
    off_s = max(behind_s, ahead_s, 0.0)
    way = "behind" if behind_s > ahead_s else "ahead of"
    if off_s < SKEW_WARNS_S:
        return [good("clock", f"this box and {whose} agree to within {SKEW_WARNS_S:.0f} s")]
    text = f"this box is {off_s:.0f} s {way} {whose}"
    fix = "set this box's clock: timedatectl set-ntp true, and see `timedatectl timesync-status`"
    grade = Grade.FAIL if off_s >= SKEW_FAILS_S else Grade.WARN
    return [Finding("clock", grade, text, fix)]


def quota(
    name: str,
    limit: float,
    unit: str,
    needs: Sequence[CapacityNeed],
    of_one: Callable[[CapacityNeed], float],
    fix: str,
    place: str,
) -> Finding:
    """A limit (below 0 is none) against the most that is needed of it at once: `of_one` machine,
    in the same unit. It `serves` those of which it lets one be made, if not as many as needed."""
    most = max(needs, key=lambda need: need.count * of_one(need))
    asked = most.count * of_one(most)
    told = "no limit" if limit < 0 else f"{limit:g} {unit}"
    serves = tuple(need for need in needs if limit < 0 or of_one(need) <= limit)
    enough = limit < 0 or asked <= limit
    return Finding(
        "quota",
        Grade.OK if enough else Grade.FAIL,
        f"{name}: {told}; {asked:g} are needed ({most.words()})",
        "" if enough else fix,
        place,
        serves,
        tuple(need for need in needs if need not in serves),
    )


def login(sources: Sequence[str], where: str, fix: str, narrower: str, place: str) -> Finding:
    """Of a firewall that lets these in to SSH, `where` machines are; `narrower` is what to do where
    that is everybody."""
    if not sources:
        return bad("network", "its firewall lets nobody log in by SSH", fix, place)
    if ANYBODY & {source.lower() for source in sources}:
        return doubtful("network", "its firewall lets everybody knock at SSH", narrower, place)
    return good("network", f"{where}; SSH from {', '.join(sources)}", place)


def until(when: datetime) -> str:
    """ "until 2026-11-22 20:15 UTC"."""
    return f"until {when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def trial(need: CapacityNeed) -> LaunchRequest:
    """A request of which nothing is ever made: for a dry run. Its keys are nobody's."""
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
