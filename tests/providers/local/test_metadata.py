"""The metadata service of a running machine, read over HTTP by the agent's notice watchers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from providers.aws.notice import Watcher as AwsWatcher
from providers.azure.notice import Watcher as AzureWatcher
from providers.base import Instance, InstanceState, MetadataError, Notice, NoticeKind, NoticeWatcher
from providers.gcp.notice import Watcher as GcpWatcher
from providers.local.cloud import LocalCloud
from providers.local.control import RunningCloud
from tests.fixtures.local_cloud import launch_running, run, wait_state
from tests.fixtures.waiting import LIMIT_S, until

WATCHERS: dict[str, Callable[[str], NoticeWatcher]] = {
    "aws": lambda base: AwsWatcher(base, advisories_every=1),
    "gcp": lambda base: GcpWatcher(base, wait_s=1),
    "azure": AzureWatcher,
}


def start(local: RunningCloud, name: str, token: str) -> tuple[Instance, str]:
    """Launch a machine; return it and the URL of its metadata service."""
    instance = launch_running(
        LocalCloud("x", local.url, name, "metadata", token_file=local.token_file), token
    )
    return instance, run(instance, "echo $SPOTD_METADATA_BASE").out.strip()


def wait_for_notice(watcher: NoticeWatcher, kind: NoticeKind) -> Notice:
    """The first notice of that kind, polling as the agent does."""

    def poll() -> Notice | None:
        return next((n for n in watcher.poll() if n.kind is kind), None)

    return until(poll, every_s=max(watcher.interval_s, 0.01))


@pytest.mark.req("PRE-01")
@pytest.mark.req("PRE-02")
@pytest.mark.req("PRE-03")
@pytest.mark.parametrize("name", sorted(WATCHERS))
@pytest.mark.parametrize("kind", ["preempt", "maintenance"])
def test_watchers_hear_the_notice(local: RunningCloud, name: str, kind: str) -> None:
    instance, base = start(local, name, f"hear-{name}-{kind}")
    watcher = WATCHERS[name](base)
    assert list(watcher.poll()) == []
    before_us = time.time_ns() // 1000
    (published,) = local.control.preempt(instance=instance.instance_id, kind=kind, notice_s=90)
    notice_seen = wait_for_notice(watcher, NoticeKind(kind))
    assert before_us <= published["published_at_us"] <= time.time_ns() // 1000
    if name in ("aws", "azure"):
        assert notice_seen.deadline_us is not None
        assert published["deadline_us"] - 1_000_000 <= notice_seen.deadline_us
        assert notice_seen.deadline_us <= published["deadline_us"]


def test_rebalance_is_heard(local: RunningCloud) -> None:
    instance, base = start(local, "aws", "rebalance")
    local.control.rebalance(instance.instance_id)
    wait_for_notice(WATCHERS["aws"](base), NoticeKind.REBALANCE)


def test_withdrawal_is_heard(local: RunningCloud) -> None:
    instance, base = start(local, "azure", "withdrawal")
    watcher = WATCHERS["azure"](base)
    (notice,) = local.control.preempt(instance=instance.instance_id, notice_s=90)
    assert wait_for_notice(watcher, NoticeKind.PREEMPT).notice_id == notice["notice_id"]
    local.control.withdraw(notice["notice_id"])
    until(lambda: list(watcher.poll()) == [], every_s=1.0)


def test_acknowledged_azure_event_comes_at_once(local: RunningCloud) -> None:
    cloud = LocalCloud("x", local.url, "azure", "metadata", token_file=local.token_file)
    instance, base = start(local, "azure", "ack")
    watcher = WATCHERS["azure"](base)
    local.control.preempt(instance=instance.instance_id, notice_s=300)
    watcher.acknowledge(wait_for_notice(watcher, NoticeKind.PREEMPT))
    wait_state(cloud, "ack", InstanceState.TERMINATED)


@pytest.mark.parametrize("name", sorted(WATCHERS))
@pytest.mark.parametrize("fault", ["down", "error_503", "garbage"])
def test_outage_is_no_preemption(local: RunningCloud, name: str, fault: str) -> None:
    instance, base = start(local, name, f"outage-{name}-{fault}")
    watcher = WATCHERS[name](base)
    local.control.metadata(instance.instance_id, fault, 0.5)
    with pytest.raises(MetadataError):
        watcher.poll()
    until(lambda: _answers(watcher), every_s=0.3)
    assert list(watcher.poll()) == []


def _answers(watcher: NoticeWatcher) -> bool:
    try:
        return list(watcher.poll()) == []
    except MetadataError:
        return False


@pytest.mark.req("PRE-01")
def test_expired_token_is_renewed(local: RunningCloud) -> None:
    instance, base = start(local, "aws", "tokens")
    watcher = WATCHERS["aws"](base)
    assert list(watcher.poll()) == []
    local.control.metadata(instance.instance_id, "expire_tokens")
    assert list(watcher.poll()) == []


def test_boot_delay_refuses_until_it_is_over(begin: Any) -> None:
    local = begin(
        """
        [[zone]]
        personality = "azure"
        region = "eastus"
        name = "eastus-1"
        boot_delay_s = 0.7
        """
    )
    cloud = LocalCloud("x", local.url, "azure", "boot", token_file=local.token_file)
    began = time.monotonic()
    instance = launch_running(cloud, "boot")
    with pytest.raises(ConnectionRefusedError):
        run(instance, "true")

    def up() -> bool:
        try:
            return run(instance, "true").code == 0
        except ConnectionRefusedError:
            return False

    until(up)
    assert time.monotonic() - began >= 0.7
    (row,) = local.control.state()["instances"]
    assert row["booted_at_us"] - row["launched_at_us"] >= 700_000


def test_first_azure_call_is_slow_over_http(begin: Any) -> None:
    local = begin("azure_first_call_delay_s = 0.6")
    _instance, base = start(local, "azure", "first")
    began = time.monotonic()
    watcher = WATCHERS["azure"](base)
    watcher.poll()
    assert time.monotonic() - began >= 0.6


def test_plain_http_as_any_client_sees_it(local: RunningCloud) -> None:
    _instance, base = start(local, "gcp", "plain")
    url = f"{base}/computeMetadata/v1/instance/preempted"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=LIMIT_S)
    with refused.value as answer:
        assert answer.code == 403
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        assert reply.read() == b"FALSE"
        assert reply.headers["Metadata-Flavor"] == "Google"
    request = urllib.request.Request(f"{url}?alt=json", headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        assert json.loads(reply.read()) == "FALSE"
