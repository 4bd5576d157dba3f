"""Advise how a run that is slower than its GPUs could be faster, and what that saves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from providers.dollars import format_usd
from spotd.sizing.cards import Card
from spotd.sizing.memory import FITS
from spotd.sizing.task import Task
from spotd.sizing.throughput import FLOOR, ThroughputEstimate, pace, prior_of, utilisation

PACKED_TOKENS = 4096
_WORTH = 0.9  # advice that saves less than a tenth of the time is none


@dataclass(frozen=True)
class Advice:
    """One advice. Hours and dollars are of the whole run, 0.0 if its length or price is unknown."""

    kind: str
    text: str
    tokens_per_s: float
    hours: float = 0.0
    usd: float = 0.0
    saves_usd: float = 0.0


def hours_of(task: Task, tokens_per_s: float) -> float:
    """Return the hours of the whole run; 0.0 if its length is unknown."""
    return task.total_tokens() / tokens_per_s / 3600 if tokens_per_s else 0.0


def cause(task: Task, card: Card, now: ThroughputEstimate) -> str:
    """Return why the run is slow, or "" if it is not or the reason is unknown."""
    share = utilisation(task, card, now.tokens_per_s)
    expected = prior_of(task, card)
    floor = FLOOR if not task.run.frozen else expected.share - expected.spread
    if not now.starved:
        if now.measured and share < floor:
            return f"under-fed: {share:.0%} of the GPUs' peak, where {expected.share:.0%} is usual"
        return ""
    short = bool(task.example_tokens) and task.example_tokens < task.run.sequence
    why = "short unpacked examples" if short else "small micro-batches"
    return (
        f"communication-bound by {why}: {task.trained_tokens:,.0f} tokens a GPU and micro-step are "
        f"{now.compute_s:.2f} s of arithmetic, and sharding moves {now.moved_bytes / 1e9:,.0f} GB "
        f"for them, {now.link_s:.2f} s at {card.link_gb_s:g} GB/s"
    )


def advise(task: Task, card: Card, now: ThroughputEstimate, usd_per_h: float = 0.0) -> list[Advice]:
    """Return what would be faster on the same GPUs, the best first; empty if nothing starves it.

    `usd_per_h` is for all GPUs together.
    """
    if not cause(task, card, now):
        return []
    better = [one for one in (_packed(task, card), _larger(task, card)) if one is not None]
    changes = [_told(task, now, usd_per_h, *one) for one in better]
    quicker = [one for one in changes if one.tokens_per_s * _WORTH > now.tokens_per_s]
    return sorted(quicker, key=lambda one: -one.tokens_per_s)


def _packed(task: Task, card: Card) -> tuple[str, str, str, float] | None:
    """Return packing to PACKED_TOKENS: kind, text, caveat, tokens per second."""
    if not task.example_tokens or task.example_tokens >= PACKED_TOKENS:
        return None
    run = replace(task.run, sequence=PACKED_TOKENS, micro_batch=1, ragged=False)
    given = task.given | {"micro_batch", "ragged"}
    packed = replace(task, run=run, given=given, example_tokens=0.0)
    fit = packed.fit(card.memory_gib)
    mind = "" if fit.verdict == FITS else f" ({fit.text})"
    text = f"packing to {PACKED_TOKENS // 1024}k tokens"
    return "packing", text, mind, pace(packed, card).tokens_per_s


def _larger(task: Task, card: Card) -> tuple[str, str, str, float] | None:
    """The largest micro-batch, by doubling, that fits and that the links keep up with."""
    best, batch = None, task.run.micro_batch * 2
    while batch <= 1024:
        run = replace(task.run, micro_batch=batch)
        larger = replace(task, run=run, given=task.given | {"micro_batch"})
        if larger.fit(card.memory_gib).verdict != FITS:
            break
        best = pace(larger, card)
        text = f"micro-batches of {batch}"
        if not best.starved:
            break
        batch *= 2
    return ("batch", text, "", best.tokens_per_s) if best else None


def _told(
    task: Task,
    now: ThroughputEstimate,
    usd_per_h: float,
    kind: str,
    text: str,
    mind: str,
    tokens_per_s: float,
) -> Advice:
    before_h, after_h = hours_of(task, now.tokens_per_s), hours_of(task, tokens_per_s)
    if not after_h:
        words = f"{text}: {tokens_per_s / now.tokens_per_s:.1f} times as fast"
        return Advice(kind, words + mind, tokens_per_s)
    if not usd_per_h:
        words = f"{text}: {after_h:,.0f} h instead of {before_h:,.0f} h"
        return Advice(kind, words + mind, tokens_per_s, after_h)
    usd, before = after_h * usd_per_h, before_h * usd_per_h
    words = (
        f"{text}: {after_h:,.0f} h, {format_usd(usd)} instead of {before_h:,.0f} h, "
        f"{format_usd(before)}"
    )
    return Advice(kind, words + mind, tokens_per_s, after_h, usd, before - usd)
