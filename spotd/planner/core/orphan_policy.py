"""Decide which machines without a row are terminated, and which are held for the operator.

The sweep terminates machines that no decision names, so a wrong record would be most expensive
here. It trusts its own rows: a machine whose row is closed is terminated after a grace period. A
machine with spotd's tag that no row ever requested proves that it was launched under another
record, because an intent is committed before every launch: the database was restored, copied, or is
younger than the fleet. Such a machine may train for a job. It is held with an alert, which costs at
most `limits.unattended_h` of its price, because its expiry is not renewed.

Rows are trusted in a restored database, too, but during quarantine nothing is terminated here. If
many machines would be terminated at once, a mistake in the record is more likely: then none is
terminated, except those whose termination the cloud had accepted and not completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from providers.base import Instance, Leftover
from spotd.domain.units import S

# A machine is ended only when it was seen as nobody's for this long: a create whose record is on
# its way must not be taken for an orphan.
GRACE_S = 60.0
# Of a machine that proves the way to a cloud: no row asks for it, and it has its own expiry.
LIVE_TAG = "spotd-live"
BLAST_LEAST = 2  # so many may be ended at once, however small the fleet
BLAST_SHARE = 0.25  # of the machines that the cloud lists as ours


@dataclass(frozen=True)
class Orphan:
    """A living machine that belongs to no open row.

    `known` says that it once did, `ending` that the cloud is terminating it, `condemned` that the
    cloud once accepted a terminate and the machine still exists. Job and generation come from its
    tags.
    """

    instance_id: str
    deployment: str
    known: bool
    since_us: int  # when it was first seen as nobody's, or its node was gone
    launched_at_us: int = 0  # 0: the cloud does not say
    ending: bool = False
    condemned: bool = False
    job_id: str = ""
    generation: int = 0
    proof_until_us: int = 0  # of one that proves the way to its cloud; 0: it is none


@dataclass(frozen=True)
class DatabaseState:
    """The facts of the database that the sweep may rely on.

    `generations` are those of the jobs that orphans name; a missing job is not on record.
    `released_at_us` is when a person last released orphans. `quarantine` is why the whole record is
    in doubt, or "".
    """

    deployment: str
    generations: Mapping[str, int] = field(default_factory=dict)
    released_at_us: int = 0
    quarantine: str = ""


class OrphanAction(str, Enum):
    """The action for an orphan."""

    WAIT = "wait"  # its grace runs
    END = "end"
    HOLD = "hold"
    FOREIGN = "foreign"  # not ours: nothing is done to it, whoever says what


@dataclass(frozen=True)
class OrphanDecision:
    """The decision about one orphan; `why` completes "it is held, because ..."."""

    fate: OrphanAction
    why: str = ""


@dataclass(frozen=True)
class HeldMachine:
    """A machine that no node wants, and that the sweep does not end (HOLD or FOREIGN)."""

    provider: str
    instance: Instance
    since_us: int
    fate: OrphanAction
    why: str


@dataclass(frozen=True)
class HeldLeftover:
    """A leftover of a machine that is held and not discarded (HOLD or FOREIGN)."""

    provider: str
    leftover: Leftover
    since_us: int
    fate: OrphanAction
    why: str


def leftovers_of(provider: str) -> str:
    """Return the key of the operator's release of a cloud's leftovers.

    It differs from that of the machines, because the operator reviews the two lists separately.
    """
    return f"leftovers:{provider}"


def judge(
    strays: Iterable[Orphan], fleet: int, record: DatabaseState, now_us: int
) -> dict[str, OrphanDecision]:
    """Decide about each orphan of one listing, in which `fleet` machines live, orphans included."""
    orphans = list(strays)
    doomed = [s for s in orphans if _ours(s, record) and s.known and not s.ending]
    # One that the cloud had accepted to end was decided about by itself, before any sweep.
    crowd = [s for s in doomed if not s.condemned and not _released(s, record)]
    most = max(BLAST_LEAST, int(BLAST_SHARE * fleet))
    blast = (
        f"{len(crowd)} of {fleet} machines would end at once, and more than {most} is more likely "
        "a mistake in the record"
        if len(crowd) > most
        else ""
    )
    return {stray.instance_id: _judge_one(stray, blast, record, now_us) for stray in orphans}


def _judge_one(stray: Orphan, blast: str, record: DatabaseState, now_us: int) -> OrphanDecision:
    if not _ours(stray, record):
        owner = stray.deployment or "nobody"
        return OrphanDecision(OrphanAction.FOREIGN, f"its tag says that it belongs to {owner}")
    if record.quarantine:
        return OrphanDecision(
            OrphanAction.HOLD, f"the database is in quarantine: {record.quarantine}"
        )
    if stray.proof_until_us and not stray.known:
        # Whoever made it ends it; past its expiry nobody does any more.
        return OrphanDecision(
            OrphanAction.END if now_us >= stray.proof_until_us else OrphanAction.WAIT
        )
    since_us = stray.since_us
    if _released(stray, record):
        if not stray.known:
            # No row says since when, and a daemon that dies again and again forgets whom it saw.
            since_us = min(since_us, record.released_at_us)
    elif not stray.known:
        return OrphanDecision(OrphanAction.HOLD, _doubt(stray, record))
    elif blast and not stray.condemned:
        return OrphanDecision(OrphanAction.HOLD, blast)
    waited = now_us - since_us >= GRACE_S * S
    return OrphanDecision(OrphanAction.END if waited else OrphanAction.WAIT)


def _ours(stray: Orphan, record: DatabaseState) -> bool:
    return stray.deployment == record.deployment


def _released(stray: Orphan, record: DatabaseState) -> bool:
    """Return whether a person released this orphan.

    It must have been an orphan when the person looked. For a machine without a row that time is
    unknown: a daemon that just started counts from when it first saw it.
    """
    stood_us = stray.since_us if stray.known else stray.launched_at_us or stray.since_us
    return stood_us <= record.released_at_us


def _doubt(stray: Orphan, record: DatabaseState) -> str:
    """Return the doubt about the record that a machine without a request raises, or ""."""
    decided = record.generations.get(stray.job_id)
    if decided is None:
        named = f"job {stray.job_id} is" if stray.job_id else "it names no job that is"
        return f"{named} not on record: the database was restored, or is younger than the fleet"
    if stray.generation > decided:
        return (
            f"it is generation {stray.generation} of job {stray.job_id}, and the record ends at "
            f"{decided}: the database is older than the fleet"
        )
    return (
        f"the record knows generation {stray.generation} of job {stray.job_id}, but never "
        "requested this machine: another spotd may use a copy of this database"
    )
