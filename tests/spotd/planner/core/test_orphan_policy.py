"""The sweep's rule, as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.units import S
from spotd.planner.core.orphan_policy import (
    BLAST_LEAST,
    GRACE_S,
    DatabaseState,
    Orphan,
    OrphanAction,
    OrphanDecision,
    judge,
)

NOW = 1_000_000 * S
OLD = NOW - int(GRACE_S * S)
RECORD = DatabaseState("d0", {"j1": 4})
STRAY = Orphan("i-1", "d0", known=True, since_us=OLD, launched_at_us=NOW - 3600 * S, job_id="j1")
STRANGER = replace(STRAY, known=False)
TAGGED = "its tag says that it belongs to"
COPY = (
    "the record knows generation {} of job j1, but never requested this machine: another spotd may "
    "use a copy of this database"
)
OLDER = (
    "it is generation 5 of job j1, and the record ends at 4: the database is older than the fleet"
)
YOUNGER = "not on record: the database was restored, or is younger than the fleet"
QUARANTINED = "the database is in quarantine: restored"


@pytest.mark.parametrize(
    ("stray", "record", "fate", "why"),
    [
        (STRAY, RECORD, OrphanAction.END, ""),
        (replace(STRAY, since_us=OLD + 1), RECORD, OrphanAction.WAIT, ""),
        (replace(STRAY, ending=True), RECORD, OrphanAction.END, ""),
        (replace(STRAY, deployment="d1"), RECORD, OrphanAction.FOREIGN, f"{TAGGED} d1"),
        (replace(STRAY, deployment=""), RECORD, OrphanAction.FOREIGN, f"{TAGGED} nobody"),
        (
            replace(STRAY, deployment="d1"),
            replace(RECORD, released_at_us=NOW),
            OrphanAction.FOREIGN,
            f"{TAGGED} d1",
        ),
        (STRANGER, RECORD, OrphanAction.HOLD, COPY.format(0)),
        (replace(STRANGER, generation=4), RECORD, OrphanAction.HOLD, COPY.format(4)),
        (replace(STRANGER, generation=5), RECORD, OrphanAction.HOLD, OLDER),
        (replace(STRANGER, job_id="j2"), RECORD, OrphanAction.HOLD, f"job j2 is {YOUNGER}"),
        (
            replace(STRANGER, job_id=""),
            RECORD,
            OrphanAction.HOLD,
            f"it names no job that is {YOUNGER}",
        ),
        (STRANGER, replace(RECORD, released_at_us=STRAY.launched_at_us), OrphanAction.END, ""),
        (
            STRANGER,
            replace(RECORD, released_at_us=STRAY.launched_at_us - 1),
            OrphanAction.HOLD,
            COPY.format(0),
        ),
        # Its grace began when a person let it go, whenever this daemon saw it first.
        (
            replace(STRANGER, since_us=NOW),
            replace(RECORD, released_at_us=OLD),
            OrphanAction.END,
            "",
        ),
        (
            replace(STRANGER, since_us=NOW),
            replace(RECORD, released_at_us=OLD + 1),
            OrphanAction.WAIT,
            "",
        ),
        (replace(STRAY, since_us=NOW), replace(RECORD, released_at_us=OLD), OrphanAction.WAIT, ""),
        # A cloud that does not say when it launched: what was seen before the release counts.
        (
            replace(STRANGER, launched_at_us=0),
            replace(RECORD, released_at_us=OLD),
            OrphanAction.END,
            "",
        ),
        (
            replace(STRANGER, launched_at_us=0),
            replace(RECORD, released_at_us=1),
            OrphanAction.HOLD,
            COPY.format(0),
        ),
        (STRAY, replace(RECORD, quarantine="restored"), OrphanAction.HOLD, QUARANTINED),
        (
            STRAY,
            replace(RECORD, quarantine="restored", released_at_us=NOW),
            OrphanAction.HOLD,
            QUARANTINED,
        ),
    ],
)
def test_one_stray(stray: Orphan, record: DatabaseState, fate: OrphanAction, why: str) -> None:
    verdict = judge([stray], 10, record, NOW)["i-1"]
    assert verdict == OrphanDecision(fate, why)


@pytest.mark.parametrize(
    ("strays", "fleet", "held"),
    [
        (BLAST_LEAST, 2, 0),
        (BLAST_LEAST + 1, 3, 3),
        (BLAST_LEAST + 1, 12, 0),
        (3, 11, 3),
        (25, 100, 0),
        (26, 100, 26),
    ],
)
def test_a_crowd(strays: int, fleet: int, held: int) -> None:
    """A quarter of the fleet may end at once, two always."""
    crowd = [replace(STRAY, instance_id=f"i-{number}") for number in range(strays)]
    fates = [verdict.fate for verdict in judge(crowd, fleet, RECORD, NOW).values()]
    assert fates.count(OrphanAction.HOLD) == held
    assert fates.count(OrphanAction.END) == strays - held


@pytest.mark.parametrize(
    ("changes", "record", "fate"),
    [
        ({"proof_until_us": NOW + 1}, RECORD, OrphanAction.WAIT),
        ({"proof_until_us": NOW}, RECORD, OrphanAction.END),
        ({"proof_until_us": NOW, "deployment": "d1"}, RECORD, OrphanAction.FOREIGN),
        ({"proof_until_us": NOW}, replace(RECORD, quarantine="restored"), OrphanAction.HOLD),
        # One with a row is judged by that, whatever tag somebody gave it.
        ({"proof_until_us": NOW + 1, "known": True}, RECORD, OrphanAction.END),
        ({"proof_until_us": 0}, RECORD, OrphanAction.HOLD),
    ],
)
def test_a_machine_that_proves_the_way_has_its_time(
    changes: dict[str, Any], record: DatabaseState, fate: OrphanAction
) -> None:
    assert judge([replace(STRANGER, **changes)], 3, record, NOW)["i-1"].fate is fate


def test_a_crowd_is_held_with_its_numbers() -> None:
    crowd = [replace(STRAY, instance_id=f"i-{number}") for number in range(4)]
    why = (
        "4 of 12 machines would end at once, and more than 3 is more likely a mistake in the record"
    )
    assert set(judge(crowd, 12, RECORD, NOW).values()) == {OrphanDecision(OrphanAction.HOLD, why)}


def test_those_in_their_grace_are_of_the_crowd() -> None:
    """One after the other would be as many in the end."""
    crowd = [
        replace(STRAY, instance_id=f"i-{n}", since_us=OLD + (n > 0)) for n in range(BLAST_LEAST + 1)
    ]
    assert {v.fate for v in judge(crowd, 3, RECORD, NOW).values()} == {OrphanAction.HOLD}


def test_what_was_to_end_anyway_is_not_held_with_the_crowd() -> None:
    crowd = [replace(STRAY, instance_id=f"i-{n}") for n in range(BLAST_LEAST + 1)]
    condemned = replace(STRAY, instance_id="condemned", condemned=True)
    verdicts = judge([*crowd, condemned], 4, RECORD, NOW)
    assert verdicts.pop("condemned").fate is OrphanAction.END
    assert {verdict.fate for verdict in verdicts.values()} == {OrphanAction.HOLD}


def test_who_is_not_in_the_crowd() -> None:
    """Others' machines, strangers, those that end already, those that a person released, and those
    that their cloud had accepted to end."""
    others = [
        replace(STRAY, instance_id="foreign", deployment="d1"),
        replace(STRANGER, instance_id="stranger"),
        replace(STRAY, instance_id="ending", ending=True),
        replace(STRAY, instance_id="released", since_us=NOW - 7200 * S),
        replace(STRAY, instance_id="condemned", condemned=True),
    ]
    crowd = [replace(STRAY, instance_id=f"i-{number}") for number in range(BLAST_LEAST)]
    record = replace(RECORD, released_at_us=NOW - 7200 * S)
    fates = {i: verdict.fate for i, verdict in judge([*others, *crowd], 6, record, NOW).items()}
    assert [i for i, fate in fates.items() if fate is OrphanAction.END] == [
        "ending",
        "released",
        "condemned",
        "i-0",
        "i-1",
    ]


def test_a_person_s_word_is_about_what_was_nobody_s_then() -> None:
    """What a row wanted until after it is a crowd like any other, however old the machines are."""
    record = replace(RECORD, released_at_us=NOW - 120 * S)
    crowd = [replace(STRAY, instance_id=f"i-{n}", since_us=OLD) for n in range(BLAST_LEAST + 1)]
    assert all(stray.launched_at_us < record.released_at_us for stray in crowd)
    assert {v.fate for v in judge(crowd, 3, record, NOW).values()} == {OrphanAction.HOLD}
    seen = [replace(stray, since_us=NOW - 120 * S) for stray in crowd]
    assert {v.fate for v in judge(seen, 3, record, NOW).values()} == {OrphanAction.END}
