"""Events from nodes' reports about the health of training, with the evidence."""

from __future__ import annotations

from typing import Any

from spotd.base.log import redactor
from spotd.domain.events import Event, Severity
from spotd.domain.health import (
    ADVICE,
    HUNG_HERE,
    NOT_RESUMED,
    ROLLED_BACK,
    STEPPED_BACK,
    USAGE,
    of_unwell,
)
from spotd.store.columns import clean
from spotd.store.journal_fields import (
    read_flag,
    read_float,
    read_int,
    read_items,
    read_text,
    read_words,
)
from spotd.store.journal_projection import NodeProjection
from spotd.wire import MAX_NUMBER, JournalEntry, WireError, shown

MAX_STACKS, MAX_STACK_CHARS = 32, 8000
MAX_ABOUT = 16
_WORDS = {"hung": "training hangs: ", "unfit": "the machine is not fit to train on: "}


def unwell(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    """The program was ended as unhealthy; the exit that follows decides about the node."""
    data = entry.data
    kind = of_unwell(read_text(data, "what"))
    text = f"{_WORDS.get(kind, '')}{read_words(data, 'text')}"
    again = read_flag(data, "again")
    stacks, taken = read_int(data, "stacks", 0), _stacks(data, "dumps")
    where = "were taken" if taken else "are in its log"  # an older agent leaves them there
    text += f"; the stacks of {stacks} of its processes {where}" if stacks else ""
    here = "it restarts here, from its last checkpoint"
    text += f"; {here if again else 'that was its end on this machine'}"
    values = {"again": again, "step": read_int(data, "step", 0), "stacks": taken}
    node.say(Event(kind, text, severity=Severity.WARNING, alert=True, data=values), at_us)


def warning(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    """A warning for people, or a diagnosis of the training if the entry names one."""
    data, text = entry.data, read_words(entry.data, "text")
    kind = read_text(data, "verdict", "")
    about = data.get("about", {})
    if kind not in ADVICE or kind == STEPPED_BACK:
        alert = "alert" in data and read_flag(data, "alert")
        node.say(Event("node_warning", text, severity=Severity.WARNING, alert=alert), at_us)
        return
    if not isinstance(about, dict):
        raise WireError(f"field 'about' is {shown(about)}")
    values: dict[str, Any] = {
        clean(str(name)[:40]): value
        for name, value in list(about.items())[:MAX_ABOUT]
        if type(value) in (int, float, bool) and abs(value) <= MAX_NUMBER  # nan compares false
    }
    if "manifest" in about:
        values["manifest"] = read_text(about, "manifest")
    if kind == HUNG_HERE:
        values["stacks"] = _stacks(about, "stacks")
    advice = ADVICE[kind]
    severity = Severity.ERROR if advice.stops else Severity.WARNING
    if kind == NOT_RESUMED:
        node.columns["anew_at_us"] = 0 if values.get("opened") else at_us
    alert = advice.alert and not values.get("opened")
    node.say(Event(kind, text, severity=severity, alert=alert, data=values), at_us)
    node.due = True


def rolled_back(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    """The program itself went back to an earlier checkpoint."""
    reached, step = read_int(entry.data, "from_step"), read_int(entry.data, "step")
    text = f"training produced no finite loss up to step {reached}: it went back to the checkpoint"
    text = f"{text} of step {step}, past those batches"
    node.say(Event(ROLLED_BACK, text, severity=Severity.WARNING, alert=True), at_us)


def usage(node: NodeProjection, data: Any, at_us: int) -> None:
    """The node's utilisation in one window."""
    raw = data.get("usage")
    if raw is None:
        return
    if not isinstance(raw, dict):
        raise WireError(f"field 'usage' is {shown(raw)}")
    window_s = read_float(raw, "window_s")
    values = {"window_s": window_s}
    values |= {name: read_float(raw, name) for name in ("data_s", "save_s", "gpu") if name in raw}
    shares = [
        f"{name} {values[key] / scale:.0%}"
        for name, key, scale in (
            ("GPUs busy", "gpu", 1.0),
            ("waiting for data", "data_s", window_s or 1.0),
            ("for checkpoints", "save_s", window_s or 1.0),
        )
        if key in values
    ]
    text = f"{window_s:.0f} s of training: {', '.join(shares) or 'nothing was measured'}"
    node.say(Event(USAGE, text, severity=Severity.DEBUG, data=values), at_us)


def _stacks(data: Any, name: str) -> list[dict[str, Any]]:
    """Stacks by process: rank (-1 unknown), how they were taken, and the text without secrets."""
    stacks = []
    for item in read_items(data, name)[:MAX_STACKS]:
        if not isinstance(item, dict):
            raise WireError(f"field {name!r} has {shown(item)}")
        rank, text = item.get("rank"), item.get("text")
        if type(rank) is not int or not isinstance(text, str):
            raise WireError(f"field {name!r} has a process without rank or text")
        how = read_text(item, "how", "")[:40]
        lines = clean(redactor.clean(text)[:MAX_STACK_CHARS])
        stacks.append({"rank": rank, "how": how, "text": lines})
    return stacks
