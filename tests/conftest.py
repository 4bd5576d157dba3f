"""What spotd logs in a test's own process: plain text, whatever the test before made of it."""

from __future__ import annotations

import pytest
import structlog

# structlog's own way prints the locals of every frame through rich: most of the CPU time of some
# stories, in which clouds fail by the hundred.
_PLAIN = structlog.dev.ConsoleRenderer(
    colors=False, exception_formatter=structlog.dev.plain_traceback
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    structlog.reset_defaults()
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _PLAIN])
