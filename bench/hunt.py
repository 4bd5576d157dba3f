"""How long until a machine answers when the first pools have none? k candidates side by side,
against one pool after the other and against the floor.

    python bench/hunt.py [--pools 12] [--samples 3] [--json FILE] [--only equal|mixed]

The first `pools` pools that the daemon would ask, the cheapest first, have no capacity, and each
takes its time to say so: as long as AWS does in all of them ("equal", 1 s), or as long as its cloud
does ("mixed": AWS 1 s, GCP an operation that fails after 30 s, Azure one that fails after 120 s).
The next one has a machine. All in real time, with the real daemon and local clouds.

Compared are, for the same pools in the same order:
- serial: what it takes to ask one after the other without losing a moment between them: the sum of
  all refusals and the one boot. No tool can ask serially and be faster.
- floor: k at a time without losing a moment, a free place given to the next pool in order (list
  scheduling), and the one boot.
The boot is measured in the same run: from the request that succeeds to the agent's first word.
Ends with 1 when a goal was missed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from spotd.api_routes import routes
from spotd.demo.box import Box, running_box, wait_for

SAYS_NO_S = {"aws": 1.0, "gcp": 30.0, "azure": 120.0}
MIX = ("aws", "gcp", "aws", "azure", "aws", "gcp", "aws", "aws", "gcp", "aws", "aws", "aws")
GOALS = {"equal": 0.8, "mixed": 1.2}  # of k, as times faster than serial; of the floor, at most


@dataclass(frozen=True)
class Hunt:
    """One hunt of `k` candidates, seconds since the first request."""

    case: str
    k: int
    found_s: float
    boot_s: float
    serial_s: float
    floor_s: float

    @property
    def times_faster(self) -> float:
        return self.serial_s / self.found_s

    @property
    def of_floor(self) -> float:
        return self.found_s / self.floor_s


def floor_s(refusals_s: Sequence[float], boot_s: float, k: int) -> float:
    """List scheduling: the first pool with a machine is asked when a place is free for it."""
    places = [0.0] * k
    for refusal_s in refusals_s:
        heapq.heappush(places, heapq.heappop(places) + refusal_s)
    return min(places) + boot_s


def scenario(clouds: Sequence[str]) -> str:
    """A zone for each pool, in the order of `clouds`, each dearer than the one before; the last one
    has machines."""
    parts = []
    for number, cloud in enumerate([*clouds, "aws"]):
        name = f"{cloud}-{number:02}"
        parts.append(
            f'[[zone]]\npersonality = "{cloud}"\nregion = "{name}-region"\nname = "{name}"\n'
            f"price_factor = {1 + number / 10}\n"
        )
        if number == len(clouds):
            continue
        seconds = SAYS_NO_S[cloud]
        kinds = [("delay", seconds), ("no_capacity", 0.0)]
        if cloud != "aws":  # the create is accepted, and fails later
            kinds = [("pending", 0.0), ("fails_later", seconds)]
        parts += [
            f'[[fault]]\npersonality = "{cloud}"\nzone = "{name}"\noperation = "launch"\n'
            f'kind = "{kind}"\nseconds = {s}\ncount = 1000\n'
            for kind, s in kinds
        ]
    return "\n".join(parts)


def job(name: str, k: int) -> str:
    return f"""\
name: {name}
resources: {{cpus: 1+, use_spot: true}}
run: sleep 600
spotd:
  candidates: {k}
  checkpoint: {{engine: none}}
"""


def hunt(case: str, clouds: Sequence[str], k: int, folder: Path) -> Hunt:
    """One job, until a machine of it answers, on clouds that nobody has asked before."""
    patience_s = sum(SAYS_NO_S[cloud] for cloud in clouds) + 120
    with running_box(folder, scenario(clouds)) as box:
        wait_for("all prices", lambda: _zones(box) == len(clouds) + 1, 60)
        job_id = box.submit(job(f"hunt-{case}-{k}", k), f"{case}-{k}")
        found = wait_for("a machine that answers", lambda: _chosen(box, job_id), patience_s, 0.2)
        nodes = box.client.call(routes.LIST_NODES(), query={"job": job_id})["items"]
    asked = sorted(nodes, key=lambda node: _at(node["requested_at"]))
    found = next(node for node in asked if node["id"] == found["id"])
    # While that one boots the daemon goes on to ask for another beside it.
    order = [node["zone"] for node in asked if node["requested_at"] < found["requested_at"]]
    # What is asked in one moment has no order, and may have a pool of the next round with it.
    beside = [node["zone"] for node in asked if node["requested_at"] == found["requested_at"]]
    order += [zone for zone in beside if zone not in order]
    refusals_s = [SAYS_NO_S[zone.split("-")[0]] for zone in order if zone != found["zone"]]
    if sorted(set(order)) != sorted(order) or len(order) != len(clouds) + 1:
        raise RuntimeError(f"not each of {len(clouds) + 1} pools was asked once: {order}")
    boot_s = _at(found["hello_at"]) - _at(found["requested_at"])
    return Hunt(
        case=case,
        k=k,
        found_s=_at(found["hello_at"]) - _at(asked[0]["requested_at"]),
        boot_s=boot_s,
        serial_s=sum(refusals_s) + boot_s,
        floor_s=floor_s(refusals_s, boot_s, k),
    )


def _zones(box: Box) -> int:
    """How many sell something that the daemon knows of."""
    items = box.client.call(routes.LIST_OFFERS(), query={"capacity": "spot", "limit": 1000})[
        "items"
    ]
    return len({item["zone"] for item in items})


def _chosen(box: Box, job_id: str) -> dict[str, Any] | None:
    nodes = box.client.call(routes.LIST_NODES(), query={"job": job_id})["items"]
    return next((node for node in nodes if node["chosen"] and node["hello_at"]), None)


def _at(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pools", type=int, default=12)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", choices=("equal", "mixed"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    hunts: list[Hunt] = []
    with tempfile.TemporaryDirectory(prefix="spotd-hunt-") as folder:
        for case in ("equal", "mixed"):
            if args.only not in (None, case):
                continue
            clouds = (["aws"] * args.pools, [*MIX] * (args.pools // 12 + 1))[case == "mixed"]
            for k in (1, 2, 4, 8) if case == "equal" else (2, 4, 8):
                samples = args.samples if case == "equal" else 1
                for number in range(samples):
                    place = Path(folder) / f"{case}-{k}-{number}"
                    hunts.append(hunt(case, clouds[: args.pools], k, place))
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    good = [_judge([h for h in hunts if (h.case, h.k) == key]) for key in _keys(hunts)]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(one) for one in hunts], indent=2) + "\n")
    return 0 if all(good) else 1


def _keys(hunts: Sequence[Hunt]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((one.case, one.k) for one in hunts))


def _judge(hunts: Sequence[Hunt]) -> bool:
    """Print the median of several hunts of one kind, and whether it met its goal."""
    one = sorted(hunts, key=lambda h: h.found_s)[len(hunts) // 2]
    faster = statistics.median(h.times_faster for h in hunts)
    of_floor = statistics.median(h.of_floor for h in hunts)
    if one.case == "equal":
        goal, met = f">= {GOALS['equal'] * one.k:.1f} x serial", faster >= GOALS["equal"] * one.k
    else:
        goal, met = f"<= {GOALS['mixed']:.1f} x floor", of_floor <= GOALS["mixed"]
    print(
        f"{one.case:6} k={one.k}  found {one.found_s:7.2f} s  serial {one.serial_s:7.2f} s "
        f"({faster:.2f} x faster)  floor {one.floor_s:7.2f} s ({of_floor:.2f} x)  "
        f"goal {goal}  {'met' if met else 'MISSED'}"
    )
    return met


if __name__ == "__main__":
    sys.exit(main())
