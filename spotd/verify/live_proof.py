"""Test a real cloud with one small machine, from the launch call to termination.

Uses the provider port and the daemon's SSH link, but no job and no database. The machine belongs to
the deployment, because the daemon's permissions are part of the test, and carries LIVE_TAG.

The machine is terminated whatever happens. If this program is killed, the daemon's orphan sweep and
spot-reaper terminate the machine after its expiry, its agent powers it off, and the cloud ends it
where it supports a maximum lifetime.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from providers.base import (
    EXPIRES_TAG,
    UNATTENDED_TAG,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Offer,
    Provider,
    ProviderError,
)
from providers.dollars import format_usd
from spotd.act.link import SshLink, address_of, node_command, node_words
from spotd.act.node_link import LinkError
from spotd.act.ssh import Connection, HostKeyMismatchError, SshError
from spotd.base.live_reports import PATH_KIND
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node, NodeAddress
from spotd.domain.states import NodeState
from spotd.observe.stream import NodeStream
from spotd.planner.core.node_names import machine_tags
from spotd.planner.core.orphan_policy import LIVE_TAG
from spotd.security.secrets import JobKeys, host_key
from spotd.wire import HELLO, AgentConfig

MAX_DURATION_S = 1200.0  # upper limit from launch to termination; the cost limit is based on it
READY_TIMEOUT_S = 600.0  # for each of: listed with an address, SSH login, prepared
TERMINATE_TIMEOUT_S = 300.0
POLL_S = 2.0
CALL_TIMEOUT_S = 60.0
_ENDED = (InstanceState.TERMINATED, InstanceState.FAILED)
# Prints the current notices, read with the agent's own code.
_READ_NOTICES = (
    "import importlib, json, sys; sys.path.insert(0, sys.argv[1]); "
    "watcher = importlib.import_module(f'providers.{sys.argv[2]}.notice').Watcher(); "
    "print(json.dumps([notice.kind.value for notice in watcher.poll()]))"
)
_REQUEST_WITHOUT_LOGS = b'{"logs": {}}\n'  # the first message of a follower

T = TypeVar("T")


class LiveError(Exception):
    """A step failed; the steps before it succeeded."""


@dataclass(frozen=True)
class Step:
    """The result of one step, and its duration."""

    name: str
    text: str
    seconds: float
    ok: bool = True


@dataclass
class Proof:
    """A live test of one machine. `on_step` is called after each step."""

    provider: Provider
    deployment: str
    offer: Offer
    keys: JobKeys
    link: SshLink
    token: str
    on_step: Callable[[Step], None] = lambda _step: None
    steps: list[Step] = field(default_factory=list)
    instance_id: str = ""
    started_s: float = 0.0
    ended_s: float = 0.0

    @property
    def cost_usd(self) -> float:
        """Estimated cost of the machine so far, without disk and traffic."""
        seconds = (self.ended_s or time.monotonic()) - self.started_s if self.started_s else 0.0
        return self.offer.price_microusd_per_h / 1e6 * seconds / 3600

    @property
    def ok(self) -> bool:
        return bool(self.steps) and all(step.ok for step in self.steps)

    def run(self) -> None:
        """Run all steps and terminate the machine. Raises LiveError if a step fails."""
        try:
            self._run_steps()
        finally:
            if self.started_s and not self.ended_s:
                self._clean_up()

    def _run_steps(self) -> None:
        node = self._launch()
        with self._step("listed") as details:
            instance = self._wait_for("listed with an address", self._listed_instance)
            details.append(f"{instance.instance_id} at {instance.host}")
        node = changed(
            node,
            instance_id=instance.instance_id,
            host=instance.host,
            port=instance.port,
            ssh_user=instance.ssh_user or node.address.ssh_user,
            host_public_key=instance.host_public_key,
        )
        with self._step("ssh, by the pinned host key") as details:
            connection = self._wait_for("SSH", lambda: self._connect(node))
            details.append(
                f"as {node.address.ssh_user}, {address_of(node, self.keys).host_public_key[:24]}…"
            )
        try:
            self._check_machine(node, connection)
        finally:
            connection.close()
        self._terminate()

    def _check_machine(self, node: Node, connection: Connection) -> None:
        if self.provider.prepared_file:
            with self._step("prepared") as details:
                command = f"cat {self.provider.prepared_file} 2>/dev/null || true"
                status = self._wait_for("prepared", lambda: _output(connection, command))
                if status != "ok":
                    raise LiveError(f"the machine's preparation failed: {status}")
                details.append("by its user data: disks, clock, GPUs where there are any")
        with self._step("agent"):
            self.link.boot(node, self.keys, self._agent_config(), CALL_TIMEOUT_S)
        with self._step("hello") as details:
            details.append(self._wait_for_hello(node, connection))
        with self._step("notices") as details:
            path = f'"${{SPOTD_HOME:-$HOME/.spotd}}/bundles/{self.link.bundle.digest}.pyz"'
            command = f'exec python3 -c "{_READ_NOTICES}" {path} {self.provider.watcher}'
            details.append(
                f"in force: {json.loads(_output(connection, command) or '[]') or 'none'}"
            )

    def _terminate(self) -> None:
        with self._step("terminate"):
            self.provider.terminate(self.instance_id)
        with self._step("gone") as details:
            self._wait_for("gone", self._is_gone, TERMINATE_TIMEOUT_S)
            self.ended_s = time.monotonic()
            details.append(f"about {format_usd(self.cost_usd)}")

    # --- steps

    def _launch(self) -> Node:
        node = Node(
            id=self.token,
            job_id=self.token,
            generation=1,
            rank=0,
            candidate=0,
            token=self.token,
            offer=self.offer,
            state=NodeState.LAUNCHING,
            requested_at_us=int(time.time() * 1e6),
            address=NodeAddress(ssh_user="spotd"),
        )
        with self._step("launch") as details:
            self.started_s = time.monotonic()
            outcome = self.provider.launch(self.launch_request())
            self.instance_id = outcome.instance_id if isinstance(outcome, Launched) else ""
            details.append(self.instance_id or "accepted; it is made meanwhile")
        return node

    def launch_request(self) -> LaunchRequest:
        """Return a launch request like the daemon's, with LIVE_TAG."""
        host = host_key(self.keys, self.token)
        offer = self.offer
        return LaunchRequest(
            token=self.token,
            name=self.token,
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            capacity_type=offer.capacity_type,
            tags={
                **machine_tags(
                    self.deployment, job_id=self.token, generation=1, rank=0, token=self.token
                ),
                EXPIRES_TAG: str(int(time.time() + MAX_DURATION_S)),
                UNATTENDED_TAG: str(int(MAX_DURATION_S)),
                LIVE_TAG: "1",
            },
            ssh_user="spotd",
            ssh_public_key=self.keys.user.public,
            host_private_key=host.private,
            host_public_key=host.public,
            max_run_s=int(MAX_DURATION_S) if self.provider.limits_life else 0,
        )

    def _agent_config(self) -> AgentConfig:
        """Return the agent's configuration: it powers the machine off if it is left unattended."""
        return AgentConfig(
            deployment=self.deployment,
            job_id=self.token,
            generation=1,
            rank=0,
            token=self.token,
            watcher=self.provider.watcher,
            unattended_s=MAX_DURATION_S,
            left_s=MAX_DURATION_S,
            life_s=MAX_DURATION_S if self.provider.limits_life else 0.0,
            power_off=self.provider.power_off,
            prepared_file=self.provider.prepared_file,
        )

    def _instances(self) -> list[Instance]:
        return [instance for instance in self.provider.list() if instance.token == self.token]

    def _listed_instance(self) -> Instance | None:
        for instance in self._instances():
            self.instance_id = instance.instance_id
            if instance.state in _ENDED:
                raise LiveError(f"the launch failed: {instance.error or instance.state.value}")
            if instance.host and instance.state is InstanceState.RUNNING:
                return instance
        return None

    def _is_gone(self) -> bool:
        return all(instance.state in _ENDED for instance in self._instances())

    def _connect(self, node: Node) -> Connection | None:
        try:
            return self.link.connect(node, self.keys)
        except HostKeyMismatchError as error:
            raise LiveError(f"another machine answers: {error}") from None
        except SshError:
            return None

    def _wait_for_hello(self, node: Node, connection: Connection) -> str:
        command = node_command(self.link.bundle, f"follow {node_words(node)} --after 0")
        channel = connection.open_channel(command, CALL_TIMEOUT_S)
        channel.settimeout(CALL_TIMEOUT_S)
        stream, end_s = NodeStream(0), time.monotonic() + CALL_TIMEOUT_S
        try:
            channel.sendall(_REQUEST_WITHOUT_LOGS)
            while time.monotonic() < end_s and (data := channel.recv(65536)):
                for entry in stream.feed(data).entries:
                    if entry.kind == HELLO:
                        return f"Python {entry.data.get('python')} on {entry.data.get('hostname')}"
        except TimeoutError:
            pass
        finally:
            channel.close()
        raise LiveError(f"the agent has sent nothing for {CALL_TIMEOUT_S:.0f} s")

    # --- time and termination

    @contextmanager
    def _step(self, name: str) -> Iterator[list[str]]:
        """Record a step. The block appends details to the yielded list; its error is recorded."""
        details: list[str] = []
        started_s = time.monotonic()
        try:
            yield details
        except (LiveError, ProviderError, LinkError, SshError, ValueError) as error:
            message = (
                f"{type(error).__name__}: {error}"
                if not isinstance(error, LiveError)
                else str(error)
            )
            self._add(Step(name, message, time.monotonic() - started_s, ok=False))
            raise LiveError(f"{name}: {message}") from None
        self._add(Step(name, ", ".join(details), time.monotonic() - started_s))

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)

    def _wait_for(self, goal: str, check: Callable[[], T | None], timeout_s: float = 0.0) -> T:
        """Call `check` until it returns a true value, and return it.

        Errors of the cloud and of SSH are retried. `timeout_s` 0 means READY_TIMEOUT_S. Raises
        LiveError on timeout.
        """
        timeout_s = timeout_s or READY_TIMEOUT_S
        end_s = time.monotonic() + timeout_s
        last_error = ""
        while time.monotonic() < min(end_s, self.started_s + MAX_DURATION_S):
            try:
                result = check()
                if result:
                    return result
            except (ProviderError, SshError) as error:
                last_error = f": {error}"
            time.sleep(POLL_S)
        raise LiveError(f"not {goal} within {timeout_s:.0f} s{last_error}")

    def _clean_up(self) -> None:
        """Terminate the machine by its id, and by its token while a launch may still succeed."""
        started_s, instance_ids = time.monotonic(), {self.instance_id} - {""}
        end_s = started_s + max(TERMINATE_TIMEOUT_S, self.provider.visibility_s)
        visible_s = started_s + (0.0 if self.instance_id else self.provider.visibility_s)
        while time.monotonic() < end_s:
            with suppress(ProviderError):
                remaining = [
                    instance for instance in self._instances() if instance.state not in _ENDED
                ]
                for instance_id in instance_ids | {instance.instance_id for instance in remaining}:
                    self.provider.terminate(instance_id)
                instance_ids = set()  # the first time even if it is not listed
                if not remaining and time.monotonic() >= visible_s:
                    self.ended_s = time.monotonic()
                    self._add(Step("cleaned up", "it is gone", self.ended_s - started_s))
                    return
            time.sleep(POLL_S)
        message = (
            "it may be there still: the sweep and spot-reaper end it when its expiry has passed"
        )
        self._add(Step("cleaned up", message, time.monotonic() - started_s, ok=False))


def cheapest_offer(offers: Sequence[Offer], cap_usd: float) -> Offer:
    """Return the cheapest offer. Raises LiveError if there is none, or if it exceeds `cap_usd`."""
    if not offers:
        raise LiveError("nothing that fits is on sale")
    offer = min(offers, key=lambda offer: (offer.price_microusd_per_h, offer.key))
    cost_usd = max_cost_usd(offer)
    if cost_usd > cap_usd:
        raise LiveError(
            f"{offer.key} costs {format_usd(cost_usd)} for the {MAX_DURATION_S / 60:.0f} minutes "
            f"that it may take, and {format_usd(cap_usd)} may be spent"
        )
    return offer


def max_cost_usd(offer: Offer) -> float:
    """Return the cost of a machine for MAX_DURATION_S."""
    return offer.price_microusd_per_h / 1e6 * MAX_DURATION_S / 3600


def build_report(proof: Proof, cloud: str, at: str) -> dict[str, Any]:
    """Return the report that is stored as JSON. `at` is the time of the test, ISO 8601."""
    return {
        "apiVersion": "spotd/v1",
        "kind": PATH_KIND,
        "cloud": cloud,
        "at": at,
        "ok": proof.ok,
        "offer": proof.offer.key,
        "price_usd_per_h": proof.offer.price_microusd_per_h / 1e6,
        "instance_id": proof.instance_id,
        "cost_usd": round(proof.cost_usd, 6),
        "steps": [
            {"name": s.name, "ok": s.ok, "seconds": round(s.seconds, 3), "text": s.text}
            for s in proof.steps
        ],
    }


def render_markdown(report: dict[str, Any]) -> str:
    """Render a report of `build_report` as Markdown."""
    verdict = "came off" if report["ok"] else "**failed**"
    price = f"{report['offer']} at {format_usd(report['price_usd_per_h'])}/h"
    cost = f"about {format_usd(report['cost_usd'])} for the machine, its disk and traffic aside"
    lines = [
        f"# {report['cloud']}, live, {report['at']}",
        "",
        f"{price}: {verdict}; {cost}.",
        "",
        "| step | seconds | |",
        "|---|---|---|",
    ]
    for step in report["steps"]:
        prefix = "" if step["ok"] else "**failed**: "
        lines.append(f"| {step['name']} | {step['seconds']:.1f} | {prefix}{step['text']} |")
    return "\n".join(lines) + "\n"


def _output(connection: Connection, command: str) -> str:
    """Return a command's output. Raises LiveError if the command fails."""
    result = connection.run(command, (), CALL_TIMEOUT_S)
    if result.status != 0:
        raise LiveError(result.stderr.decode(errors="replace").strip()[-300:] or "it failed")
    return result.stdout.decode(errors="replace").strip()
