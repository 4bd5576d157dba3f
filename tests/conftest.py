"""What spotd logs in a test's own process: plain text, whatever the test before made of it; and
when rubbish is looked for in such a process."""

from __future__ import annotations

import gc
import os

from tests.fixtures import surroundings

surroundings.settle()  # before anything else is imported, which may look at them

import pytest  # noqa: E402
import structlog  # noqa: E402
from hypothesis import settings  # noqa: E402

pytest_plugins = ["tests.fixtures.watchdog"]

# structlog's own way prints the locals of every frame through rich: most of the CPU time of some
# stories, in which clouds fail by the hundred.
_PLAIN = structlog.dev.ConsoleRenderer(
    colors=False, exception_formatter=structlog.dev.plain_traceback
)

# How long an example takes is a matter of what else the machine does.
# A case that fails is printed whole, to be kept as a test of its own.
settings.register_profile("spotd", deadline=None, print_blob=True)
settings.load_profile("spotd")

gc.disable()  # until everything is loaded: that makes millions of objects, and none is rubbish


# Whose tests run in one worker, where there are several: each SDK is loaded once, and so are the
# stand-in of that cloud and its clients.
_TOGETHER = {
    "tests/providers/aws/": "aws",
    "tests/providers/gcp/": "gcp",
    "tests/clouds/gcp/": "gcp",
    "tests/providers/azure/": "azure",
    "tests/clouds/azure/": "azure",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="tests that make soak alone plays, too")
    parser.addoption("--root-only", action="store_true", help="only tests that need root")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        left_out = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    _choose_by_root(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _woven(items)
    for item in items:
        for folder, group in _TOGETHER.items():
            if item.nodeid.startswith(folder) and not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(group))


def _choose_by_root(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An ordinary user leaves out what needs root: `make test` runs that through sudo."""
    only = bool(config.getoption("--root-only"))
    need_root = [item for item in items if item.get_closest_marker("root")]
    if only:
        left_out = [item for item in items if not item.get_closest_marker("root")]
        items[:] = need_root
    elif os.geteuid() != 0:
        left_out = need_root
        items[:] = [item for item in items if not item.get_closest_marker("root")]
    else:
        return
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if os.geteuid() != 0 and not config.getoption("--root-only"):
        terminalreporter.write_line(
            "left out: tests marked root, which make test runs through sudo (pytest --root-only)"
        )


def _woven(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of several workers, one after the other takes the next: whole processes, which wait most of
    their time, come among those that compute, and none of them last, when nobody computes."""
    waiting = [item for item in items if item.get_closest_marker("e2e")]
    rest = [item for item in items if not item.get_closest_marker("e2e")]
    each = int(len(rest) * 0.7 / (len(waiting) or 1)) or 1
    woven = []
    for number, item in enumerate(rest):
        if number % each == 0:
            woven += waiting[number // each : number // each + 1]
        woven.append(item)
    return woven + waiting[-(-len(rest) // each) :]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    structlog.reset_defaults()
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _PLAIN])
