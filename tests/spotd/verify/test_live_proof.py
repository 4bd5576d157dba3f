"""Test the live proof with a fake cloud and a fake machine.

Every failure is reported, and the machine is terminated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from providers.base import (
    CapacityError,
    CapacityType,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Offer,
    OfferRequest,
    Pending,
    UnknownOutcome,
)
from spotd.act.node_link import LinkError
from spotd.act.remote_exec import Result
from spotd.act.ssh import HostKeyMismatchError, SshUnreachableError
from spotd.planner.core.orphan_policy import LIVE_TAG
from spotd.security.secrets import JobKeys
from spotd.verify import live_proof
from spotd.verify.live_proof import (
    MAX_DURATION_S,
    LiveError,
    Proof,
    Step,
    build_report,
    cheapest_offer,
    max_cost_usd,
    render_markdown,
)
from spotd.wire import HELLO, JournalEntry
from tests.clouds.azure.serving import serving as azure_serving
from tests.clouds.gcp.serving import serving as gcp_serving

OFFER = Offer("aws", "r", "r-a", "small", CapacityType.SPOT, 90_000, 100_000, cloud="aws")


class Cloud:
    """A cloud with at most one machine. `goes_wrong` names the failure: see the tests."""

    name, local, watcher = "aws", False, "aws"
    limits_life, power_off, prepared_file, visibility_s = False, ("off",), "/run/prepared", 0.1

    def __init__(self, goes_wrong: str = "") -> None:
        self.goes_wrong = goes_wrong
        self.launch_request: LaunchRequest | None = None
        self.there = False
        self.ended: list[str] = []

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        if self.goes_wrong == "refused":
            raise CapacityError("none left")
        self.launch_request, self.there = request, True
        if self.goes_wrong == "lost answer":
            raise UnknownOutcome("no answer")
        return Pending("op") if self.goes_wrong == "pending" else Launched("i-1")

    def list(self) -> Sequence[Instance]:
        if not self.there or self.launch_request is None:
            return []
        state = InstanceState.PENDING if self.goes_wrong == "never up" else InstanceState.RUNNING
        if self.goes_wrong == "failed":
            state = InstanceState.FAILED
        return [
            Instance(
                "i-1",
                self.launch_request.token,
                self.launch_request.tags,
                state,
                "r",
                "r-a",
                "small",
                CapacityType.SPOT,
                host="192.0.2.1",
                error="no capacity" if state is InstanceState.FAILED else "",
            )
        ]

    def terminate(self, instance_id: str) -> None:
        self.ended.append(instance_id)
        if self.goes_wrong != "not ended":
            self.there = False


class Channel:
    def __init__(self, data: list[bytes]) -> None:
        self._data = data

    def settimeout(self, _seconds: float) -> None:
        """No matter."""

    def sendall(self, request: bytes) -> None:
        assert request == b'{"logs": {}}\n'

    def recv(self, _size: int) -> bytes:
        if not self._data:
            raise TimeoutError
        return self._data.pop(0)

    def close(self) -> None:
        """Nothing."""


class Link:
    """A fake SSH link and connection."""

    class bundle:  # noqa: N801 - an attribute
        digest = "0" * 64

    def __init__(self, goes_wrong: str = "") -> None:
        self.goes_wrong = goes_wrong
        self.tries = 0
        self.config: Any = None

    def connect(self, *_: object) -> Link:
        self.tries += 1
        if self.goes_wrong == "stranger":
            raise HostKeyMismatchError("another key")
        if self.goes_wrong == "interrupted":
            raise KeyboardInterrupt
        if self.goes_wrong == "no ssh" or self.tries == 1:
            raise SshUnreachableError("refused")
        return self

    def run(self, message: str, _stdin: object, _deadline_s: float) -> Result:
        if message.startswith("cat "):
            status = b"nvidia-smi: no devices\n" if self.goes_wrong == "unwell" else b"ok\n"
            return Result(0, status, b"")
        if self.goes_wrong == "no metadata":
            return Result(1, b"", b"MetadataError: 404")
        return Result(0, b"[]\n", b"")

    def boot(self, _node: object, _keys: object, config: object, _deadline_s: float) -> None:
        if self.goes_wrong == "no python":
            raise LinkError("the machine has no python3")
        self.config = config

    def open_channel(self, _words: str, _deadline_s: float) -> Channel:
        data = {"agent": "1", "wire": 1, "python": "3.12", "hostname": "m", "boot_id": "b"}
        line = JournalEntry(1, 1, 1, HELLO, data).to_line()
        return Channel([] if self.goes_wrong == "silent" else [line])

    def close(self) -> None:
        """Nothing."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("POLL_S", 0.01), ("READY_TIMEOUT_S", 0.2), ("TERMINATE_TIMEOUT_S", 0.2)):
        monkeypatch.setattr(live_proof, name, value)


def proof_of(cloud: Any, link: Any) -> Proof:
    return Proof(cloud, "d0", OFFER, JobKeys.create(os.urandom), link, "spotd-live-1")


def test_the_whole_way() -> None:
    cloud, link, steps = Cloud(), Link(), list[Step]()
    proof = proof_of(cloud, link)
    proof.on_step = steps.append
    proof.run()
    assert [step.name for step in steps] == [
        "launch",
        "listed",
        "ssh, by the pinned host key",
        "prepared",
        "agent",
        "hello",
        "notices",
        "terminate",
        "gone",
    ]
    assert proof.ok
    assert (cloud.ended, cloud.there) == (["i-1"], False)
    assert steps[5].text == "Python 3.12 on m"
    assert 0 < proof.cost_usd < 0.001


def test_the_machine_has_limits_on_its_lifetime() -> None:
    cloud, link = Cloud(), Link()
    proof_of(cloud, link).run()
    assert cloud.launch_request is not None
    tags = cloud.launch_request.tags
    assert (tags["spotd-deployment"], tags[LIVE_TAG]) == ("d0", "1")
    assert 0 < int(tags["spotd-expires"]) - time.time() <= MAX_DURATION_S
    assert tags["spotd-unattended-s"] == "1200"
    config = link.config
    assert (config.unattended_s, config.left_s, config.power_off) == (1200.0, 1200.0, ("off",))
    limited = Cloud()
    limited.limits_life = True
    proof_of(limited, Link()).run()
    assert limited.launch_request is not None
    assert limited.launch_request.max_run_s == MAX_DURATION_S


@pytest.mark.parametrize(
    ("cloud", "link", "step_name", "message"),
    [
        ("refused", "", "launch", "CapacityError: none left"),
        ("lost answer", "", "launch", "UnknownOutcome: no answer"),
        ("failed", "", "listed", "the launch failed: no capacity"),
        ("never up", "", "listed", "not listed with an address within"),
        ("", "no ssh", "ssh, by the pinned host key", "not SSH within"),
        ("", "stranger", "ssh, by the pinned host key", "another machine answers"),
        ("", "unwell", "prepared", "the machine's preparation failed: nvidia-smi: no devices"),
        ("", "no python", "agent", "LinkError: the machine has no python3"),
        ("", "silent", "hello", "the agent has sent nothing"),
        ("", "no metadata", "notices", "MetadataError: 404"),
    ],
)
def test_failures_are_reported_and_the_machine_is_terminated(
    cloud: str, link: str, step_name: str, message: str
) -> None:
    fake_cloud = Cloud(cloud)
    proof = proof_of(fake_cloud, Link(link))
    with pytest.raises(LiveError, match=step_name):
        proof.run()
    failed = next(step for step in proof.steps if not step.ok)
    assert failed.name == step_name
    assert message in failed.text
    assert not proof.ok
    assert proof.steps[-1].name == "cleaned up"
    assert proof.steps[-1].ok
    assert not fake_cloud.there or cloud == "failed"


def test_a_stranger_is_tried_once_alone() -> None:
    link = Link("stranger")
    with pytest.raises(LiveError):
        proof_of(Cloud(), link).run()
    assert link.tries == 1


def test_an_interrupt_terminates_the_machine() -> None:
    cloud = Cloud()
    with pytest.raises(KeyboardInterrupt):
        proof_of(cloud, Link("interrupted")).run()
    assert ({*cloud.ended}, cloud.there) == ({"i-1"}, False)


def test_a_machine_that_does_not_end_is_told() -> None:
    proof = proof_of(Cloud("not ended"), Link())
    with pytest.raises(LiveError, match="gone"):
        proof.run()
    assert not proof.steps[-1].ok
    assert "spot-reaper end it when its expiry has passed" in proof.steps[-1].text


def test_nothing_dearer_than_allowed_is_launched() -> None:
    dear = replace(OFFER, price_microusd_per_h=90_000_000)
    assert cheapest_offer([dear, OFFER], 1.0) is OFFER
    assert max_cost_usd(OFFER) == pytest.approx(0.03)
    with pytest.raises(LiveError, match=r"costs \$30\.00 for the 20 minutes .* \$2\.00 may"):
        cheapest_offer([dear], 2.0)
    with pytest.raises(LiveError, match="nothing that fits"):
        cheapest_offer([], 2.0)


def test_the_report_says_what_failed() -> None:
    proof = proof_of(Cloud(), Link("unwell"))
    with pytest.raises(LiveError):
        proof.run()
    report = build_report(proof, "aws", "2026-11-22T10:00:00Z")
    assert (report["ok"], report["instance_id"]) == (False, "i-1")
    assert [step["name"] for step in report["steps"] if not step["ok"]] == ["prepared"]
    page = render_markdown(report)
    assert page.startswith("# aws, live, 2026-11-22T10:00:00Z\n")
    assert "| **failed**: the machine's preparation failed: nvidia-smi: no devices |" in page


# --- against stand-ins, whose machines are addresses that nobody may call


@pytest.fixture
def gcp(tmp_path: Any) -> Iterator[tuple[Any, Callable[[], object], str]]:
    from providers.gcp.cloud import GcpCloud

    with gcp_serving(tmp_path) as standin:
        settings = {"project": "lab", "regions": ("us-central1",), "instance_types": ("g2-*",)}
        cloud = GcpCloud("gcp", "d0", **settings, **standin.settings)
        yield cloud, lambda: standin.gce.project("lab").machines, ""


@pytest.fixture
def azure(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Callable[[], object], str]]:
    from providers.azure.cloud import AzureCloud

    with azure_serving(tmp_path) as standin:
        for name, value in standin.environ.items():
            monkeypatch.setenv(name, value)
        types = {"instance_types": ("Standard_F2s_v2",)}
        cloud = AzureCloud("azure", "d0", regions=("eastus",), **types, **standin.settings)
        yield cloud, lambda: standin.arm.world.machines, ""


@pytest.mark.parametrize("which", ["gcp", "azure"])
def test_other_clouds_as_far_as_their_stand_ins_go(
    which: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the launch to an address and termination; nothing answers at the address."""
    for name in ("READY_TIMEOUT_S", "TERMINATE_TIMEOUT_S"):
        monkeypatch.setattr(live_proof, name, 5.0)
    cloud, machines, _ = request.getfixturevalue(which)
    cloud.visibility_s = 0.5
    offer = cheapest_offer(cloud.offers(OfferRequest()), 2.0)
    proof = Proof(
        cloud,
        "d0",
        offer,
        JobKeys.create(os.urandom),
        Link("stranger"),
        "spotd-live-a1",  # type: ignore[arg-type]
    )
    with pytest.raises(LiveError, match="another machine answers"):
        proof.run()
    assert [step.name for step in proof.steps] == [
        "launch",
        "listed",
        "ssh, by the pinned host key",
        "cleaned up",
    ]
    assert proof.steps[-1].ok
    assert not machines()
