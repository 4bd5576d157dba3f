"""What a person gets wrong, at each cloud: one message each, in one class, and nothing is made.

Each cloud's test_bad_input.py plays all of `MISTAKES` at its stand-in; what becomes of the job and
its money is the same for every cloud: tests/spotd/test_refused_places.py.
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
    """`ask` is the first call of the adapter that finds out; `said` a regular expression of all
    that it says."""

    error: type[ProviderError]
    said: str
    ask: Callable[[], object]


def check(mistake: Mistake, cloud: Provider) -> None:
    """`cloud` is an adapter in order, of the same deployment."""
    with pytest.raises(ProviderError) as caught:
        mistake.ask()
    assert type(caught.value) is mistake.error, repr(caught.value)
    assert re.fullmatch(mistake.said, str(caught.value)), str(caught.value)
    assert [one for one in cloud.list() if one.state is not InstanceState.FAILED] == []
    assert cloud.leftovers() == []
