"""Whether a training run fits one kind of GPU, where some of its options are not given.

An option that is given is fixed. One that is not spans a range, from the value that takes the least
memory to the one that takes the most. The verdict is of the framework's own defaults. If these do
not fit, it names the options with which the run does, and the memory that each saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from typing import Any

from spotd.sizing.frameworks import defaults_of
from spotd.sizing.memory import DOES_NOT_FIT, FITS, GIB, TIGHT, Memory, estimate, verdict
from spotd.sizing.run import Run
from spotd.sizing.shape import Shape

FITS_WITH, TIGHT_WITH = "fits with options", "tight with options"
VERDICTS = (FITS, FITS_WITH, TIGHT, TIGHT_WITH, DOES_NOT_FIT)  # the best first

ALL_FIELDS = frozenset(item.name for item in fields(Run))
# Options whose memory grows in this order whatever the others are: the least and the most suffice.
_ORDERED: Mapping[str, Sequence[Any]] = {
    "loss": ("chunked", "compiled", "plain"),
    "compiled": (True, False),
    "foreach": (False, True),
    "loads_whole": (False, True),
    "ragged": (False, True),
    "offload_activations": (True, False),
    "lora_dropout": (0.0, 0.05),
    "lora_targets": ("qv", "attention", "all"),
    "quantiser": ("torchao", "nf4-dq", "nf4"),
    "micro_batch": (1, 8),
    "accumulation": (1, 2),
}
# Options whose effect depends on the others: all combinations are computed.
_MIXED: Mapping[str, Sequence[Any]] = {
    "checkpointing": ("full", "selective", "none"),
    "precision": ("bf16", "mixed", "fp32"),
    "sharding": ("fsdp", "zero3", "zero2", "zero1", "none"),
    "offload": ("none", "optimizer", "all"),
    "step_in_backward": (False, True),
}
# What is tried to make a run fit, in this order: first what costs little, last what costs most.
_REMEDIES: Sequence[tuple[str, Any]] = (
    ("sharding", "fsdp"),
    ("loss", "chunked"),
    ("checkpointing", "full"),
    ("micro_batch", 1),
    ("compiled", True),
    ("foreach", False),
    ("quantiser", "nf4-dq"),
    ("precision", "mixed"),
    ("precision", "bf16"),
    ("lora_dropout", 0.0),
    ("lora_targets", "qv"),
    ("quantiser", "torchao"),
    ("step_in_backward", True),
    ("offload_activations", True),
    ("offload", "optimizer"),
    ("offload", "all"),
)
_LORA = frozenset({"lora_rank", "lora_dropout", "lora_targets"})
_FULL_ONLY = frozenset({"step_in_backward", "foreach"})


@dataclass(frozen=True)
class Remedy:
    """An option that lowers the memory: its value, and the bytes that it saves after those before
    it."""

    option: str
    value: Any
    saves: float

    @property
    def text(self) -> str:
        return f"{self.option} {_word(self.value)}"


@dataclass(frozen=True)
class Fit:
    """The verdict on a run on one kind of GPU.

    `run` is the one by the framework's defaults and `memory` its memory. `assumed` are the defaults
    that it uses. `low` and `high` are the least and the most bytes (`Memory.total`) over all values
    of the options that are not given. `remedies` are the options that make the run fit, empty if
    the defaults fit or nothing does.
    """

    framework: str
    run: Run
    card_gib: float
    memory: Memory
    low: Memory
    high: Memory
    assumed: Mapping[str, Any]
    remedies: tuple[Remedy, ...]
    remedied: Memory
    length_given: bool = True

    @property
    def by_default(self) -> str:
        """Return the verdict of the framework's defaults: fits, tight or does not fit."""
        return verdict(self.memory, self.card_gib)

    @property
    def verdict(self) -> str:
        """Return one of VERDICTS; one "with options" is not of the defaults."""
        if self.by_default != DOES_NOT_FIT:
            return self.by_default
        with_options = verdict(self.remedied, self.card_gib)
        return {FITS: FITS_WITH, TIGHT: TIGHT_WITH}.get(with_options, DOES_NOT_FIT)

    @property
    def on_the_gpu(self) -> bool:
        """Return whether it fits, by default or by options, with nothing in the host's memory."""
        offloads = any(remedy.option.startswith("offload") for remedy in self.remedies)
        return self.verdict in (FITS, FITS_WITH) and not offloads

    @property
    def whatever(self) -> bool:
        """Return whether it fits whatever the options that are not given are."""
        return verdict(self.high, self.card_gib) == FITS

    @property
    def text(self) -> str:
        """Return like "fits only with checkpointing full: 31 GiB/GPU of 79.2"."""
        if not self.assumed:
            return f"{self.verdict}{self._assuming}: {_gib(self.memory)} GiB/GPU of {self.card_gib}"
        if self.verdict == DOES_NOT_FIT:
            how, memory, word = "", self.low, "at least "
        elif self.whatever:
            how, memory, word = " whatever the options", self.high, "up to "
        elif self.verdict in (FITS_WITH, TIGHT_WITH):
            names = ", ".join(remedy.text for remedy in self.remedies)
            how, memory, word = f" with {names}", self.remedied, ""
        else:
            how = f" by the defaults of {self.framework}"
            memory, word = self.memory, ""
        verdict_text = {FITS_WITH: "fits only", TIGHT_WITH: "tight even"}.get(
            self.verdict, self.verdict
        )
        gib = f"{word}{_gib(memory)} GiB/GPU of {self.card_gib}"
        return f"{verdict_text}{how}{self._assuming}: {gib}"

    @property
    def _assuming(self) -> str:
        """Return the assumptions that count most: the precision, and the length of a sequence."""
        remedied = any(remedy.option == "precision" for remedy in self.remedies)
        counts = "precision" in self.assumed and not remedied and not self.whatever
        assumptions = [f"precision {self.run.precision}"] if counts else []
        if not self.length_given:
            assumptions.append(f"{self.run.sequence:,} tokens")
        return f" (assuming {', '.join(assumptions)})" if assumptions else ""

    @property
    def note(self) -> str:
        """Return the defaults, the range, and what each option saves; "" where none matters."""
        if not self.assumed or self.whatever:
            return ""
        names = f" ({self.assumed_text})" if self.by_default != DOES_NOT_FIT else ""
        text = (
            f"by the defaults of {self.framework}{names} {self.by_default}, "
            f"{_gib(self.memory)} GiB/GPU; by other options {_gib(self.low)} to {_gib(self.high)}"
        )
        if self.remedies:
            saved = ", ".join(f"{r.text} saves {r.saves / GIB:,.1f}" for r in self.remedies)
            text += f"; {'it fits' if self._fits_with else 'best'} with: {saved}"
        return text

    @property
    def assumed_text(self) -> str:
        """Return the defaults that are assumed, like "checkpointing none, micro_batch 8"."""
        return ", ".join(f"{key} {_word(value)}" for key, value in self.assumed.items())

    @property
    def _fits_with(self) -> bool:
        return verdict(self.remedied, self.card_gib) == FITS


def _word(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _gib(memory: Memory) -> str:
    gib = memory.reserved / GIB
    return f"{gib:,.{0 if gib >= 10 else 1}f}"


@lru_cache(maxsize=4096)
def fit(shape: Shape, run: Run, given: frozenset[str], card_gib: float, framework: str) -> Fit:
    """Return the verdict on `run`, of which only the fields in `given` are known."""
    assumed = _assumed(run, given, framework)
    default = replace(run, **assumed)
    low, high = _extremes(shape, default, frozenset(assumed))
    memory = estimate(shape, default)
    remedies, remedied = _remedies(shape, default, frozenset(assumed), card_gib, low[1])
    return Fit(
        framework=framework,
        run=default,
        card_gib=card_gib,
        memory=memory,
        low=low[0],
        high=high,
        assumed=assumed,
        remedies=remedies,
        remedied=remedied,
        length_given="sequence" in given,
    )


def _assumed(run: Run, given: frozenset[str], framework: str) -> dict[str, Any]:
    """Return the framework's value of each option that is not given and has an effect."""
    none: set[str] = set()
    if not run.frozen:
        none |= _LORA
    if run.frozen:
        none |= _FULL_ONLY
    if run.method != "qlora":
        none.add("quantiser")
    if run.shards == 1:
        none.add("loads_whole")
    if run.accumulation > 1 and "accumulation" in given:
        none.add("step_in_backward")
    if run.step_in_backward and "step_in_backward" in given:
        none.add("accumulation")
    values = defaults_of(framework, run)
    return {key: value for key, value in values.items() if key not in none | given}


@lru_cache(maxsize=4096)
def _extremes(
    shape: Shape, default: Run, unset: frozenset[str]
) -> tuple[tuple[Memory, Run], Memory]:
    """Return the least memory with its run, and the most, over all values of `unset`."""
    ordered = {key: values for key, values in _ORDERED.items() if key in unset}
    least = {key: values[0] for key, values in ordered.items()}
    most = {key: values[-1] for key, values in ordered.items()}
    lows = [(estimate(shape, run), run) for run in _runs(default, unset, least)]
    highs = [estimate(shape, run) for run in _runs(default, unset, most)]
    return min(lows, key=lambda pair: pair[0].total), max(highs, key=lambda one: one.total)


def _runs(default: Run, unset: frozenset[str], fixed: Mapping[str, Any]) -> Iterator[Run]:
    choices = {key: values for key, values in _MIXED.items() if key in unset}
    for values in product(*choices.values()):
        options = {**fixed, **dict(zip(choices, values, strict=True))}
        if options.get("step_in_backward"):
            if default.accumulation > 1:
                continue
            options["accumulation"] = 1
        yield replace(default, **options)


def _remedies(
    shape: Shape, default: Run, unset: frozenset[str], card_gib: float, least: Run
) -> tuple[tuple[Remedy, ...], Memory]:
    """Return the options that make `default` fit, each with what it saves, and the memory then.

    Options are added in the order of _REMEDIES until the run fits, and those that it fits without
    are dropped. If that is not enough, they are those of the run that takes the least.
    """
    if verdict(estimate(shape, default), card_gib) == FITS:
        return (), estimate(shape, default)
    chosen: dict[str, Any] = {}
    for option, value in _REMEDIES:
        if option not in unset:
            continue
        before = _total(shape, default, chosen)
        if _total(shape, default, {**chosen, option: value}) < before:
            chosen[option] = value
        if _fits(shape, default, chosen, card_gib):
            break
    else:
        chosen = {k: getattr(least, k) for k in unset if getattr(least, k) != getattr(default, k)}
        if verdict(estimate(shape, least), card_gib) == DOES_NOT_FIT:
            return (), estimate(shape, least)
    for option in [key for key, _ in reversed(_REMEDIES) if key in chosen]:
        fewer = {key: value for key, value in chosen.items() if key != option}
        if option in chosen and _as_good(shape, default, fewer, chosen, card_gib):
            chosen = fewer
    return _savings(shape, default, chosen), estimate(shape, replace(default, **chosen))


def _total(shape: Shape, default: Run, options: Mapping[str, Any]) -> float:
    return estimate(shape, replace(default, **options)).total


def _fits(shape: Shape, default: Run, options: Mapping[str, Any], card_gib: float) -> bool:
    return verdict(estimate(shape, replace(default, **options)), card_gib) == FITS


def _as_good(
    shape: Shape,
    default: Run,
    fewer: Mapping[str, Any],
    chosen: Mapping[str, Any],
    card_gib: float,
) -> bool:
    words = [
        verdict(estimate(shape, replace(default, **options)), card_gib)
        for options in (fewer, chosen)
    ]
    return words[0] == words[1]


def _savings(shape: Shape, default: Run, chosen: Mapping[str, Any]) -> tuple[Remedy, ...]:
    order = list(dict.fromkeys(key for key, _ in _REMEDIES))
    remedies: list[Remedy] = []
    options: dict[str, Any] = {}
    for option in sorted(chosen, key=order.index):
        before = _total(shape, default, options)
        options[option] = chosen[option]
        remedies.append(Remedy(option, chosen[option], before - _total(shape, default, options)))
    return tuple(remedies)
