"""A receiver like Slack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures import slack as rig
from tests.fixtures.slack import Slack


@pytest.fixture
def slack() -> Iterator[Slack]:
    """A receiver that takes what Slack would take."""
    with rig.serving() as receiver:
        yield receiver
