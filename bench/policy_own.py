"""A suite of one's own: jobs as those of M1 to M4, on a file that `spotctl advisor trace` wrote.

DIR's modules are a library here: its loader reads the file, its simulator plays the cases, its
published policies and its optimum are beside. Windows are spread over the file's length.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil, gcd
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from providers.catalogs.egress import first_tier_prices

RATIOS = (1.1, 1.25, 1.5, 2.0)  # of the deadline to the work, as in M1 to M4; so are these:
RESTART_H, CHECKPOINT_GB, WINDOWS = 0.2, 100.0, 10
CHEAPEST = 3  # zones that a second set has
# Steps of the optimum's programme for all cases together: minutes of one core.
MOST_STEPS = 2e11
KEYS = ("zones", "avail", "spot", "od", "gap", "n_requested")
Unseen = Literal["down", "hold"]


class OwnError(Exception):
    """A file that nothing can be scored on; says what to change."""


@dataclass(frozen=True)
class Own:
    """`like` is the suite whose published policies are compared; `optima` tells of cases, by their
    numbers, the optimum's dollars, or why they are not known. `about` says what was seen."""

    name: str
    cases: Sequence[dict[str, Any]]
    like: str
    about: str
    optima: Callable[[Sequence[int]], Sequence[float] | str]


def own(bench: ModuleType, file: Path, work_h: float, unseen: Unseen) -> Own:
    """Raises OwnError."""
    more = _more(file)
    part = str(file.resolve().parent).lstrip("/")
    with patch.object(bench.S, "DATA", ""):
        read = bench.S.load(part, file.stem)
    zones = [str(zone) for zone in read["zones"]]
    avail = np.asarray(read["avail"]) > 0
    seen = np.asarray(more.get("seen", np.ones(avail.shape))) > 0
    if unseen == "down":
        avail = avail & seen
    hours = avail.shape[1] * read["gap"] / 3600
    _check_length(file, avail.shape[1], read["gap"], work_h)
    names, egress = _places(bench, zones, more)
    cases = _cases(bench, file.stem, read, (avail, names, egress), work_h)
    share = f"{seen.mean() * 100:.0f} % of its ticks were seen"
    rest = "not to be had" if unseen == "down" else "what was seen last"
    about = f"{file.stem}: {len(zones)} zones, {hours:,.0f} h; {share}, and the rest is {rest}"

    def best(numbers: Sequence[int]) -> Sequence[float] | str:
        return optima(bench, [cases[number] for number in numbers])

    return Own(file.stem, cases, "S1" if len(zones) == 1 else "M1", about, best)


def _more(file: Path) -> dict[str, NDArray[Any]]:
    """Everything in the file. Raises OwnError for one that is not a trace."""
    no_npz = OwnError(f"--own: {file} is no .npz; name a file of `spotctl advisor trace`")
    if file.suffix != ".npz":
        raise no_npz
    try:
        with np.load(file, allow_pickle=False) as found:
            more = {key: found[key] for key in found.files}
    except OSError as error:
        raise OwnError(f"--own: {file}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise no_npz from error
    missing = [key for key in KEYS if key not in more]
    if missing:
        what = f"lacks {', '.join(missing)}"
        raise OwnError(f"--own: {file} {what}; name a file of `spotctl advisor trace`")
    return more


def _check_length(file: Path, ticks: int, gap_s: float, work_h: float) -> None:
    need = _ticks(max(RATIOS) * work_h, gap_s)
    if ticks >= need:
        return
    hours = ticks * gap_s / 3600
    fits_h = int(hours / max(RATIOS))
    other = f", or --work-h {fits_h}" if fits_h else ""
    raise OwnError(
        f"--own: {file} holds {hours:.1f} h; a job of {work_h:g} h with the longest deadline, "
        f"{max(RATIOS):g} times that, needs {need * gap_s / 3600:.1f} h: export a longer "
        f"--since{other}"
    )


def _ticks(hours: float, gap_s: float) -> int:
    return int(hours * 3600 / gap_s + 1e-9)


def _places(
    bench: ModuleType, zones: Sequence[str], more: dict[str, NDArray[Any]]
) -> tuple[list[str], list[list[float]]]:
    """Names by which DIR's code and ours read the right region and cloud, and dollars for a
    checkpoint's way from zone to zone. What the file does not say is read from its own names."""
    if "pools" not in more:
        return list(zones), bench.S.egress_matrix(zones, CHECKPOINT_GB)
    clouds = [str(cloud) for cloud in more["clouds"]]
    regions = [str(pool).split("/")[1] for pool in more["pools"]]
    # DIR takes what has h100 in its name for Google's, and the last letter off a zone.
    marks = ["h100" if cloud == "gcp" else "v100" for cloud in clouds]
    names = [
        f"{region}-z_{mark}_{n}"
        for n, (region, mark) in enumerate(zip(regions, marks, strict=True))
    ]

    def usd(a: int, b: int) -> float:
        if clouds[a] != clouds[b]:
            return CHECKPOINT_GB * first_tier_prices().get(clouds[a], 0) / 1e6
        known = clouds[a] in ("aws", "gcp") and regions[a] != regions[b]
        return CHECKPOINT_GB * bench.S.egress_per_gb(names[a], names[b]) if known else 0.0

    each = range(len(zones))
    return names, [[usd(a, b) for b in each] for a in each]


def _cases(
    bench: ModuleType,
    suite: str,
    read: dict[str, Any],
    told: tuple[NDArray[np.bool_], list[str], list[list[float]]],
    work_h: float,
) -> list[dict[str, Any]]:
    """All zones together, and the cheapest of them where there are more."""
    avail, names, egress = told
    gap_s, spot = read["gap"], np.asarray(read["spot"], dtype=float)
    every = list(range(len(names)))
    sets = {f"all{len(every)}": every}
    if len(every) > CHEAPEST:
        sets[f"cheapest{CHEAPEST}"] = sorted(sorted(every, key=lambda z: spot[z].mean())[:CHEAPEST])
    need = _ticks(max(RATIOS) * work_h, gap_s)
    return [
        {
            "suite": suite,
            "group": f"{series}_r{ratio}",
            "series": series,
            "start": start,
            "avail": [avail[z].astype(int).tolist() for z in chosen],
            "spot": [spot[z].tolist() for z in chosen],
            "od_price": [read["od"][z] for z in chosen],
            "gap": gap_s,
            "deadline_s": ratio * work_h * 3600,
            "work_s": work_h * 3600,
            "d_s": RESTART_H * 3600,
            "zones": [names[z] for z in chosen],
            "egress": [[egress[a][b] for b in chosen] for a in chosen],
            "net": "latch",
        }
        for series, chosen in sets.items()
        for start in bench.S.starts(avail.shape[1], need, WINDOWS)
        for ratio in RATIOS
    ]


def optima(bench: ModuleType, cases: Sequence[dict[str, Any]]) -> list[float] | str:
    """By DIR's programme, whose steps are zones * modes * stages of a start * work * time; or why
    not."""
    if sum(_steps(case) for case in cases) > MOST_STEPS:
        return (
            "would take too long; a longer --gap of `spotctl advisor trace`, or --every, "
            "makes it shorter"
        )
    try:
        omniscient = import_module("spotbench.oracle").omniscient
    except ImportError as error:
        return f"{error}; pip install numba"
    found = []
    for case in cases:
        words = [case[key] for key in bench.S.KEYS]
        found.append(omniscient(*words, start=case["start"], egress=case.get("egress")))
    return found


def _steps(case: dict[str, Any]) -> float:
    gap_s, restart_s = round(case["gap"]), round(case["d_s"])
    unit_s = gcd(gap_s, restart_s)
    stages = ceil(restart_s / gap_s) + 1
    per_tick = 2 * len(case["zones"]) * stages * case["work_s"] / unit_s
    return float(per_tick * case["deadline_s"] / gap_s)
