"""Small accounts of money."""

from __future__ import annotations

from spotd.money.hour_breakdown import Machine, Save, Segment, Steps
from spotd.money.report import Account

H = 3_600_000_000
M = H // 60


def stretch(start_h: float, end_h: float, rate: int = 2_000_000, **fields: object) -> Segment:
    """Of $2 an hour, $5 on demand there and $4 in the cheapest place, if nothing else is said."""
    values: dict[str, object] = {
        "start_us": round(start_h * H),
        "end_us": round(end_h * H),
        "rate_microusd_per_h": rate,
        "list_rate_microusd_per_h": 5_000_000,
        "best_rate_microusd_per_h": 4_000_000,
    }
    return Segment(**{**values, **fields})  # type: ignore[arg-type]


def machine(*stretches: Segment, generation: int = 1, **fields: object) -> Machine:
    node_id = f"j-g{generation}-{fields.get('rank', 0)}"
    values: dict[str, object] = {"gpus": 8, "details": {"what": "8x H100 spot"}, **fields}
    return Machine(node_id, generation, stretches, **values)  # type: ignore[arg-type]


def steps(
    generation: int, numbers: tuple[int, int], hours: tuple[float, float], busy_h: float = 0
) -> Steps:
    first_us, last_us = (round(hour * H) for hour in hours)
    return Steps(generation, *numbers, first_us, last_us, round(busy_h * H), last_us)


def save(generation: int, step: int, stage_h: float, write_h: float = 0) -> Save:
    return Save(generation, step, round(stage_h * H), round(write_h * H))


def account(*machines: Machine, **fields: object) -> Account:
    values: dict[str, object] = {"num_nodes": 1, **fields}
    return Account("j", "gpt", "ada", machines=machines, **values)  # type: ignore[arg-type]
