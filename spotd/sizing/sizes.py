"""One task on one kind and number of GPUs: whether it fits, how long it takes, what it costs, and
how many machines of an offer to propose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from providers.dollars import format_usd
from spotd.sizing import cards
from spotd.sizing.advice import Advice, advise, cause, hours_of
from spotd.sizing.cards import Card
from spotd.sizing.fit import Fit
from spotd.sizing.memory import DOES_NOT_FIT, FITS, GIB, Memory
from spotd.sizing.task import Task
from spotd.sizing.throughput import ThroughputEstimate, pace, prior_of

COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # that are looked through for what fits
PLAIN_IP_GB_S = 12.5  # between machines without EFA, GPUDirect or InfiniBand: 100 Gb/s at most
_WORTH = 0.9  # advice that saves less than a tenth is none
LIMITS = (
    "dense text decoders alone: mixtures of experts, images, encoders and pipeline parallelism "
    "are not covered; memory is 7 % from published measurements on average, at most 28 %, "
    "and 46 % where batches are ragged"
)


@dataclass(frozen=True)
class Measured:
    """A job's measurement: tokens per second of all its GPUs, over so many steps."""

    tokens_per_s: float
    steps: int
    accelerator: str
    gpus: int


@dataclass(frozen=True)
class OfferFit:
    """The result. `hours` and its range are 0.0 if the length of the task is unknown."""

    task: Task
    card: Card
    fit: Fit
    pace: ThroughputEstimate

    @property
    def memory(self) -> Memory:
        """Return the memory by the options that are given and the framework's defaults."""
        return self.fit.memory

    @property
    def verdict(self) -> str:
        """Return one of `spotd.sizing.fit.VERDICTS`."""
        return self.fit.verdict

    @property
    def gpus(self) -> int:
        return self.task.run.gpus

    @property
    def hours(self) -> float:
        return hours_of(self.task, self.pace.tokens_per_s)


def size(
    task: Task, card: Card, gpus: int, measured: Measured | None = None, *, joined: bool = True
) -> OfferFit:
    """Return the task on `gpus` of `card`.

    Raises ValueError if they do not divide into its parts.

    A measurement on that kind of GPU replaces the prior, in proportion to their number. Without
    `joined` they are in several machines with plain IP between them, about which a measurement on
    fewer says nothing.
    """
    placed = task.on(gpus)
    rate = 0.0
    same = measured is not None and _known(measured.accelerator) == card
    if measured and same and (joined or gpus == measured.gpus):
        rate = measured.tokens_per_s * gpus / measured.gpus
    if not joined:
        card = replace(card, link_gb_s=min(card.link_gb_s, PLAIN_IP_GB_S))
    return OfferFit(placed, card, placed.fit(card.memory_gib), pace(placed, card, rate))


def _known(accelerator: str) -> Card | None:
    try:
        return cards.find(accelerator)
    except KeyError:
        return None


def around(task: Task, card: Card) -> list[OfferFit]:
    """Return the fits from the largest number of GPUs that is too small to the first that fits.

    If it fits none by the framework's defaults, the last is the first that it fits with other
    options. A number is too small also where state has to go to the host's memory.
    """
    fits: list[OfferFit] = []
    for gpus in COUNTS:
        if gpus % (task.run.tensor * task.run.context):
            continue
        sized = size(task, card, gpus)
        too_small = sized.fit.by_default == DOES_NOT_FIT and not sized.fit.on_the_gpu
        fits = [] if too_small else fits
        fits.append(sized)
        if sized.fit.on_the_gpu:
            break
    return fits


def on_offer(
    task: Task, offer: Mapping[str, Any], num_nodes: int, measured: Measured | None = None
) -> dict[str, Any] | None:
    """Return `size_data` for so many machines of an offer, with the task's cost there.

    The offer is as the API shows it. None for an unknown accelerator, or a number that the task
    cannot be spread over.
    """
    card, gpus = _known(offer["accelerator"]), offer["accelerator_count"] * num_nodes
    if card is None or not gpus:
        return None
    try:
        joined = num_nodes == 1 or bool(offer.get("interconnect"))
        fit = size(task, card, gpus, measured, joined=joined)
    except ValueError:
        return None
    usd_per_h = offer["price_usd_per_h"] * num_nodes
    return {
        **size_data(fit),
        "num_nodes": num_nodes,
        "usd": fit.hours * usd_per_h or None,
        "advice": advice_data(advise(fit.task, fit.card, fit.pace, usd_per_h)),
    }


def with_hardware(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the offers with their `size`.

    Offers on which the task is slow name the cheapest one to finish on, if that saves at least a
    tenth.
    """
    fitting = [row for row in rows if row["size"] and row["size"]["verdict"] == FITS]
    best = min((row for row in fitting if row["size"]["usd"]), key=_usd, default=None)
    return [
        {**row, "size": _told(row, best) if best and row["size"] else row["size"]} for row in rows
    ]


def _usd(row: Mapping[str, Any]) -> float:
    return float(row["size"]["usd"] or 0.0)


def _told(row: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any]:
    here, there = row["size"], best["size"]
    if not here["cause"] or _usd(best) > _WORTH * _usd(row):
        return dict(here)
    machine = f"{best['instance_type']} in {best['provider']}/{best['zone'] or best['region']}"
    text = (
        f"{there['num_nodes']} x {machine} ({there['gpus']} {there['accelerator']}): "
        f"{there['hours']:,.0f} h, {format_usd(there['usd'])} instead of {here['hours']:,.0f} h, "
        f"{format_usd(here['usd'])}"
    )
    saved = here["usd"] - there["usd"]
    other = Advice("hardware", text, there["tokens_per_s"], there["hours"], there["usd"], saved)
    return {**here, "advice": [*here["advice"], *advice_data([other])]}


def size_data(fit: OfferFit) -> dict[str, Any]:
    """Return the fit as JSON: GiB per GPU, tokens per second of all GPUs, hours of the task."""
    memory, speed, prior = fit.memory, fit.pace, prior_of(fit.task, fit.card)
    parts = ("state", "gather", "activations", "logits", "context")
    range_ = [hours_of(fit.task, rate) for rate in (speed.high, speed.low)]
    return {
        "accelerator": fit.card.name,
        "gpus": fit.gpus,
        "verdict": fit.verdict,
        "text": fit.fit.text,
        "note": fit.fit.note,
        **options_data(fit.fit),
        "gib_per_gpu": round(memory.reserved / GIB, 2),
        "gib_allocated": round(memory.allocated / GIB, 2),
        "gib_with_context": round(memory.total / GIB, 2),
        "card_gib": fit.card.memory_gib,
        "parts_gib": {part: round(getattr(memory, part) / GIB, 2) for part in parts},
        "tokens_per_s": round(speed.tokens_per_s, 1),
        "measured": speed.measured,
        "prior": {"share": prior.share, "spread": prior.spread, "anchored": prior.anchored},
        "hours": round(fit.hours, 2) or None,
        "hours_range": [round(hours, 2) for hours in range_] if fit.hours else None,
        "starved": speed.starved,
        "cause": cause(fit.task, fit.card, speed),
    }


def options_data(fit: Fit) -> dict[str, Any]:
    """Return as JSON the defaults, the range over other options, and those that make it fit.

    `range_gib` is of GiB per GPU with CUDA's context. `options` save in their order.
    """
    return {
        "framework": fit.framework,
        "by_default": fit.by_default,
        "whatever_options": fit.whatever,
        "on_the_gpu": fit.on_the_gpu,
        "assumed": dict(fit.assumed),
        "range_gib": [round(memory.total / GIB, 2) for memory in (fit.low, fit.high)],
        "options": [
            {"option": r.option, "value": r.value, "saves_gib": round(r.saves / GIB, 2)}
            for r in fit.remedies
        ],
        "gib_with_options": round(fit.remedied.reserved / GIB, 2),
    }


def advice_data(fits: Iterable[Advice]) -> list[dict[str, Any]]:
    """Return the advice as JSON."""
    return [
        {
            "kind": one.kind,
            "text": one.text,
            "tokens_per_s": round(one.tokens_per_s, 1),
            "hours": round(one.hours, 2) or None,
            "usd": round(one.usd, 2) or None,
            "saves_usd": round(one.saves_usd, 2) or None,
        }
        for one in fits
    ]


NODES = (1, 2, 3, 4, 6, 8)  # that are tried


def proposed(
    task: Task, offer: Mapping[str, Any], measured: Measured | None = None, within_h: float = 0.0
) -> list[dict[str, Any]]:
    """Return the fewest machines on which it may fit, and the fewest on which it does, by default
    or with options that leave all state on the GPUs.

    If these take longer than `within_h` (0.0 for no limit), also the fewest that are in time. One
    machine if it fits no number that is tried. `late` says which take longer.
    """
    proposals: dict[tuple[str, bool, bool], dict[str, Any]] = {}
    for nodes in NODES:
        one = on_offer(task, offer, nodes, measured)
        if one is None:
            break
        late = bool(within_h and one["hours"] and one["hours"] > within_h)
        key = (one["verdict"], one["on_the_gpu"], late)
        proposals.setdefault(key, {**one, "late": late})
        if one["on_the_gpu"] and not late:
            break
    fitting = [one for (word, *_), one in proposals.items() if word != DOES_NOT_FIT]
    return fitting or list(proposals.values())[:1]
