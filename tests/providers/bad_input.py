"""Configuration mistakes at each cloud: one message each, one error class, and nothing is created.

Each cloud's test_bad_input.py plays all of `MISTAKES` at its stand-in. The effect on job and money
is the same for every cloud: tests/spotd/test_refused_places.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from providers.base import InstanceState, Provider, ProviderError

MISTAKES = (
    "wrong region",
    "wrong type",
    "no subnet",
    "expired credentials",
    "no quota",
    "image gone",
)


@dataclass(frozen=True)
class Mistake:
    """`ask` is the first call of the adapter that detects it; `said` is a regular expression of the
    whole message."""

    error: type[ProviderError]
    said: str
    ask: Callable[[], object]


def check(mistake: Mistake, cloud: Provider) -> None:
    """`cloud` is a working adapter of the same deployment."""
    with pytest.raises(ProviderError) as caught:
        mistake.ask()
    assert type(caught.value) is mistake.error, repr(caught.value)
    assert re.fullmatch(mistake.said, str(caught.value)), str(caught.value)
    assert [machine for machine in cloud.list() if machine.state is not InstanceState.FAILED] == []
    assert cloud.leftovers() == []
