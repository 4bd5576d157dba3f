"""Which of the machines that no node wants are ended, and which are held for a person to look at.

The sweep ends machines that no decision about a job names: a wrong record would be at its most
expensive here. What it may be sure of is its own word. A row asked for the machine, and says that
it is over: ended, after a grace. A machine with our tag that no row ever asked for is another
matter: an intent is on record before every create, so that such a machine proves the record to be
another one than it was made under. The database was restored from a backup, or copied, or is
younger than the fleet; then the machine trains, with right. It is held, and a person is told: to
hold it costs at most `limits.unattended_h` of its price, because nobody renews what nobody wants.

A row's word is good in a restored database too, for what was over then is over now; but as long as
that one is in quarantine, nothing is ended here at all. And many rows that say so at once are more
likely one mistake of ours than many: then none of them is ended, but for those that the cloud had
accepted to end, and did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from providers.base import Instance, Leftover
from spotd.model import S

# A machine is ended only when it was seen as nobody's for this long: a create whose record is on
# its way must not be taken for an orphan.
GRACE_S = 60.0
# Of a machine that proves the way to a cloud: no row asks for it, and it has its own expiry.
LIVE_TAG = "spotd-live"
BLAST_LEAST = 2  # so many may be ended at once, however small the fleet
BLAST_SHARE = 0.25  # of the machines that the cloud lists as ours


@dataclass(frozen=True)
class Stray:
    """A living machine that no node wants. `known` says that a node of ours once did; `ending` that
    the cloud is at it; `condemned` that it accepted once that we end it, and that is still there.
    Job and generation are what its tags say."""

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
class Record:
    """What the database is, as far as the sweep may ask.

    `generations` are of the jobs that the strays name; a job that it lacks is not on record.
    `released_at_us` is when a person last said that what nobody wants may go. `quarantine` is why
    the whole record is in doubt; "" when it is not.
    """

    deployment: str
    generations: Mapping[str, int] = field(default_factory=dict)
    released_at_us: int = 0
    quarantine: str = ""


class Fate(str, Enum):
    """What becomes of a stray."""

    WAIT = "wait"  # its grace runs
    END = "end"
    HOLD = "hold"
    FOREIGN = "foreign"  # not ours: nothing is done to it, whoever says what


@dataclass(frozen=True)
class Verdict:
    """One stray's fate; `why` completes "it is held, because ..."."""

    fate: Fate
    why: str = ""


@dataclass(frozen=True)
class Held:
    """A machine that no node wants, and that the sweep does not end (HOLD or FOREIGN)."""

    provider: str
    instance: Instance
    since_us: int
    fate: Fate
    why: str


@dataclass(frozen=True)
class HeldLeftover:
    """What a machine left behind, and is not discarded (HOLD or FOREIGN)."""

    provider: str
    leftover: Leftover
    since_us: int
    fate: Fate
    why: str


def leftovers_of(provider: str) -> str:
    """What a person's word about the leftovers of a cloud is kept under, beside that about its
    machines: who saw the ones in the list has not seen the others."""
    return f"leftovers:{provider}"


def judge(strays: Iterable[Stray], fleet: int, record: Record, now_us: int) -> dict[str, Verdict]:
    """The fate of each stray of one listing in which `fleet` machines live, strays included."""
    found = list(strays)
    doomed = [s for s in found if _ours(s, record) and s.known and not s.ending]
    # One that the cloud had accepted to end was decided about by itself, before any sweep.
    crowd = [s for s in doomed if not s.condemned and not _released(s, record)]
    most = max(BLAST_LEAST, int(BLAST_SHARE * fleet))
    blast = (
        f"{len(crowd)} of {fleet} machines would end at once, and more than {most} is more likely "
        "a mistake in the record"
        if len(crowd) > most
        else ""
    )
    return {stray.instance_id: _judge_one(stray, blast, record, now_us) for stray in found}


def _judge_one(stray: Stray, blast: str, record: Record, now_us: int) -> Verdict:
    if not _ours(stray, record):
        owner = stray.deployment or "nobody"
        return Verdict(Fate.FOREIGN, f"its tag says that it belongs to {owner}")
    if record.quarantine:
        return Verdict(Fate.HOLD, f"the database is in quarantine: {record.quarantine}")
    if stray.proof_until_us and not stray.known:
        # Whoever made it ends it; past its expiry nobody does any more.
        return Verdict(Fate.END if now_us >= stray.proof_until_us else Fate.WAIT)
    since_us = stray.since_us
    if _released(stray, record):
        if not stray.known:
            # No row says since when, and a daemon that dies again and again forgets whom it saw.
            since_us = min(since_us, record.released_at_us)
    elif not stray.known:
        return Verdict(Fate.HOLD, _doubt(stray, record))
    elif blast and not stray.condemned:
        return Verdict(Fate.HOLD, blast)
    waited = now_us - since_us >= GRACE_S * S
    return Verdict(Fate.END if waited else Fate.WAIT)


def _ours(stray: Stray, record: Record) -> bool:
    return stray.deployment == record.deployment


def _released(stray: Stray, record: Record) -> bool:
    """It stood there, as nobody's, when a person looked. What came later, that person has not seen,
    nor what a row wanted until later. Of what has no row nobody knows since when it is nobody's:
    a daemon that has just begun saw it last."""
    stood_us = stray.since_us if stray.known else stray.launched_at_us or stray.since_us
    return stood_us <= record.released_at_us


def _doubt(stray: Stray, record: Record) -> str:
    """What a machine that no row asked for says about the record."""
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
        f"the record knows generation {stray.generation} of job {stray.job_id}, but never asked "
        "for this machine: another spotd may use a copy of this database"
    )
