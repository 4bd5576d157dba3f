"""Proof on a real cloud: one small machine through the provider port and the daemon's own SSH link,
from the API to its end. Nothing of a job, and nothing of the database, takes part in it.

The machine is the deployment's own (what the box may do is a part of the proof) with one tag more,
LIVE_TAG. It ends whatever happens here. This program ends it; killed, it leaves a machine that the
daemon's sweep and spot-reaper end when its expiry has passed, that its agent, once there, switches
off, and that the cloud ends by itself where it can.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
from spotd.act.link import SshLink, address_of, node_command, node_words
from spotd.act.node_link import LinkError
from spotd.act.ssh import Connection, HostKeyMismatchError, SshError
from spotd.base.live_reports import PATH_KIND
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.observe.stream import NodeStream
from spotd.planner.core.orphan_policy import LIVE_TAG
from spotd.security.secrets import JobKeys, host_key
from spotd.wire import HELLO, AgentConfig

LONGEST_S = 1200.0  # from the launch to the end, at most: what the price is counted with
UP_S = 600.0  # for a machine to be listed with an address, take our key, and be prepared
GONE_S = 300.0
ASK_S = 2.0  # between looks
CALL_S = 60.0
_ENDED = (InstanceState.TERMINATED, InstanceState.FAILED)
# Reads the notices that are in force, with the code that the agent reads them with.
_READ_NOTICES = (
    "import importlib, json, sys; sys.path.insert(0, sys.argv[1]); "
    "watcher = importlib.import_module(f'providers.{sys.argv[2]}.notice').Watcher(); "
    "print(json.dumps([notice.kind.value for notice in watcher.poll()]))"
)
_NO_LOGS = b'{"logs": {}}\n'  # what a follower asks for first

T = TypeVar("T")


class LiveError(Exception):
    """A step that did not come off; the steps before it did."""


@dataclass(frozen=True)
class Step:
    """What was shown, and how long it took. `ok` is False for the one that failed."""

    name: str
    text: str
    seconds: float
    ok: bool = True


@dataclass
class Proof:
    """Of one machine. `tell` hears of each step as it is over; `cost_usd` is the machine's price
    for as long as it was there, without its disk and its traffic."""

    provider: Provider
    deployment: str
    offer: Offer
    keys: JobKeys
    link: SshLink
    token: str
    tell: Callable[[Step], None] = lambda _step: None
    steps: list[Step] = field(default_factory=list)
    instance_id: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def cost_usd(self) -> float:
        seconds = (self.ended_s or time.monotonic()) - self.began_s if self.began_s else 0.0
        return self.offer.price_microusd_per_h / 1e6 * seconds / 3600

    @property
    def ok(self) -> bool:
        return bool(self.steps) and all(step.ok for step in self.steps)

    def run(self) -> None:
        """All steps; the machine is gone when this is over, however it is over. Raises LiveError
        for the first that fails, after that, and whatever stops this program."""
        try:
            self._prove()
        finally:
            if self.began_s and not self.ended_s:
                self._clean_up()

    def _prove(self) -> None:
        node = self._launched()
        with self._step("listed") as told:
            instance = self._until("listed with an address", self._listed)
            told.append(f"{instance.instance_id} at {instance.host}")
        node = replace(
            node,
            instance_id=instance.instance_id,
            host=instance.host,
            port=instance.port,
            ssh_user=instance.ssh_user or node.ssh_user,
            host_public_key=instance.host_public_key,
        )
        with self._step("ssh, by the pinned host key") as told:
            connection = self._until("SSH", lambda: self._logged_in(node))
            told.append(f"as {node.ssh_user}, {address_of(node, self.keys).host_public_key[:24]}…")
        try:
            self._look_into(node, connection)
        finally:
            connection.close()
        self._end()

    def _look_into(self, node: Node, connection: Connection) -> None:
        if self.provider.prepared_file:
            with self._step("prepared") as told:
                words = f"cat {self.provider.prepared_file} 2>/dev/null || true"
                said = self._until("prepared", lambda: _output(connection, words))
                if said != "ok":
                    raise LiveError(f"its preparation says: {said}")
                told.append("by its user data: disks, clock, GPUs where there are any")
        with self._step("agent"):
            self.link.boot(node, self.keys, self._agent(), CALL_S)
        with self._step("hello") as told:
            told.append(self._hello(node, connection))
        with self._step("notices") as told:
            path = f'"${{SPOTD_HOME:-$HOME/.spotd}}/bundles/{self.link.bundle.digest}.pyz"'
            words = f'exec python3 -c "{_READ_NOTICES}" {path} {self.provider.watcher}'
            told.append(f"in force: {json.loads(_output(connection, words) or '[]') or 'none'}")

    def _end(self) -> None:
        with self._step("terminate"):
            self.provider.terminate(self.instance_id)
        with self._step("gone") as told:
            self._until("gone", self._gone, GONE_S)
            self.ended_s = time.monotonic()
            told.append(f"about {self.cost_usd:.4f} USD")

    # --- steps

    def _launched(self) -> Node:
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
            ssh_user="spotd",
        )
        with self._step("launch") as told:
            self.began_s = time.monotonic()
            outcome = self.provider.launch(self.request())
            self.instance_id = outcome.instance_id if isinstance(outcome, Launched) else ""
            told.append(self.instance_id or "accepted; it is made meanwhile")
        return node

    def request(self) -> LaunchRequest:
        """As the daemon makes them, with the tag that says what it is for."""
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
                "spotd-deployment": self.deployment,
                "spotd-job": self.token,
                "spotd-generation": "1",
                "spotd-rank": "0",
                "spotd-token": self.token,
                EXPIRES_TAG: str(int(time.time() + LONGEST_S)),
                UNATTENDED_TAG: str(int(LONGEST_S)),
                LIVE_TAG: "1",
            },
            ssh_user="spotd",
            ssh_public_key=self.keys.user.public,
            host_private_key=host.private,
            host_public_key=host.public,
            max_run_s=int(LONGEST_S) if self.provider.limits_life else 0,
        )

    def _agent(self) -> AgentConfig:
        """Without a word from us it switches the machine off, where that ends what it costs."""
        return AgentConfig(
            deployment=self.deployment,
            job_id=self.token,
            generation=1,
            rank=0,
            token=self.token,
            watcher=self.provider.watcher,
            unattended_s=LONGEST_S,
            left_s=LONGEST_S,
            life_s=LONGEST_S if self.provider.limits_life else 0.0,
            power_off=self.provider.power_off,
            prepared_file=self.provider.prepared_file,
        )

    def _mine(self) -> list[Instance]:
        return [one for one in self.provider.list() if one.token == self.token]

    def _listed(self) -> Instance | None:
        for one in self._mine():
            self.instance_id = one.instance_id
            if one.state in _ENDED:
                raise LiveError(f"it came to nothing: {one.error or one.state.value}")
            if one.host and one.state is InstanceState.RUNNING:
                return one
        return None

    def _gone(self) -> bool:
        return all(one.state in _ENDED for one in self._mine())

    def _logged_in(self, node: Node) -> Connection | None:
        try:
            return self.link.connect(node, self.keys)
        except HostKeyMismatchError as error:
            raise LiveError(f"somebody else answers: {error}") from None
        except SshError:
            return None

    def _hello(self, node: Node, connection: Connection) -> str:
        words = node_command(self.link.bundle, f"follow {node_words(node)} --after 0")
        channel = connection.open_channel(words, CALL_S)
        channel.settimeout(CALL_S)
        stream, end_s = NodeStream(0), time.monotonic() + CALL_S
        try:
            channel.sendall(_NO_LOGS)
            while time.monotonic() < end_s and (data := channel.recv(65536)):
                for entry in stream.feed(data).entries:
                    if entry.kind == HELLO:
                        return f"Python {entry.data.get('python')} on {entry.data.get('hostname')}"
        except TimeoutError:
            pass
        finally:
            channel.close()
        raise LiveError(f"the agent says nothing for {CALL_S:.0f} s")

    # --- time, and the end

    @contextmanager
    def _step(self, name: str) -> Iterator[list[str]]:
        """What the block appends is told of it. What it fails with is told as well."""
        told: list[str] = []
        began_s = time.monotonic()
        try:
            yield told
        except (LiveError, ProviderError, LinkError, SshError, ValueError) as error:
            text = (
                f"{type(error).__name__}: {error}"
                if not isinstance(error, LiveError)
                else str(error)
            )
            self._add(Step(name, text, time.monotonic() - began_s, ok=False))
            raise LiveError(f"{name}: {text}") from None
        self._add(Step(name, ", ".join(told), time.monotonic() - began_s))

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.tell(step)

    def _until(self, what: str, look: Callable[[], T | None], patience_s: float = 0.0) -> T:
        """What `look` finds within the time that there is (UP_S unless it is given). A cloud that
        fails to answer is asked again."""
        patience_s = patience_s or UP_S
        end_s = time.monotonic() + patience_s
        last = ""
        while time.monotonic() < min(end_s, self.began_s + LONGEST_S):
            try:
                found = look()
                if found:
                    return found
            except (ProviderError, SshError) as error:
                last = f": {error}"
            time.sleep(ASK_S)
        raise LiveError(f"not {what} within {patience_s:.0f} s{last}")

    def _clean_up(self) -> None:
        """By its id, and by its token while a create may still come to something."""
        began_s, named = time.monotonic(), {self.instance_id} - {""}
        end_s = began_s + max(GONE_S, self.provider.visibility_s)
        certain_s = began_s + (0.0 if self.instance_id else self.provider.visibility_s)
        while time.monotonic() < end_s:
            with suppress(ProviderError):
                found = [one for one in self._mine() if one.state not in _ENDED]
                for name in named | {one.instance_id for one in found}:
                    self.provider.terminate(name)
                named = set()  # once without its being listed
                if not found and time.monotonic() >= certain_s:
                    self.ended_s = time.monotonic()
                    self._add(Step("cleaned up", "it is gone", self.ended_s - began_s))
                    return
            time.sleep(ASK_S)
        text = "it may be there still: the sweep and spot-reaper end it when its expiry has passed"
        self._add(Step("cleaned up", text, time.monotonic() - began_s, ok=False))


def cheapest(offers: Sequence[Offer], cap_usd: float) -> Offer:
    """The one to prove it with. Raises LiveError where the longest that it may take costs more than
    may be spent, or where there is none."""
    if not offers:
        raise LiveError("nothing that fits is on sale")
    best = min(offers, key=lambda offer: (offer.price_microusd_per_h, offer.key))
    most_usd = worst_usd(best)
    if most_usd > cap_usd:
        raise LiveError(
            f"{best.key} costs {most_usd:.4f} USD for the {LONGEST_S / 60:.0f} minutes that it may "
            f"take, and {cap_usd:.4f} may be spent"
        )
    return best


def worst_usd(offer: Offer) -> float:
    """What a machine costs for the longest time that it may be there."""
    return offer.price_microusd_per_h / 1e6 * LONGEST_S / 3600


def report_of(proof: Proof, cloud: str, at: str) -> dict[str, Any]:
    """What is kept of it."""
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


def page_of(report: dict[str, Any]) -> str:
    """The same for people, in Markdown."""
    verdict = "came off" if report["ok"] else "**failed**"
    price = f"{report['offer']} at {report['price_usd_per_h']:.4f} USD/h"
    cost = f"about {report['cost_usd']:.4f} USD for the machine, its disk and traffic aside"
    lines = [
        f"# {report['cloud']}, live, {report['at']}",
        "",
        f"{price}: {verdict}; {cost}.",
        "",
        "| step | seconds | |",
        "|---|---|---|",
    ]
    for step in report["steps"]:
        mark = "" if step["ok"] else "**failed**: "
        lines.append(f"| {step['name']} | {step['seconds']:.1f} | {mark}{step['text']} |")
    return "\n".join(lines) + "\n"


def _output(connection: Connection, words: str) -> str:
    """What a command says; raises LiveError where it fails."""
    result = connection.run(words, (), CALL_S)
    if result.status != 0:
        raise LiveError(result.stderr.decode(errors="replace").strip()[-300:] or "it failed")
    return result.stdout.decode(errors="replace").strip()
