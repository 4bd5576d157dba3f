"""Launch, boot, follow, notice, end: with machines of the local cloud, as the daemon does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from providers.base import CapacityType, InstanceState, Launched, NoticeKind, OfferRequest
from providers.local.cloud import LocalCloud
from providers.local.control import RunningCloud
from providers.stores.local import LocalStore
from spotd.act.bundle import Bundle
from spotd.act.effects import launch_request
from spotd.act.link import SshLink
from spotd.base.clock import SystemClock
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from spotd.domain.states import NodeState
from spotd.observe import nodes
from spotd.observe.nodes import Follower
from spotd.planner.core.node_bootstrap import agent_config
from spotd.store.sql_store import SqlStore
from tests.fixtures import sshd
from tests.fixtures.local_cloud import running
from tests.fixtures.station import NODE
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.spotd.store import build

KEYS = sshd.keys(3)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    with running(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.mark.req("RPV-14")
@pytest.mark.parametrize("make", ["aws", "gcp", "azure"])
def test_from_launch_to_gone(
    local: RunningCloud,
    make: str,
    store: SqlStore,
    tmp_path: Path,
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "SILENT_S", 2 * LIMIT_S)  # its end is noticed, not its silence
    clock, link = SystemClock(), SshLink(bundle)
    cloud = LocalCloud(
        make, local.url, personality=make, deployment="d0", token_file=local.token_file
    )
    offer = cloud.offers(OfferRequest(capacity_types=(CapacityType.SPOT,)))[0]
    now_us = clock.now_us()
    node = build.new_node(token=f"t-{make}-observe", offer=offer, requested_at_us=now_us)
    view = build.placed(store, "j1", node)

    launched = cloud.launch(
        launch_request(Effect(EffectKind.LAUNCH, node, view.job, now_us, {}), KEYS, "d0")
    )
    assert isinstance(launched, Launched)
    store.nodes.record_launched(NODE, launched.instance_id, clock.now_us())
    wait_until(
        "it runs",
        lambda: any(
            i.token == node.token and i.state is InstanceState.RUNNING for i in cloud.list()
        ),
    )
    asked_us = clock.now_us()
    store.instances.record_listing(make, cloud.list(), asked_us, asked_us)
    build.move(store, NODE, NodeState.BOOTING, asked_us)

    objects = LocalStore(tmp_path / "objects")
    follower = Follower(store, link, lambda _: KEYS, objects, clock)
    follower.start()
    try:
        booted = build.node(store, NODE)
        job = store.jobs.rows()[0]
        config = replace(agent_config("d0", job, booted, cloud, clock.now_us()), heartbeat_s=0.2)
        link.boot(booted, KEYS, config, 30.0)
        store.nodes.record_booted(NODE, clock.now_us())
        follower.poke()
        wait_until("its hello", lambda: build.node(store, NODE).startup.hello_at_us)

        local.control.preempt(instance=launched.instance_id, notice_s=3.0)
        found = wait_until("its notice", lambda: build.node(store, NODE).notices)
        assert [notice.kind for notice in found] == [NoticeKind.PREEMPT]
        wait_until("the end of the link", lambda: build.node(store, NODE).agent.link_down_at_us)
        cloud.terminate(launched.instance_id)
    finally:
        follower.stop()
