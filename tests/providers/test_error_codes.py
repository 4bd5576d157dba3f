"""A table of vendor codes: which rule counts, and the handling of unknown codes."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from providers.base import CapacityError, QuotaError, Scope, ThrottledError, UnknownOutcome
from providers.error_codes import THROTTLE_PAUSE_S, CodeRule, CodeTable

ROWS = (
    CodeRule("Full", CapacityError, Scope.ZONE, text=r"this zone\b"),
    CodeRule("Full", CapacityError),
    CodeRule("Limit*", QuotaError),
    CodeRule("Slow", ThrottledError),
)


@pytest.mark.parametrize(
    ("code", "text", "kind", "scope"),
    [
        ("Full", "no room in THIS ZONE", CapacityError, Scope.ZONE),  # letters of any case
        ("Full", "no room in this zones", CapacityError, Scope.OFFER),
        ("Full", "", CapacityError, Scope.OFFER),
        ("LimitExceeded", "x", QuotaError, Scope.REGION),  # the class's own scope
        ("limitExceeded", "x", UnknownOutcome, Scope.OFFER),  # a code's letters are exact
        ("AFull", "x", UnknownOutcome, Scope.OFFER),
        ("", "x", UnknownOutcome, Scope.OFFER),
    ],
)
def test_the_first_row_that_fits(code: str, text: str, kind: type, scope: Scope) -> None:
    error = CodeTable("V", ROWS).error(code, text)
    assert (type(error), error.scope, error.code) == (kind, scope, code)


def test_the_text_names_the_code_once() -> None:
    codes = CodeTable("V", ROWS)
    assert str(codes.error("Full", "no room")) == "Full: no room"
    assert str(codes.error("Full", "Full: no room")) == "Full: no room"


@pytest.mark.parametrize(("told", "pause_s"), [(None, THROTTLE_PAUSE_S), (7.5, 7.5), (0.0, 0.0)])
def test_throttling_lasts_as_long_as_the_vendor_says(told: float | None, pause_s: float) -> None:
    error = CodeTable("V", ROWS).error("Slow", "later", told)
    assert isinstance(error, ThrottledError)
    assert error.retry_after_s == pause_s


def test_a_code_that_is_in_no_row_is_logged_whole_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes = CodeTable("V", ROWS)
    message = "a long story, " * 200 + "the end"
    with caplog.at_level(logging.ERROR):
        error = codes.error("New", message)
    assert isinstance(error, UnknownOutcome)
    assert [record.getMessage() for record in caplog.records] == [
        f"V answered with an unknown code: New: {message}"
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: codes.error("New", "x"), range(200)))
    codes.error("Other", "x")
    codes.error("Full", "x")
    assert codes.unknown_codes == {"New": 201, "Other": 1}
