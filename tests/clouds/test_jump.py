"""A machine behind a jump host: spotd starts its agent there, and the machine reaches its
checkpoint bucket and nothing else of this computer."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers import cloud_init
from spotd.act.jump_host import JumpConnection
from spotd.act.ssh import Address, Connection, SshUnreachableError, connect
from spotd.base.clock import SystemClock
from spotd.demo import s3
from spotd.demo.box import wait_for
from spotd.demo.bucket import Bucket
from tests.clouds.jump import Private, behind_a_jump_host
from tests.clouds.test_machines import UP_S, facts, told, up
from tests.fixtures import netns
from tests.fixtures.local_cloud import host_key, user_key
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Private, Bucket]]:
    with (
        netns.network() as network,
        s3.serving(network.gateway) as store,
        behind_a_jump_host(network, tmp_path) as private,
    ):
        private.let_reach(store)
        yield private, store


def test_it_comes_up_and_is_reached_through_the_jump_host_alone(
    place: tuple[Private, Bucket],
) -> None:
    private, store = place
    host = private.machines.boot(facts("i-1"), told())
    up(private.machines, "i-1")
    address = Address(host, 22, "spotd", host_key().public)
    with pytest.raises(SshUnreachableError):
        connect(address, user_key().private, 3.0)
    way = JumpConnection(private.jump.host, SystemClock())
    try:
        connection = connect(address, user_key().private, dial=way.dial)
        read = f"cat {cloud_init.STATE_FILE} 2>/dev/null"
        wait_for("its preparation", lambda: said(connection, read) == "ok", UP_S)
        with urllib.request.urlopen(store.endpoint, timeout=LIMIT_S) as here:
            assert here.status == 200
        assert (
            said(connection, f"curl -s -o /dev/null -w '%{{http_code}}' {store.endpoint}") == "200"
        )
        assert connection.run(f"curl -s -m 3 {private.jump.cable.host}:22").status != 0
        connection.close()
    finally:
        way.close()


def said(connection: Connection, command: str) -> str:
    return connection.run(command).stdout.decode().strip()
