"""A simulated cloud: machines, tokens, a listing that lags, capacity and prices that walk.

It is the witness of a run: whatever the daemon believes, `machines` and the seconds that each was
alive are what would have been paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from providers.base import (
    EXPIRES_TAG,
    AuthError,
    CapacityError,
    CapacityType,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Leftover,
    LeftoverKind,
    Notice,
    NoticeKind,
    Offer,
    PriceError,
    QuotaError,
    RejectedError,
    ThrottledError,
)
from providers.images import Image
from tests.sim.faults import Faults
from tests.sim.images import SimImages
from tests.sim.kernel import Kernel

FORGOTTEN_S = 600.0  # a terminated machine is listed for that long
TYPE = "8xh100"
LIST_PRICE = 98_000_000  # micro-USD an hour, of an 8xH100 on demand
PROOF = 3  # listings: with fewer, nobody has looked but at the two ends of a time
LAUNCH_S = (20.0, 120.0)  # from create to a machine that answers


class Machine(Protocol):
    """What runs on an instance, from the moment that it is switched on."""

    def power_on(self) -> None: ...

    def power_off(self) -> None: ...

    def warn(self, notice: Notice) -> None: ...

    def withdraw(self, notice_id: str) -> None: ...


@dataclass(eq=False)
class Rented:
    """One instance, alive from `created_us` to `ended_us` (0: still)."""

    id: str
    request: LaunchRequest
    provider: str
    prices: list[tuple[int, int]]  # (since when, micro-USD an hour), oldest first
    created_us: int
    visible_us: int
    machine: Machine
    ended_us: int = 0
    ended_by: str = ""
    ending_us: int = 0  # a terminate was accepted
    ignored: int = 0  # terminates that were accepted and not followed
    told_by: str = ""  # who told it to end last
    hidden_until_us: int = 0  # no listing shows it before
    forgotten_us: int = 0  # when its cloud began to list none of ours; 0: never
    missed: int = 0  # listings in a row that lack it; 0: the last one showed it
    missed_us: int = 0  # since when
    missed_for_us: int = 0  # the longest that PROOF of them did
    error_code: str = ""
    expires_at_us: int = 0  # as it was last renewed; 0: never
    notices: dict[str, Notice] = field(default_factory=dict)

    @property
    def token(self) -> str:
        return self.request.token

    @property
    def job_id(self) -> str:
        return self.request.tags["spotd-job"]

    def cost_microusd(self, until_us: int) -> int:
        """What it has cost until then: a spot machine costs what its place costs at each moment."""
        end_us = min(self.ended_us or until_us, until_us)
        ends = [*(since_us for since_us, _ in self.prices[1:]), end_us]
        return sum(
            max(min(to_us, end_us) - since_us, 0) * price // 3_600_000_000
            for (since_us, price), to_us in zip(self.prices, ends, strict=True)
        )

    @property
    def alive(self) -> bool:
        return not self.ended_us


@dataclass(frozen=True)
class Left:
    """What a machine left behind. One that nobody `asked_for` has our tags, and no token of ours:
    so does what a person made from a copy of a machine."""

    leftover: Leftover
    rented: Rented
    asked_for: bool


@dataclass
class Zone:
    """One place, with an offer for each way of selling."""

    provider: str
    region: str
    name: str
    spot_microusd_per_h: int
    room: int  # machines that can still be had
    on_sale: bool = True
    list_microusd_per_h: int = LIST_PRICE  # on demand
    _sold: dict[tuple[CapacityType, int], Offer] = field(default_factory=dict)

    def offers(self) -> Iterator[Offer]:
        if self.on_sale:
            yield self._offer(CapacityType.SPOT, self.spot_microusd_per_h)
        yield self._offer(CapacityType.ON_DEMAND, self.list_microusd_per_h)

    def _offer(self, kind: CapacityType, price: int) -> Offer:
        """The same object as long as it says the same."""
        if (kind, price) not in self._sold:
            self._sold[kind, price] = Offer(
                provider=self.provider,
                region=self.region,
                zone=self.name,
                instance_type=TYPE,
                capacity_type=kind,
                price_microusd_per_h=price,
                list_microusd_per_h=self.list_microusd_per_h,
                accelerator="H100",
                accelerator_count=8,
                cpus=192.0,
                memory_gib=2048.0,
                cloud=self.provider,
            )
        return self._sold[kind, price]


class SimCloud:
    """The cloud's own side: what it does when a request arrives."""

    def __init__(
        self,
        kernel: Kernel,
        faults: Faults,
        name: str,
        zones: list[Zone],
        make_machine: Callable[[Rented], Machine],
        notice_s: float,
    ) -> None:
        self.name = name
        self.zones = {zone.name: zone for zone in zones}
        self.notice_s = notice_s
        self.rented: dict[str, Rented] = {}  # all there ever were
        self._living: dict[str, Rented] = {}
        self._alive: tuple[Rented, ...] = ()  # the same
        self._remembered: dict[str, Rented] = {}  # that a listing may show, ended or not
        self.calls: list[tuple[int, str, str]] = []  # (when, verb, token or id): every mutation
        self.out = False  # the whole cloud answers nothing
        self.unanswered: set[str] = set()  # whose last listing was
        self.unquoted = False  # the last time that a daemon asked what is on sale
        self.rejects_credentials = False
        self._hear_created: list[Callable[[Rented], None]] = []
        self.strangers: dict[str, Instance] = {}  # of another deployment, and yet listed
        self.hear_stranger: Callable[[str, str], None] = lambda _what, _instance_id: None
        self._hear_told: list[Callable[[Rented], None]] = []
        self._hear_renewed: list[Callable[[Rented], None]] = []
        self._hear_ended: list[Callable[[Rented], None]] = []
        self.images = SimImages(kernel)
        self.litters = False  # whether its machines leave disks and addresses behind
        self.left: dict[str, Left] = {}
        self.looks = 0  # at leftovers, whose answer was heard and whose discards arrived
        self.hear_discarded: Callable[[str, Left], None] = lambda _ident, _left: None
        self._kernel = kernel
        self._faults = faults
        self._random = faults.stream(f"cloud/{name}")
        self._make_machine = make_machine
        self._by_token: dict[tuple[str, str], Rented] = {}

    def hear_created(self, hear: Callable[[Rented], None]) -> None:
        """Have it called for every machine, at the moment when it begins to cost."""
        self._hear_created.append(hear)

    def hear_told(self, hear: Callable[[Rented], None]) -> None:
        """Have it called whenever somebody tells a living machine to end."""
        self._hear_told.append(hear)

    def hear_renewed(self, hear: Callable[[Rented], None]) -> None:
        """Have it called whenever the expiry of a living machine is moved on."""
        self._hear_renewed.append(hear)

    def hear_ended(self, hear: Callable[[Rented], None]) -> None:
        """Have it called for every machine, at the moment when it costs nothing any more."""
        self._hear_ended.append(hear)

    # --- the six verbs

    def offers(self) -> list[Offer]:
        self._admit()
        return [offer for zone in self.zones.values() for offer in zone.offers()]

    def launch(self, request: LaunchRequest) -> Launched:
        """Idempotent on the token in its region, as the real ones are: one request, one machine,
        also long after that machine has ended."""
        self._admit()
        self.calls.append((self._kernel.now_us, "launch", request.token))
        known = self._by_token.get((request.token, request.region))
        if known is not None:
            if known.request != request:
                raise RejectedError("the same token with other parameters")
            return Launched(known.id)
        zone = self.zones.get(request.zone)
        if zone is None:
            raise RejectedError(f"no zone {request.zone}")
        spot = request.capacity_type is CapacityType.SPOT
        cap = request.max_price_microusd_per_h
        if spot and cap and zone.spot_microusd_per_h > cap:
            raise PriceError(f"{zone.name} costs more than the request allows")
        if spot and (zone.room <= 0 or not zone.on_sale):
            raise CapacityError(f"no capacity in {zone.name}")
        if self._faults.strikes("cloud_capacity"):
            raise CapacityError(f"no capacity in {zone.name} just now")
        if self._faults.strikes("cloud_quota"):
            raise QuotaError("quota exceeded")
        return Launched(self._create(request, zone, spot=spot).id)

    def _create(self, request: LaunchRequest, zone: Zone, *, spot: bool) -> Rented:
        now_us = self._kernel.now_us
        lag_s = (
            self._faults.stream("cloud_lag").uniform(1, 20)
            if self._faults.strikes("cloud_lag")
            else 0
        )
        rented = Rented(
            id=f"i-{self.name}-{len(self.rented):05d}",
            request=request,
            provider=self.name,
            prices=[(now_us, zone.spot_microusd_per_h if spot else zone.list_microusd_per_h)],
            created_us=now_us,
            visible_us=now_us + int(lag_s * 1e6),
            machine=None,  # type: ignore[arg-type]
        )
        rented.machine = self._make_machine(rented)
        for books in (self.rented, self._living, self._remembered):
            books[rented.id] = rented
        self._alive = tuple(self._living.values())
        self._by_token[request.token, request.region] = rented
        zone.room -= spot
        for hear in self._hear_created:
            hear(rented)
        if request.max_run_s:
            self._kernel.after(request.max_run_s, lambda: self.end(rented, "max_run"))
        if self._faults.strikes("cloud_late_failure"):
            rented.error_code = "CapacityError"
            self._kernel.after(5, lambda: self.end(rented, "the create failed"))
        elif self._faults.strikes("boot_never"):
            pass
        else:
            slow = self._faults.strikes("boot_slow")
            boot_s = self._random.uniform(*LAUNCH_S) * (10 if slow else 1)
            self._kernel.after(boot_s, lambda: rented.alive and rented.machine.power_on())
        return rented

    def terminate(self, instance_id: str, by: str = "daemon") -> None:
        self._admit()
        self.calls.append((self._kernel.now_us, "terminate", instance_id))
        if instance_id in self.strangers:
            self.hear_stranger("ended", instance_id)
        rented = self.rented.get(instance_id)
        if rented is None or not rented.alive:
            return
        rented.told_by = by
        for hear in self._hear_told:
            hear(rented)
        if self._faults.strikes("terminate_ignored"):
            rented.ignored += 1
            return  # accepted, and the machine stays: it has to be asked again
        rented.ending_us = rented.ending_us or self._kernel.now_us
        self._kernel.after(self._random.uniform(1, 30), lambda: self.end(rented, "terminated"))

    def list(self) -> list[Instance]:
        self._admit()
        now_us = self._kernel.now_us
        for rented in list(self._remembered.values()):
            if not rented.alive and now_us - rented.ended_us >= FORGOTTEN_S * 1e6:
                del self._remembered[rented.id]
        shown = [
            rented
            for rented in self._remembered.values()
            if rented.visible_us <= now_us and rented.hidden_until_us <= now_us
        ]
        if self._faults.on("list_misses"):
            shown = [r for r in shown if not self._faults.strikes("list_misses")]
        there = {rented.id for rented in shown}
        for rented in self.alive():
            if rented.id in there:
                rented.missed = 0
                continue
            rented.missed += 1
            rented.missed_us = now_us if rented.missed == 1 else rented.missed_us
            if rented.missed >= PROOF:
                rented.missed_for_us = max(rented.missed_for_us, now_us - rented.missed_us)
        return [*(self._shown(rented) for rented in shown), *self.strangers.values()]

    def notices(self) -> list[Notice]:
        self._admit()
        return []  # the metadata service tells; a queue is part of the real adapters

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        self._admit()
        self.calls.append((self._kernel.now_us, "renew", instance_id))
        if instance_id in self.strangers:
            self.hear_stranger("renewed", instance_id)
        rented = self.rented.get(instance_id)
        if rented is not None and rented.alive:
            rented.expires_at_us = max(rented.expires_at_us, expires_at_us)
            for hear in self._hear_renewed:
                hear(rented)

    def leftovers(self) -> list[Leftover]:
        self._admit()
        return [left.leftover for left in self.left.values()]

    def discard(self, leftover_id: str) -> None:
        self._admit()
        left = self.left.pop(leftover_id, None)
        if left is not None:
            self.hear_discarded(leftover_id, left)

    # --- images of machines

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        self._admit()
        return self.images.make(self.rented.get(instance_id), name, tags)

    def list_images(self) -> list[Image]:
        self._admit()
        return self.images.all()

    def remove_image(self, image_id: str) -> None:
        self._admit()
        self.images.remove(image_id)

    def _leave(self, rented: Rented) -> None:
        """A disk or an address of it stays, more often than not."""
        random, request = self._faults.stream(f"litter/{self.name}"), rented.request
        if random.random() < 0.4:
            return
        kind = random.choice((LeftoverKind.DISK, LeftoverKind.ADDRESS))
        asked_for = random.random() < 0.7
        ident = f"{kind.value}-{rented.id}"
        tags = {**request.tags, "spotd-token": rented.token if asked_for else f"copy-{ident}"}
        leftover = Leftover(ident, kind, tags, request.region, request.zone, self._kernel.now_us)
        self.left[ident] = Left(leftover, rented, asked_for)

    def _admit(self) -> None:
        if self.rejects_credentials:
            raise AuthError("the credentials have expired")
        if self._faults.strikes("cloud_throttle"):
            wait_s = self._faults.stream("cloud_throttle").uniform(1, 30)
            raise ThrottledError("too many requests", retry_after_s=wait_s)

    def _shown(self, rented: Rented) -> Instance:
        request, tags = rented.request, dict(rented.request.tags)
        if rented.expires_at_us:
            tags[EXPIRES_TAG] = str(rented.expires_at_us // 1_000_000)
        if rented.alive:
            state = InstanceState.STOPPING if rented.ending_us else InstanceState.RUNNING
        else:
            state = InstanceState.FAILED if rented.error_code else InstanceState.TERMINATED
        return Instance(
            instance_id=rented.id,
            token=rented.token,
            tags=tags,
            state=state,
            region=request.region,
            zone=request.zone,
            instance_type=request.instance_type,
            capacity_type=request.capacity_type,
            host=rented.id,
            ssh_user=request.ssh_user,
            host_public_key=request.host_public_key,
            launched_at_us=rented.created_us,
            error_code=rented.error_code,
        )

    def add_stranger(self) -> None:
        """A machine of somebody else, long expired, that our listings show."""
        instance_id = f"i-{self.name}-stranger"
        tags = {"spotd-deployment": "another", "spotd-job": "j000000000", EXPIRES_TAG: "1"}
        self.strangers[instance_id] = Instance(
            instance_id=instance_id,
            token="another's",
            tags=tags,
            state=InstanceState.RUNNING,
            region=f"{self.name}-0",
            zone=f"{self.name}-0a",
            instance_type=TYPE,
            capacity_type=CapacityType.SPOT,
            launched_at_us=self._kernel.now_us,
        )

    # --- what the cloud does by itself

    def reprice(self, zone: Zone, microusd_per_h: int) -> None:
        """A place costs something else from now on, for who is there too."""
        zone.spot_microusd_per_h = microusd_per_h
        for rented in self.alive():
            request = rented.request
            if request.zone == zone.name and request.capacity_type is CapacityType.SPOT:
                rented.prices.append((self._kernel.now_us, microusd_per_h))

    def end(self, rented: Rented, why: str) -> None:
        """The machine is gone, and costs nothing from now on."""
        if not rented.alive:
            return
        rented.ended_us, rented.ended_by = self._kernel.now_us, why
        del self._living[rented.id]
        self._alive = tuple(self._living.values())
        rented.machine.power_off()
        if rented.request.capacity_type is CapacityType.SPOT:
            self.zones[rented.request.zone].room += 1
        if self.litters:
            self._leave(rented)
        for hear in self._hear_ended:
            hear(rented)

    def preempt(self, rented: Rented) -> None:
        """Warn, and take it when the time is over."""
        deadline_us = self._kernel.now_us + int(self.notice_s * 1e6)
        notice = Notice(f"{rented.id}-preempt", NoticeKind.PREEMPT, deadline_us, "imds", rented.id)
        rented.notices[notice.notice_id] = notice
        rented.machine.warn(notice)
        self._kernel.at(deadline_us, lambda: self._take(rented, notice.notice_id))

    def _take(self, rented: Rented, notice_id: str) -> None:
        if notice_id in rented.notices:
            self.end(rented, "preempted")

    def withdraw(self, rented: Rented, notice_id: str) -> None:
        """The machine stays after all."""
        if rented.notices.pop(notice_id, None) is not None:
            rented.machine.withdraw(notice_id)

    def alive(self) -> tuple[Rented, ...]:
        """Those that cost something now, oldest first."""
        return self._alive
