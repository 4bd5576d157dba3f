"""Events of a training program's forecast at a notice, and of its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd.domain.events import Event, Severity
from spotd.store.journal_fields import read_flag, read_int, read_text
from spotd.wire import MAX_NUMBER, WireError, shown

_PLANS = {
    "train": "keeps training, and begins its last save in {start:.0f} s at the latest",
    "save": "begins its last save now",
    "finish": "finishes the upload in flight, because a new save does not fit",
    "release": "releases the job at its last durable checkpoint at once, because no save fits",
}
_FIGURES = ("left_s", "start_in_s", "end_in_s", "margin_s", "save_s", "flight_s")
_OUTCOMES = ("predicted_s", "took_s")


def event_of(data: Mapping[str, Any]) -> Event:
    """The event of a PLAN entry, with its figures as data. Raises WireError."""
    action = read_text(data, "action")[:20]
    figures = {n: _seconds(data, n) for n in (*_FIGURES, *_OUTCOMES) if data.get(n) is not None}
    forecast: dict[str, object] = {"action": action, **figures}
    if read_text(data, "status") == "ended":
        return _ended(data, action, forecast)
    text = f"with {_seconds(data, 'left_s'):.0f} s left at step {read_int(data, 'step')} it "
    start_s, margin_s = _seconds(data, "start_in_s"), _seconds(data, "margin_s")
    text += _PLANS.get(action, f"plans to {action}").format(start=start_s)
    if action != "release":
        text += f"; by the measurements that ends {margin_s:.0f} s before the machine does"
    return Event("plan", text, data=forecast)


def _ended(data: Mapping[str, Any], action: str, forecast: Mapping[str, object]) -> Event:
    in_time = read_flag(data, "kept")
    took_s, predicted_s = _seconds(data, "took_s"), _seconds(data, "predicted_s")
    text = f"step {read_int(data, 'step')} released {took_s:.1f} s after the decision to {action}"
    text += f", {predicted_s:.1f} s predicted"
    if data.get("margin_s") is not None:
        text += f", {_seconds(data, 'margin_s'):.1f} s before the end"
    text += "" if in_time else ": the save was not done in time"
    severity = Severity.INFO if in_time else Severity.WARNING
    return Event("plan_ended", text, severity=severity, data={**forecast, "kept": in_time})


def _seconds(data: Mapping[str, Any], name: str) -> float:
    """A time in seconds; negative if it has passed."""
    value: Any = data.get(name)
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not -MAX_NUMBER <= value <= MAX_NUMBER:  # nan compares false
        raise WireError(f"field {name!r} is {shown(value)}")
    return float(value)
