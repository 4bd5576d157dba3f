"""Trace files of spot availability from the daemon's records: one for each GPU type and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotd.base.errors import UserError
from spotd.history.traces import (
    Grid,
    PoolObservations,
    grid_over,
    sample_availability,
    sample_prices,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_TICKS = 1_000_000
_US = 1_000_000


@dataclass(frozen=True)
class Row:
    """One zone's series. Prices are dollars per hour of one machine.

    `priced_share` is the share of ticks at or after the first price on record.
    """

    name: str
    observations: PoolObservations
    avail: NDArray[np.uint8]
    observed: NDArray[np.uint8]
    spot: NDArray[np.float32]
    on_demand: float
    priced_share: float

    @property
    def has_observations(self) -> bool:
        """Whether any tick was observed."""
        return bool(self.observed.any())

    def to_dict(self) -> dict[str, Any]:
        observed = self.observed.astype(bool)
        up = self.avail.astype(bool) & observed
        ends = up[:-1] & observed[1:] & ~up[1:]
        return {
            "zone": self.name,
            "pool": self.observations.pool,
            "seen_share": float(observed.mean()),
            "up_share": float(up.sum() / observed.sum()),
            "ends": int(ends.sum()),
            "spot_usd_per_h": round(float(self.spot.mean()), 6),
            "on_demand_usd_per_h": round(self.on_demand, 6),
            "priced_share": self.priced_share,
        }


@dataclass(frozen=True)
class TraceFile:
    """All zones of one GPU type and count, in order; `left_out` maps other pools to the reason."""

    stem: str
    grid: Grid
    stale_s: int
    rows: Sequence[Row]
    left_out: Mapping[str, str]

    @property
    def start(self) -> str:
        start_time = datetime.fromtimestamp(self.grid.first_us / _US, UTC)
        return start_time.replace(tzinfo=None).isoformat(timespec="seconds")

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": f"{self.stem}.npz",
            "start": f"{self.start}Z",
            "ticks": self.grid.ticks,
            "hours": self.grid.hours,
            "zones": [row.to_dict() for row in self.rows],
        }


def build_traces(data: dict[str, Any], gap_s: int, stale_s: int) -> list[TraceFile]:
    """Build the trace files of a reply of the operation TRACES.

    A GPU type without an observed tick has no file.
    """
    kinds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for item in data["items"]:
        kinds.setdefault((item["accelerator"], item["accelerator_count"]), []).append(item)
    files = []
    for (accelerator, count), items in sorted(kinds.items()):
        gpu = accelerator.lower().replace("_", "-").replace(" ", "-")
        names = _series_names([_observations(item) for item in items], gpu, count)
        priced_items = [item for item in items if _has_prices(item)]
        pools = [_observations(item) for item in priced_items]
        bounds = (data["since_us"], data["until_us"])
        grid = grid_over(pools, gap_s * _US, stale_s * _US, *bounds)
        rows = [
            _row(name=names[item["pool"]], item=item, grid=grid, stale_s=stale_s)
            for item in priced_items
        ]
        left_out = {item["pool"]: "no price on record" for item in items if not _has_prices(item)}
        left_out |= {
            row.observations.pool: "nothing was observed for a whole tick"
            for row in rows
            if not row.has_observations
        }
        rows = sorted((row for row in rows if row.has_observations), key=lambda row: row.name)
        if rows:
            files.append(
                TraceFile(
                    stem=f"{gpu}_{count}", grid=grid, stale_s=stale_s, rows=rows, left_out=left_out
                )
            )
    return files


def _observations(item: dict[str, Any]) -> PoolObservations:
    held = tuple((since_us, until_us) for since_us, until_us in item["held_us"])
    kind = (item["accelerator"], item["accelerator_count"])
    return PoolObservations(item["pool"], item["cloud"], *kind, held, tuple(item["missed_us"]))


def _has_prices(item: dict[str, Any]) -> bool:
    return bool(item["spot_microusd_per_h"] and item["on_demand_microusd_per_h"])


def _row(name: str, item: dict[str, Any], grid: Grid, stale_s: int) -> Row:
    observations = _observations(item)
    points = [(at, price) for at, price in item["spot_microusd_per_h"]]
    avail, observed = sample_availability(observations, grid, stale_s * _US)
    unpriced_ticks = min(grid.ticks, max(0, -((grid.first_us - points[0][0]) // grid.gap_us)))
    on_demand_usd = item["on_demand_microusd_per_h"][-1][1] / 1e6
    share = 1 - unpriced_ticks / grid.ticks
    return Row(
        name=name,
        observations=observations,
        avail=avail,
        observed=observed,
        spot=sample_prices(points, grid),
        on_demand=on_demand_usd,
        priced_share=share,
    )


def _series_names(pools: Sequence[PoolObservations], gpu: str, count: int) -> dict[str, str]:
    """Return pool -> the name of its series, <zone>_<gpu>_<count>.

    Where two pools would have the same name, the instance type follows the GPU, and then the
    provider.
    """
    parts = {pool.pool: pool.pool.split("/") for pool in pools}
    gpu_names: list[Callable[[list[str]], str]] = [
        lambda _: gpu,
        lambda part: f"{gpu}-{part[3]}",
        lambda part: f"{gpu}-{part[3]}-{part[0]}",
    ]
    names: dict[str, str] = {}
    for gpu_name in gpu_names:
        unnamed = [pool for pool in parts if pool not in names]
        candidates = {
            pool: f"{_zone(parts[pool])}_{gpu_name(parts[pool])}_{count}" for pool in unnamed
        }
        counts = Counter(candidates.values())
        names |= {pool: name for pool, name in candidates.items() if counts[name] == 1}
    return names


def _zone(part: Sequence[str]) -> str:
    """Return the zone of a pool, or its region and -0 where the pool is of an entire region."""
    return part[2] or f"{part[1]}-0"


def write_traces(files: Sequence[TraceFile], folder: Path) -> None:
    """Write all files, or none. Raises UserError."""
    parts = {folder / f".{file.stem}.part.npz": file for file in files}
    try:
        folder.mkdir(exist_ok=True)
        for part, file in parts.items():
            _write(file, part)
        for part, file in parts.items():
            part.replace(folder / f"{file.stem}.npz")
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror}"
        raise UserError(message, "name another folder with --into") from None
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _write(file: TraceFile, path: Path) -> None:
    """Write one file: the keys of recorded traces (zones to n_requested), and more facts."""
    import numpy as np

    rows, stale_s = file.rows, file.stale_s
    note = f"seen by spotd: 1 held, 0 refused or taken away; `seen` holds on for {stale_s} s"
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
        note=np.array(note),
        seen=np.array([row.observed for row in rows]),
        pools=np.array([row.observations.pool for row in rows]),
        clouds=np.array([row.observations.cloud for row in rows]),
    )
