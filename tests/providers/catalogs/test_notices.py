"""Documented notice times: the file's content, invalid files, and that the shortest time counts."""

from __future__ import annotations

import pytest

from providers.catalogs.notices import (
    PriceFileError,
    notice_times,
    planned_notice_s,
    read_notice_times,
)


@pytest.mark.req("PRE-04")
def test_what_is_documented_and_what_guides_claim() -> None:
    result = notice_times()
    assert {name: one.seconds for name, one in result.items()} == {
        "aws": 120, "azure": 30, "gcp": 30, "lambda": None, "runpod": 5, "vast": 0,
    }  # fmt: skip
    claimed = {name: one.claimed for name, one in result.items() if one.claimed}
    assert claimed == {"lambda": (60, 90), "runpod": (30, 60), "vast": (30, 90)}
    assert all(item.dated == "2026-11-24" and item.source for item in result.values())


@pytest.mark.req("PRE-04")
@pytest.mark.parametrize(
    ("cloud", "p10", "planned"),
    [
        ("aws", None, 120),
        ("aws", 93.0, 93.0),  # less was observed than is documented
        ("gcp", 119.0, 30),  # more was, and none of it is promised
        ("lambda", None, None),
        ("moon", None, None),
        ("moon", 12.0, 12.0),
        ("vast", 7.0, 0),
    ],
)
def test_the_least_is_counted_on(cloud: str, p10: float | None, planned: float | None) -> None:
    assert planned_notice_s(cloud, p10) == planned


GOOD = '[aws]\ndated = 2026-11-24\nsource = "x"\n'


@pytest.mark.parametrize(
    "line",
    ["seconds = -1", "seconds = true", 'seconds = "120"', "seconds = 7200", "claimed = [90, 30]",
     "claimed = [30]", "claimed = 30", "minutes = 2"],
)  # fmt: skip
def test_what_the_file_may_not_say(line: str) -> None:
    with pytest.raises(PriceFileError, match=r"^aws"):
        read_notice_times(f"{GOOD}{line}\n")
    assert read_notice_times(GOOD)["aws"].seconds is None
