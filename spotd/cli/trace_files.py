"""Files of spot traces from what a daemon says that it has seen: one a kind and number of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotd.base.errors import UserError
from spotd.history.traces import Grid, PoolObservations, grid_over, priced, sampled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_TICKS = 1_000_000
_US = 1_000_000


@dataclass(frozen=True)
class Row:
    """One zone's series. Prices are dollars an hour of one machine; `priced_share` is that of ticks
    at or after the first price on record."""

    name: str
    seen: PoolObservations
    avail: NDArray[np.uint8]
    looked: NDArray[np.uint8]
    spot: NDArray[np.float32]
    on_demand: float
    priced_share: float

    @property
    def told(self) -> bool:
        """Whether anything was seen."""
        return bool(self.looked.any())

    def described(self) -> dict[str, Any]:
        looked = self.looked.astype(bool)
        up = self.avail.astype(bool) & looked
        ends = up[:-1] & looked[1:] & ~up[1:]
        return {
            "zone": self.name,
            "pool": self.seen.pool,
            "seen_share": float(looked.mean()),
            "up_share": float(up.sum() / looked.sum()),
            "ends": int(ends.sum()),
            "spot_usd_per_h": round(float(self.spot.mean()), 6),
            "on_demand_usd_per_h": round(self.on_demand, 6),
            "priced_share": self.priced_share,
        }


@dataclass(frozen=True)
class TraceFile:
    """All zones of one kind, in order; `left_out` are other pools, with why."""

    stem: str
    grid: Grid
    stale_s: int
    rows: Sequence[Row]
    left_out: Mapping[str, str]

    @property
    def start(self) -> str:
        begins = datetime.fromtimestamp(self.grid.first_us / _US, UTC)
        return begins.replace(tzinfo=None).isoformat(timespec="seconds")

    def described(self) -> dict[str, Any]:
        return {
            "file": f"{self.stem}.npz",
            "start": f"{self.start}Z",
            "ticks": self.grid.ticks,
            "hours": self.grid.hours,
            "zones": [row.described() for row in self.rows],
        }


def made(data: dict[str, Any], gap_s: int, stale_s: int) -> list[TraceFile]:
    """Of the answer of /v1/traces. A kind of which no whole tick was seen has no file."""
    kinds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for item in data["items"]:
        kinds.setdefault((item["accelerator"], item["accelerator_count"]), []).append(item)
    found = []
    for (accelerator, count), items in sorted(kinds.items()):
        gpu = accelerator.lower().replace("_", "-").replace(" ", "-")
        names = _names([_seen(item) for item in items], gpu, count)
        priced_items = [item for item in items if _has_prices(item)]
        pools = [_seen(item) for item in priced_items]
        bounds = (data["since_us"], data["until_us"])
        grid = grid_over(pools, gap_s * _US, stale_s * _US, *bounds)
        rows = [_row(names[item["pool"]], item, grid, stale_s) for item in priced_items]
        left = {item["pool"]: "no price on record" for item in items if not _has_prices(item)}
        left |= {row.seen.pool: "nothing was seen for a whole tick" for row in rows if not row.told}
        rows = sorted((row for row in rows if row.told), key=lambda row: row.name)
        if rows:
            found.append(TraceFile(f"{gpu}_{count}", grid, stale_s, rows, left))
    return found


def _seen(item: dict[str, Any]) -> PoolObservations:
    held = tuple((since_us, until_us) for since_us, until_us in item["held_us"])
    kind = (item["accelerator"], item["accelerator_count"])
    return PoolObservations(item["pool"], item["cloud"], *kind, held, tuple(item["missed_us"]))


def _has_prices(item: dict[str, Any]) -> bool:
    return bool(item["spot_microusd_per_h"] and item["on_demand_microusd_per_h"])


def _row(name: str, item: dict[str, Any], grid: Grid, stale_s: int) -> Row:
    one, points = _seen(item), [(at, price) for at, price in item["spot_microusd_per_h"]]
    avail, looked = sampled(one, grid, stale_s * _US)
    before = min(grid.ticks, max(0, -((grid.first_us - points[0][0]) // grid.gap_us)))
    listed = item["on_demand_microusd_per_h"][-1][1] / 1e6
    share = 1 - before / grid.ticks
    return Row(name, one, avail, looked, priced(points, grid), listed, share)


def _names(pools: Sequence[PoolObservations], gpu: str, count: int) -> dict[str, str]:
    """Pool -> the name of its series, <zone>_<gpu>_<count>; with the type of machine, and then the
    provider, after the GPU where two would have the same one."""
    parts = {one.pool: one.pool.split("/") for one in pools}
    ways: list[Callable[[list[str]], str]] = [
        lambda _: gpu,
        lambda part: f"{gpu}-{part[3]}",
        lambda part: f"{gpu}-{part[3]}-{part[0]}",
    ]
    names: dict[str, str] = {}
    for way in ways:
        open_ = [pool for pool in parts if pool not in names]
        tried = {pool: f"{_zone(parts[pool])}_{way(parts[pool])}_{count}" for pool in open_}
        often = Counter(tried.values())
        names |= {pool: name for pool, name in tried.items() if often[name] == 1}
    return names


def _zone(part: Sequence[str]) -> str:
    """A pool of a whole region has no zone: -0 stands for it, so that the region can be read."""
    return part[2] or f"{part[1]}-0"


def write(files: Sequence[TraceFile], folder: Path) -> None:
    """All of them, or none. Raises UserError."""
    parts = {folder / f".{file.stem}.part.npz": file for file in files}
    try:
        folder.mkdir(exist_ok=True)
        for part, file in parts.items():
            _write(file, part)
        for part, file in parts.items():
            part.replace(folder / f"{file.stem}.npz")
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror}"
        raise UserError(text, "name another folder with --out") from None
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _write(file: TraceFile, path: Path) -> None:
    """The keys of recorded traces (zones to n_requested), and what else is known."""
    import numpy as np

    rows, stale_s = file.rows, file.stale_s
    said = f"seen by spotd: 1 held, 0 refused or taken away; `seen` holds on for {stale_s} s"
    np.savez_compressed(
        path,
        zones=np.array([row.name for row in rows]),
        avail=np.array([row.avail for row in rows]),
        spot=np.array([row.spot for row in rows]),
        od=np.array([row.on_demand for row in rows], dtype=np.float64),
        gap=np.float64(file.grid.gap_us / _US),
        first_tick=np.int64(file.grid.first_us // file.grid.gap_us),
        start=np.array(file.start),
        n_requested=np.int64(1),
        note=np.array(said),
        seen=np.array([row.looked for row in rows]),
        pools=np.array([row.seen.pool for row in rows]),
        clouds=np.array([row.seen.cloud for row in rows]),
    )
