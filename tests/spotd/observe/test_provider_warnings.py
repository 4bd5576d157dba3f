"""What adapters came upon is told once of each cloud and code, masked, whoever of them came upon
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from providers.base import UnknownOutcome
from providers.error_codes import CodeTable
from providers.warnings import ProviderWarning
from spotd.base.log import redactor
from spotd.domain.events import Event, Severity
from spotd.observe.provider_warnings import ProviderWarnings
from spotd.store.errors import StoreUnavailableError
from tests.spotd.fake_world import Stage


class Talkative:
    """As much of a provider as is asked here."""

    def __init__(self, codes: CodeTable) -> None:
        self.warnings = codes.warnings


@pytest.fixture
def stage(sql_stage: Stage) -> Stage:
    """Secrets are masked on the way into the database."""
    return sql_stage


@pytest.fixture
def codes() -> dict[str, CodeTable]:
    return {name: CodeTable(name.upper(), ()) for name in ("aws", "gcp")}


@pytest.fixture
def remarks(stage: Stage, codes: dict[str, CodeTable]) -> ProviderWarnings:
    clouds: dict[str, Any] = {
        "aws": Talkative(codes["aws"]),
        "aws-eu": Talkative(codes["aws"]),  # the same make, with the same table
        "gcp": Talkative(codes["gcp"]),
        "quiet": stage.clouds["aws"],
    }
    return ProviderWarnings(stage.store, clouds, stage.clock)


def told(stage: Stage) -> list[Event]:
    return [row.event for row in stage.store.events.rows(None) if row.event.kind == "remark"]


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text.rpartition(": ")[2] for event in events]


def test_each_code_of_each_cloud_once(
    stage: Stage, remarks: ProviderWarnings, codes: dict[str, CodeTable]
) -> None:
    remarks.tell()
    assert told(stage) == []
    assert isinstance(codes["aws"].error("New", "first words"), UnknownOutcome)
    for _ in range(3):
        remarks.tell()
        codes["aws"].error("New", "other words")
    (event,) = told(stage)
    assert (event.alert, event.severity) == (True, Severity.WARNING)
    assert event.text.startswith("aws: unknown error code")
    assert event.text.endswith("New: first words")
    codes["aws"].error("Newer", "x")
    codes["gcp"].error("New", "y")
    remarks.tell()
    assert sorted(texts(told(stage))) == ["first words", "x", "y"]
    [count] = [one.times for key, (_, one) in remarks.found().items() if key == "code/AWS/New"]
    assert count == 4


def test_secrets_in_the_vendors_words_are_masked(
    stage: Stage, remarks: ProviderWarnings, codes: dict[str, CodeTable]
) -> None:
    redactor.register("hunter2-hunter2")
    codes["aws"].error("New", "no such key hunter2-hunter2 here")
    remarks.tell()
    (event,) = told(stage)
    assert "hunter2" not in event.text
    assert "no such key" in event.text


def test_what_the_store_did_not_take_is_told_the_next_time(
    stage: Stage,
    remarks: ProviderWarnings,
    codes: dict[str, CodeTable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes["aws"].error("New", "words")

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(stage.store.events, "add", away)
        with pytest.raises(StoreUnavailableError):
            remarks.tell()
    remarks.tell()
    assert len(told(stage)) == 1


def test_only_so_many_texts_are_kept(codes: dict[str, CodeTable]) -> None:
    for number in range(200):
        codes["aws"].error(f"Code{number}", "x")
    assert len(codes["aws"].warnings()) == 50
    assert isinstance(codes["aws"].warnings()[0], ProviderWarning)
