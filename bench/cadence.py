"""What do preemptions cost, by how and how often training saves?

    python bench/cadence.py [--json FILE] [--hours 3000] [--seed 1] [--mtbf 2,8]
    python bench/cadence.py --steps        work lost by size of state and notice, as Markdown

A simulation, not a measurement: machines of 8 H100s live for an exponential time, are replaced
within 240 s, and 9 in 10 of them get their cloud's notice before they end. Compared are torch.save
every 30 minutes; every 15 minutes and at a notice; DCP in the background every 10 minutes; and
spotd, of which the real code decides when to save (trainer/hook/spotd_hook/cadence.py, fed by
rates.py with what each simulated save took), what a notice is used for (deadline.py, asked after
every step), and how long machines are thought to live (spotd/planner/core/checkpoint_interval.py,
with the lives so far).

The rates are planning figures of such machines, not measurements: bytes a second from the GPUs to
host memory, and from there to the bucket in the same region. Beside each result stands what the
closed form of bench/cadence_model.py expects; ends with 1 where they differ by more than TOLERANCE.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cadence_model import LIVE_H, NOTICED, RESTART_S, Expected, expect

from providers.base import CapacityType, Offer
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import ObservedLifetimes, mtbf_s
from trainer.hook.spotd_hook.cadence import FIRST_SAVE_S, interval_s
from trainer.hook.spotd_hook.deadline import Action, DeadlineSituation, plan
from trainer.hook.spotd_hook.rates import Rates

GB = 10**9
TOLERANCE = 0.02  # of goodput, between simulation and closed form
POLICIES = ("torch.save 30 min", "torch.save 15 min + at notice", "DCP async 10 min", "spotd")
OURS = POLICIES[3]
SPREAD = 0.1  # of what a stage or an upload takes, one standard deviation
SLOW = 1.28 * SPREAD  # the slowest tenth takes so much longer, and a deadline is planned by it


@dataclass(frozen=True)
class Place:
    """`d2h` and `bucket` in GB a second; `notice_s` as the cloud gives it."""

    name: str
    cloud: str
    notice_s: float
    d2h: float
    bucket: float


PLACES = (
    Place("AWS 120 s", "aws", 120.0, 120.0, 8.0),
    Place("GCP 30 s", "gcp", 30.0, 250.0, 8.0),
    Place("GCP 120 s", "gcp", 120.0, 250.0, 8.0),
    Place("Azure 30 s", "azure", 30.0, 250.0, 6.0),
)


@dataclass(frozen=True)
class State:
    """What a save weighs on each machine, and how long a step takes."""

    name: str
    size: int
    step_s: float


STATES = (State("8B, 96 GB", 96 * GB, 1.0), State("70B, 420 GB a node", 420 * GB, 5.0))
SIZES = (
    State("8B, LoRA, 1 GB", GB, 1.0),
    STATES[0],
    State("70B, bf16 weights, 140 GB", 140 * GB, 5.0),
    State("70B, 8-bit Adam, 280 GB", 280 * GB, 5.0),
    STATES[1],
    State("70B, fp32 Adam, 840 GB", 840 * GB, 10.0),
)
# What a save in the foreground writes: the guides' own save times of 3 to 810 GB imply 0.3 to 1.35.
TORCH_SAVE_GB_S = 1.0
# DCP's background saves cost training several times their stall (docs/measurements.md).
DCP_STALL = 3.0
OUR_STALL_S = 0.35  # staging overlaps with forward and backward: 0.2 to 0.5 s are left


@dataclass(frozen=True)
class Costs:
    """Of one save of a policy: what training stands still for, and how much later it is durable."""

    every_s: float  # 0: as the code decides
    stall_s: float
    upload_s: float
    at_notice_s: float = 0.0  # a save in the foreground begun at a notice; 0: there is none


def costs_of(policy: str, place: Place, state: State) -> Costs:
    gb = state.size / GB
    foreground_s, d2h_s, upload_s = gb / TORCH_SAVE_GB_S, gb / place.d2h, gb / place.bucket
    if policy == POLICIES[0]:
        return Costs(1800.0, foreground_s, 0.0)
    if policy == POLICIES[1]:
        return Costs(900.0, foreground_s, 0.0, foreground_s)
    if policy == POLICIES[2]:
        return Costs(600.0, DCP_STALL * d2h_s, upload_s)
    return Costs(0.0, OUR_STALL_S, upload_s, d2h_s + upload_s)


@dataclass
class Result:
    """Hours and minutes of a whole run. `again_s` is work that was done twice, `idle_s` time before
    the end of a machine in which it trained no more."""

    wall_s: float = 0.0
    useful_s: float = 0.0
    again_s: float = 0.0
    idle_s: float = 0.0
    preemptions: int = 0
    saves: int = 0
    in_time: int = 0  # last saves that were durable before the end, of those at a notice
    at_notice: int = 0
    every_s: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        return self.useful_s / self.wall_s

    @property
    def lost_min(self) -> float:
        return (self.again_s + self.idle_s) / max(self.preemptions, 1) / 60


class Trainer:
    """One policy in one place, life after life. What it has measured stays, as a job's would not
    quite: the first minutes of a life are a small part of it."""

    def __init__(
        self, policy: str, place: Place, state: State, chance: random.Random, spread: float
    ) -> None:
        self.policy, self.place, self.state = policy, place, state
        self.costs = costs_of(policy, place, state)
        self._chance, self._spread = chance, spread
        self.rates, self.noticed = Rates(), NOTICED
        self._lived_s, self._lost = 0.0, 0
        self.result = Result()
        self._offer = Offer(
            provider=place.cloud,
            region="region",
            zone="zone",
            instance_type="8xH100",
            capacity_type=CapacityType.SPOT,
            price_microusd_per_h=40_000_000,
            list_microusd_per_h=80_000_000,
            cloud=place.cloud,
        )

    def every_s(self) -> float:
        """The pause before the next save, as the code has it by now."""
        if self.costs.every_s:
            return self.costs.every_s
        if not self.rates.measured:
            return FIRST_SAVE_S
        size, lives = (
            self.state.size,
            [ObservedLifetimes(self._offer.key, int(self._lived_s * S), self._lost)],
        )
        stall_s, upload_s = self.rates.stall_s(size), self.rates.upload_s(size)
        return interval_s(stall_s, upload_s, mtbf_s(self._offer, lives))

    def live(self, life_s: float) -> None:
        """One machine, from the request for it to its end."""
        result, train_s = self.result, life_s - RESTART_S
        result.wall_s += life_s
        result.preemptions += 1
        self._lived_s, self._lost = self._lived_s + life_s, self._lost + 1
        if train_s <= 0:
            return
        heeds = self.costs.at_notice_s > 0 and self._chance.random() < self.noticed
        heard_s = max(train_s - self.place.notice_s, 0.0) if heeds else train_s
        life = OneLife(self, heard_s, train_s)
        life.run()
        result.useful_s += life.durable_s
        result.again_s += life.trained_s - life.durable_s
        result.idle_s += train_s - life.left_at_s

    def varied(self, seconds: float) -> float:
        return seconds * max(self._chance.gauss(1.0, self._spread), 0.2)


class OneLife:
    """Training on one machine. `trained_s` is work done by now, `durable_s` of it what is safe."""

    def __init__(self, trainer: Trainer, heard_s: float, end_s: float) -> None:
        self._trainer, self._heard_s, self._end_s = trainer, heard_s, end_s
        self._now_s = self._saved_at_s = 0.0
        self._flight: tuple[float, float, float] | None = None  # work, began, ends
        self.trained_s = self.durable_s = 0.0
        self.left_at_s = end_s  # when it trained no more

    def run(self) -> None:
        costs = self._trainer.costs
        while self._now_s < self._heard_s:
            due_s = self._saved_at_s + self._trainer.every_s()
            self._train_until(min(due_s, self._heard_s))
            if self._now_s < self._heard_s and not self._flying():
                self._save(costs.stall_s)
            elif self._now_s < self._heard_s and self._flight is not None:
                self._train_until(min(self._flight[2], self._heard_s))
        self._land(self._end_s if self._heard_s >= self._end_s else self._now_s)
        if self._heard_s < self._end_s:
            self._heed()

    def _train_until(self, until_s: float) -> None:
        """Whole steps, up to the one that ends at or after then."""
        step_s = self._trainer.state.step_s
        steps = max(-(-(until_s - self._now_s) // step_s), 1)
        worked_s = min(steps * step_s, self._end_s - self._now_s)
        self._now_s += worked_s
        self.trained_s += worked_s

    def _flying(self) -> bool:
        self._land(self._now_s)
        return self._flight is not None

    def _land(self, now_s: float) -> None:
        """What is in flight is durable if it has come so far by then."""
        if self._flight is not None and self._flight[2] <= now_s:
            work_s, began_s, ends_s = self._flight
            self.durable_s, self._flight = work_s, None
            upload_s = ends_s - began_s
            stage_s = self._trainer.costs.stall_s
            self._trainer.rates.add(self._trainer.state.size, stage_s, upload_s)

    def _save(self, stall_s: float) -> None:
        trainer = self._trainer
        stall_s, upload_s = trainer.varied(stall_s), trainer.varied(trainer.costs.upload_s)
        began_s = self._now_s + stall_s
        if trainer.result.saves % 50 == 0:
            trainer.result.every_s.append(trainer.every_s())
        trainer.result.saves += 1
        self._flight = (self.trained_s, began_s, began_s + upload_s)
        # One in the foreground that the end, or nothing but it, interrupts is worth nothing.
        self._now_s = self._saved_at_s = min(began_s, self._end_s)

    # --- at a notice

    def _heed(self) -> None:
        if self._trainer.policy == OURS:
            self._plan()
            return
        costs = self._trainer.costs
        fits = costs.at_notice_s <= self._end_s - self._now_s
        self._trainer.result.at_notice += 1
        self.left_at_s = self._now_s  # it tries, and training stands still for that
        if fits:
            self.durable_s = self.trained_s
            self._trainer.result.in_time += 1

    def _plan(self) -> None:
        """As the ranks do: after every step, until the plan is to leave."""
        trainer, step_s = self._trainer, self._trainer.state.step_s
        while self._now_s < self._end_s:
            now = self._situation()
            found = plan(now)
            if found.ends_training:
                break
            if found.allows_save and self._now_s - self._saved_at_s >= trainer.every_s():
                self._save(trainer.costs.stall_s)
            self._train_until(self._now_s + step_s)
        else:
            self._land(self._end_s)
            return
        trainer.result.at_notice += 1
        self.left_at_s = self._now_s
        if found.action is Action.RELEASE:
            self._flight = None
            return
        ends_s = self._now_s if self._flight is None else self._flight[2]
        if found.action is Action.SAVE:
            ends_s += trainer.varied(trainer.costs.at_notice_s)
        if ends_s <= self._end_s:
            self.durable_s = self.trained_s if found.action is Action.SAVE else self._flight_work()
            trainer.result.in_time += 1
        else:
            self._land(self._end_s)

    def _situation(self) -> DeadlineSituation:
        trainer, size = self._trainer, self._trainer.state.size
        in_flight_s = None
        if self._flying() and self._flight is not None:
            in_flight_s = trainer.rates.remaining_s(size, self._now_s - self._flight[1])
        staging_s = size / GB / trainer.place.d2h
        save_s = staging_s + trainer.rates.upload_s(size)
        return DeadlineSituation(
            self._end_s - self._now_s, trainer.state.step_s, save_s, in_flight_s
        )

    def _flight_work(self) -> float:
        return self._flight[0] if self._flight is not None else self.durable_s


def simulate(
    policy: str, place: Place, state: State, mtbf_h: float, hours: float, seed: int = 1,
    spread: float = SPREAD,
) -> Result:  # fmt: skip
    """The same lives and notices for every policy with the same seed."""
    lives, trainer = random.Random(seed), Trainer(policy, place, state, random.Random(seed), spread)
    while trainer.result.wall_s < hours * 3600:
        trainer.live(lives.expovariate(1 / (mtbf_h * 3600)))
    return trainer.result


def expected(policy: str, place: Place, state: State, mtbf_h: float) -> Expected:
    """What the closed form says of the same."""
    costs, ours = costs_of(policy, place, state), policy == OURS
    mtbf, every_s = mtbf_h * 3600, costs.every_s
    if not every_s:
        every_s = interval_s(costs.stall_s, costs.upload_s, mtbf)
    return expect(
        every_s=every_s + state.step_s / 2,
        stall_s=costs.stall_s,
        upload_s=costs.upload_s,
        mtbf_s=mtbf,
        notice_s=place.notice_s,
        step_s=state.step_s,
        last_save_s=costs.at_notice_s + ours * SLOW * costs.upload_s,
        latest=ours,
    )


def lost(
    place: Place, state: State, noticed: float = 1.0, mtbf_h: float = 2.0, hours: float = 1000.0
) -> tuple[float, float]:
    """What an end costs with spotd, where so many of them have a notice: steps done again, and
    seconds before it in which the machine trained no more."""
    lives, trainer = random.Random(1), Trainer(OURS, place, state, random.Random(1), SPREAD)
    trainer.noticed = noticed
    while trainer.result.wall_s < hours * 3600:
        trainer.live(lives.expovariate(1 / (mtbf_h * 3600)))
    found = trainer.result
    return found.again_s / found.preemptions / state.step_s, found.idle_s / found.preemptions


def steps_lost() -> Iterator[str]:
    """Rows of Markdown: what spotd loses by size of state and notice."""
    yield "| state a machine | step | " + " | ".join(p.name for p in PLACES) + " | no notice |"
    yield "|---" * (len(PLACES) + 3) + "|"
    for state in SIZES:
        cells = []
        for place, noticed in [*((place, 1.0) for place in PLACES), (PLACES[0], 0.0)]:
            steps, idle_s = lost(place, state, noticed)
            cells.append(f"{steps:.1f} steps" + (f", {idle_s:.0f} s" if noticed else ""))
        yield f"| {state.name} | {state.step_s:g} s | " + " | ".join(cells) + " |"


def rows(mtbfs_h: Sequence[float], hours: float, seed: int) -> Iterator[dict[str, Any]]:
    for state in STATES:
        for mtbf_h in mtbfs_h:
            for place in PLACES:
                for policy in POLICIES:
                    found = simulate(policy, place, state, mtbf_h, hours, seed)
                    model = expected(policy, place, state, mtbf_h)
                    yield {
                        "state": state.name,
                        "mtbf_h": mtbf_h,
                        "place": place.name,
                        "policy": policy,
                        "goodput": round(found.goodput, 4),
                        "lost_min": round(found.lost_min, 2),
                        "model": {name: round(value, 4) for name, value in asdict(model).items()},
                        "preemptions": found.preemptions,
                        "saves": found.saves,
                        "notices_used": [found.in_time, found.at_notice],
                        "every_s": round(sum(found.every_s) / max(len(found.every_s), 1), 1),
                    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it there; - stdout")
    parser.add_argument("--hours", type=float, default=LIVE_H, help="of each simulated run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mtbf", default="2,8", help="hours between preemptions, with commas")
    parser.add_argument(
        "--steps", action="store_true", help="the table of work lost, no comparison"
    )
    args = parser.parse_args()
    if args.steps:
        print("\n".join(steps_lost()))
        return 0
    mtbfs_h = [float(word) for word in args.mtbf.split(",")]
    found, wrong = [], 0
    table = sys.stderr if str(args.json) == "-" else sys.stdout
    for row in rows(mtbfs_h, args.hours, args.seed):
        found.append(row)
        model = row["model"]
        off = abs(row["goodput"] - model["goodput"]) > TOLERANCE
        wrong += off
        print(
            f"{row['state']:<20} {row['mtbf_h']:>3g} h  {row['place']:<11} {row['policy']:<30}"
            f" {row['goodput']:.3f} ({model['goodput']:.3f})  {row['lost_min']:>5} min"
            f" ({model['lost_min']:.2f})  every {row['every_s']} s{'  <- not as expected' * off}",
            file=table,
            flush=True,
        )
    text = json.dumps({"seed": args.seed, "hours": args.hours, "rows": found}, indent=1)
    if str(args.json) == "-":
        print(text)
    elif args.json:
        args.json.write_text(text + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
