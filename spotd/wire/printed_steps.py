"""The numbers of steps that a program prints, by which it is seen whether it resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from spotd.wire.fields import MAX_NUMBER, WireError, shown

MAX_SERIES = 8
MAX_SERIES_KEY = 60


@dataclass(frozen=True)
class StepSeries:
    """Numbers that grow while a program runs: `first` to `last`, and how many different ones."""

    first: float
    last: float
    count: int


# By the word before the number, with the total behind it if there is one: "step", "epoch/3".
# Numbers of a progress bar have "bar" and its total: "bar/240".
PrintedSteps = Mapping[str, StepSeries]


def largest_series(printed: PrintedSteps) -> PrintedSteps:
    """Return the MAX_SERIES series with the most numbers."""
    keys = sorted(printed, key=lambda key: (-printed[key].count, key))[:MAX_SERIES]
    return {key: printed[key] for key in keys}


def merge_printed_steps(*attempts: PrintedSteps) -> PrintedSteps:
    """Return what all attempts printed together."""
    merged: dict[str, StepSeries] = {}
    for printed in attempts:
        for key, series in printed.items():
            known = merged.get(key, series)
            merged[key] = StepSeries(
                first=min(known.first, series.first),
                last=max(known.last, series.last),
                count=series.count + (known.count if key in merged else 0),
            )
    return largest_series(merged)


def main_series(printed: PrintedSteps) -> str:
    """Return the key of the series with the most numbers; "" if none grew."""
    grown = {key: series for key, series in printed.items() if series.last > series.first}
    return next(iter(largest_series(grown)), "")


def began_anew(before: PrintedSteps, now: PrintedSteps) -> bool | None:
    """Return whether a program that printed `now` repeats what was printed `before`.

    It does if all series that grew before start as low again. None: not known, because it has not
    printed two numbers of the main series yet.
    """
    main = main_series(before)
    if not main or main not in now or now[main].count < 2:
        return None
    grown = [key for key in now if key in before and before[key].last > before[key].first]
    return all(now[key].first <= before[key].first for key in grown)


def printed_steps_data(printed: PrintedSteps) -> dict[str, list[float]]:
    """Return the JSON form, which `parse_printed_steps` reads."""
    return {key: list(astuple(series)) for key, series in printed.items()}


def parse_printed_steps(value: Any) -> PrintedSteps:
    """Parse the JSON form. Raises WireError."""
    if not isinstance(value, dict) or len(value) > MAX_SERIES:
        raise WireError(f"printed steps are {shown(value)}")
    return {_key(key): _series(item) for key, item in value.items()}


def _key(key: Any) -> str:
    if not isinstance(key, str) or len(key) > MAX_SERIES_KEY or not key.isprintable():
        raise WireError(f"printed steps have the key {shown(key)}")
    return key


def _series(item: Any) -> StepSeries:
    if not isinstance(item, list) or len(item) != 3:
        raise WireError(f"printed steps have the series {shown(item)}")
    for number in item:
        if type(number) not in (int, float) or not 0 <= number <= MAX_NUMBER:
            raise WireError(f"printed steps have the series {shown(item)}")
    return StepSeries(item[0], item[1], int(item[2]))
