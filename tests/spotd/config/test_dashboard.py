"""The dashboard's address."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from spotd.config.dashboard import DashboardSection


def test_an_address_is_that_of_a_host() -> None:
    assert DashboardSection().url == ""
    assert DashboardSection(url="https://Spotd.example.org/").url == "https://spotd.example.org"
    assert DashboardSection(url="http://127.0.0.1:8500").url == "http://127.0.0.1:8500"


@pytest.mark.parametrize(
    "url", ["spotd.example.org", "ftp://a.example", "https://", "https://me:pw@a.example"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValidationError):
        DashboardSection(url=url)
