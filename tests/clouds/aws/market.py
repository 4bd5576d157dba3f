"""The stand-in's market: prices from the snapshot on the facts page, and capacity."""

from __future__ import annotations

from dataclasses import dataclass, field

REGIONS = ("us-east-1", "us-west-2")
LISTED = {"p5.48xlarge": 55.04, "g6.xlarge": 0.8048, "c5.xlarge": 0.17}
# type -> zone -> spot price, USD per hour
SPOT = {
    "p5.48xlarge": {
        "us-east-1a": 17.63,
        "us-east-1b": 25.75,
        "us-west-2a": 12.69,
        "us-west-2b": 12.98,
    },
    "g6.xlarge": {"us-east-1a": 0.3124, "us-west-2a": 0.3011},
    "c5.xlarge": {"us-east-1a": 0.0771, "us-west-2a": 0.0702},
}
ZONE_IDS = {
    "us-east-1a": "use1-az6",
    "us-east-1b": "use1-az1",
    "us-west-2a": "usw2-az2",
    "us-west-2b": "usw2-az1",
}


@dataclass
class Market:
    """`stock` is the remaining capacity of (type, zone); unlimited without an entry."""

    spot: dict[str, dict[str, float]] = field(
        default_factory=lambda: {kind: dict(zones) for kind, zones in SPOT.items()}
    )
    listed: dict[str, float] = field(default_factory=lambda: dict(LISTED))
    stock: dict[tuple[str, str], int] = field(default_factory=dict)
    scores: dict[tuple[str, str], int] = field(default_factory=dict)  # of (type, zone id)

    def take(self, kind: str, zone: str) -> bool:
        """Take one machine from the stock; False when there is none."""
        left = self.stock.get((kind, zone))
        if left == 0:
            return False
        if left is not None:
            self.stock[kind, zone] = left - 1
        return True
