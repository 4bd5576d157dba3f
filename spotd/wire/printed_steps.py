"""The numbers of steps that a program prints, by which it is seen whether it resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from spotd.wire.fields import MAX_NUMBER, WireError, shown

MAX_SERIES = 8
MAX_SERIES_KEY = 60
REPEATED = 0
_UNKNOWN = "?"  # behind the key of a series, for numbers that may be a program's history


@dataclass(frozen=True)
class StepSeries:
    """Numbers that grow while a program runs: `first` to `last`, and how many different ones.

    A `count` of REPEATED says that they start over within a run, so that they tell nothing.
    """

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
            known = merged.get(key)
            merged[key] = series if known is None else _joined(known, series)
    return largest_series(merged)


def _joined(one: StepSeries, other: StepSeries) -> StepSeries:
    is_repeated = REPEATED in (one.count, other.count)
    return StepSeries(
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        count=REPEATED if is_repeated else one.count + other.count,
    )


def continue_series(known: PrintedSteps, now: PrintedSteps) -> PrintedSteps:
    """Return what one attempt printed, of which an agent that was restarted has read the end."""
    joined = dict(now)
    for key, series in known.items():
        joined[key] = _continued(series, now[key]) if key in now else series
    return largest_series(joined)


def _continued(known: StepSeries, now: StepSeries) -> StepSeries:
    joined = _joined(known, now)
    return replace(joined, count=max(known.count, now.count) if joined.count else REPEATED)


def main_series(printed: PrintedSteps) -> str:
    """Return the key of the series with the most numbers; "" if none tells how far it came."""
    return next(iter(largest_series(_telling(printed))), "")


def _telling(printed: PrintedSteps) -> PrintedSteps:
    """Return the series that tell how far a run came.

    One that had reached its total was done, as the loading of data is before each training.
    """
    return {
        key: series
        for key, series in printed.items()
        if series.count != REPEATED
        and series.last > series.first
        and f"{series.last:g}" != key.partition("/")[2]
    }


def began_anew(before: PrintedSteps, now: PrintedSteps) -> bool | None:
    """Return whether a program that printed `now` repeats what was printed `before`.

    It does if all series that tell how far it came start as low again. None: not known, because it
    has not printed two numbers of the main series yet.
    """
    main, telling = main_series(before), _telling(before)
    if not main or main not in now or now[main].count < 2:
        return None
    common = [key for key in now if key in telling and now[key].count != REPEATED]
    return all(now[key].first <= _low(key, telling[key]) for key in common)


def _low(key: str, series: StepSeries) -> float:
    """Return the highest first number of a run from the beginning.

    A progress bar is drawn from time to time, so that its first number differs between runs.
    """
    every = (series.last - series.first) / max(1, series.count - 1)
    return series.first + (every if key.startswith("bar") else 0.0)


def unknown_series(key: str) -> PrintedSteps:
    """Return that a program printed numbers of `key` that may be its history, and told nothing."""
    return {f"{key}{_UNKNOWN}"[-MAX_SERIES_KEY:]: StepSeries(0, 0, REPEATED)}


def is_unknown(key: str, printed: PrintedSteps) -> bool:
    """Return whether nobody can tell from where on a program that printed its history goes on."""
    return key not in printed and not printed.keys().isdisjoint(unknown_series(key))


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
