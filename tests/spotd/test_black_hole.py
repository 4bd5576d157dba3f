"""A black hole between one of two daemons and the PostgreSQL server: packets go in, and nothing
comes back. Needs root, for a server on a network of its own; without it, this is a failure."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spotd.demo.box import Box, wait_for
from tests.fixtures import netns, postgres
from tests.fixtures.pair import Twin, running_pair
from tests.spotd.test_two_boxes import LIMIT_S, TIMING, take_over

pytestmark = pytest.mark.xdist_group("daemon")


@pytest.fixture
def cloud() -> Iterator[Box]:
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name, Box(Path(name)) as box:
        box.start_cloud()
        yield box


def established(host: str) -> int:
    """How many connections of this computer to the server there are, as its kernel believes."""
    remote = f"{socket.inet_aton(host)[::-1].hex().upper()}:{5432:04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2] == remote and row[3] == "01" for row in rows)


@pytest.mark.root
def test_the_other_takes_over_and_who_was_in_it_finds_out_and_takes_part_again(cloud: Box) -> None:
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp"))
        network = stack.enter_context(netns.network())
        computer = stack.enter_context(network.computer())
        server = stack.enter_context(postgres.running(computer.host, computer.within))
        pair = stack.enter_context(running_pair(Path(name), server, cloud, TIMING, computer.host))

        def fall_in(twin: Twin) -> None:
            assert twin is pair.twins[0], "the one that is on the network"
            assert established(computer.host)
            computer.swallow("from")

        def get_out(twin: Twin) -> None:
            def gave_up() -> bool:
                told = "does not answer" in twin.tail("daemon", 1000)
                return told and not established(computer.host)

            wait_for("it to give up what it waits for", gave_up, LIMIT_S)
            computer.deliver()

        with pair.explaining():
            take_over(pair, "black hole", fall_in, get_out)
