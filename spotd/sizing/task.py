"""The training task, from a job file or from flags: the model, the method and the amount of
work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from spotd.sizing import catalog
from spotd.sizing.fit import ALL_FIELDS, Fit, fit
from spotd.sizing.frameworks import DEFAULT, FRAMEWORKS
from spotd.sizing.run import QUANTISERS, Run
from spotd.sizing.shape import NotCoveredError, Shape, of_config

_RUN = frozenset(item.name for item in fields(Run)) - {"gpus"}
_ALIASES = {"8bit": "full-8bit", "8-bit": "full-8bit", "qlora-4bit": "qlora", "int8": "lora-8bit"}
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "tied")
_NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")


class TaskError(ValueError):
    """A field that cannot be used: which, what is wrong, and what to write instead."""

    def __init__(self, field: str, text: str, fix: str) -> None:
        super().__init__(f"{field}: {text}; {fix}")
        self.field, self.text, self.fix = field, text, fix


@dataclass(frozen=True)
class Task:
    """A training task. `run.gpus` has no meaning here: each offer has its own.

    `tokens` are all that are trained on, 0 if unknown; `steps` the same in optimizer steps.
    `example_tokens` is the mean length of examples that are not packed; 0 if they are packed to
    `run.sequence`. `given` are the fields of `run` that are known; `framework` has the defaults of
    the others, for memory. Time, cost and the size of a checkpoint are by `run` as it is.
    """

    shape: Shape
    run: Run
    tokens: float = 0.0
    steps: int = 0
    example_tokens: float = 0.0
    given: frozenset[str] = ALL_FIELDS
    framework: str = DEFAULT

    @property
    def trained_tokens(self) -> float:
        """Return the tokens of one micro-batch on one GPU that are not padding."""
        length = self.example_tokens or self.run.sequence
        return self.run.micro_batch * min(length, self.run.sequence) / self.run.context

    def on(self, gpus: int) -> Task:
        """The same on so many GPUs. Raises ValueError where they do not divide."""
        return replace(self, run=replace(self.run, gpus=gpus))

    def fit(self, card_gib: float) -> Fit:
        """Return whether it fits GPUs of `card_gib`, on `run.gpus` of them."""
        return fit(self.shape, self.run, self.given, card_gib, self.framework)

    def total_tokens(self) -> float:
        """Return the tokens to train on with `run.gpus`; 0.0 if unknown."""
        micro_batches = self.run.replicas * self.run.context * self.run.accumulation
        return self.tokens or self.steps * self.trained_tokens * micro_batches


def task_of(words: Mapping[str, Any]) -> Task:
    """The task that `words` describe: `name` of a known model, `config` (the content of a Hugging
    Face config.json) or the numbers of a shape; and any field of Run and Task. What is None is as
    if it were absent. Raises TaskError."""
    given = {key: value for key, value in words.items() if value is not None}
    shape = _shape(given)
    try:
        given = _with_quantiser(given)
        method = given.get("method", "full")
        run = {"ragged": bool(given.get("example_tokens"))}
        run |= {key: given[key] for key in _RUN & given.keys()}
        if shape.positions and run.get("sequence", 1) > shape.positions:
            raise TaskError(
                "sequence",
                f"{shape.name} has {shape.positions} positions",
                f"at most {shape.positions}",
            )
        task = Task(
            shape,
            Run(**{**run, "method": _ALIASES.get(method, method), "gpus": _least(run)}),
            tokens=float(given.get("tokens", 0)),
            steps=int(given.get("steps", 0)),
            example_tokens=float(given.get("example_tokens", 0)),
            given=_known_fields(run, given),
            framework=_framework(given),
        )
    except TaskError:
        raise
    except ValueError as error:
        field, _, text = str(error).partition(" ")
        raise TaskError(field, text, "see docs/rightsizing.md") from None
    if task.tokens and task.steps:
        raise TaskError("steps", "and tokens both say how long it trains", "leave one of them out")
    return task


def _known_fields(run: Mapping[str, Any], given: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields that are given; what it has no default for is."""
    ragged = {"ragged"} if given.get("example_tokens") else set()
    known = (run.keys() & given.keys()) | ragged
    return frozenset(known | {"method", "gpus", "tensor", "context"})


def _framework(given: Mapping[str, Any]) -> str:
    framework = str(given.get("framework", DEFAULT))
    if framework not in FRAMEWORKS:
        fix = f"one of {', '.join(FRAMEWORKS)}, or give each option"
        raise TaskError("framework", f"{framework!r} is not known", fix)
    return framework


def _with_quantiser(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the method that `quantiser` means where `method` leaves it open.

    bitsandbytes' int8 is the method lora-8bit. Raises TaskError if they contradict each other.
    """
    quantiser, method = given.get("quantiser"), given.get("method")
    if quantiser is None:
        return dict(given)
    if quantiser not in (*QUANTISERS, "int8"):
        known = ", ".join((*QUANTISERS, "int8"))
        raise TaskError(
            "quantiser", f"must be one of {known}, not {quantiser!r}", "see docs/rightsizing.md"
        )
    implied = "lora-8bit" if quantiser == "int8" else "qlora"
    if method is not None and _ALIASES.get(method, method) not in (implied, "lora"):
        fix = f"write method: {implied}, or leave quantiser out"
        raise TaskError("quantiser", f"{quantiser} is of {implied}, not of {method}", fix)
    words = {**given, "method": implied}
    if quantiser == "int8":
        del words["quantiser"]
    return words


def _least(run: Mapping[str, Any]) -> int:
    return int(run.get("tensor", 1)) * int(run.get("context", 1))


def _shape(given: Mapping[str, Any]) -> Shape:
    name, config = str(given.get("name", "")), given.get("config")
    numbers = {key: given[key] for key in _SHAPE if key in given}
    if config is not None:
        try:
            return of_config(config, name)
        except ValueError as error:
            raise TaskError("config", str(error), "give the numbers of a dense decoder") from None
    if numbers:
        return _by_numbers(numbers, name)
    if not name:
        raise TaskError("name", "is missing", "write one like llama-3-70b, or config, or numbers")
    try:
        return catalog.find(name)
    except NotCoveredError as error:
        raise TaskError("name", str(error), "leave `model` out: nothing true is known") from None
    except KeyError:
        near = get_close_matches(name.lower(), catalog.names(), 1, 0.5)
        hint = f"did you mean {near[0]}? or " if near else ""
        fix = f"{hint}give its config.json, or layers, hidden, heads, ffn and vocab"
        raise TaskError("name", f"no model {name!r} is known", fix) from None


def _by_numbers(numbers: Mapping[str, Any], name: str) -> Shape:
    for key in _NEEDED:
        if key not in numbers:
            raise TaskError(key, "is missing", f"a shape needs {', '.join(_NEEDED)}")
    heads, hidden = int(numbers["heads"]), int(numbers["hidden"])
    if hidden % heads and "head_dim" not in numbers:
        raise TaskError("heads", f"hidden {hidden} is not a multiple of {heads}", "add head_dim")
    if heads % int(numbers.get("kv_heads", heads)):
        raise TaskError("kv_heads", f"does not divide heads, {heads}", "1 up to heads")
    return Shape(
        name or "custom",
        layers=int(numbers["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(numbers.get("kv_heads", heads)),
        head_dim=int(numbers.get("head_dim", hidden // heads)),
        ffn=int(numbers["ffn"]),
        vocab=int(numbers["vocab"]),
        gated=bool(numbers.get("gated", True)),
        tied=bool(numbers.get("tied", False)),
    )
