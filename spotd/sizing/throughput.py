"""Tokens per second: the share of a card's peak that published runs reach, and the links' limit.

A prior is the share of the dense peak that runs of a kind reach, at 6 floating-point operations per
parameter and token for full training and 4 with a frozen base (no gradient of its weights), without
attention and without recomputation by checkpointing. The runs had 2k to 8k tokens
(docs/rightsizing.md has the table); attention beyond that is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotd.sizing.cards import Card
from spotd.sizing.memory import adapter_parameters
from spotd.sizing.run import Run
from spotd.sizing.task import Task

FLOOR = 0.30  # of the dense peak: what full training reaches where nothing starves it
MEASURED_STEPS = 50  # after so many steps a measurement takes the place of the prior
# Of the prior, what Hugging Face's classes reach at the slow end on an H100, without fused kernels
# and with small micro-batches (bench/gpu/sizing.py, 28 runs: 0.33 to 0.97, 0.68 in the median).
EAGER_LEAST = 0.4
_ANCHORED_TOKENS = 4096  # attention up to this length is part of the priors
_AMPERE = frozenset({"A100", "A100-80GB"})
_HOPPER = frozenset({"H100", "H100-96GB", "H200"})


@dataclass(frozen=True)
class ThroughputPrior:
    """A share of the dense peak, and how far published runs lie from it. `anchored`: there are
    published runs on such a card; else it is a guess by the others."""

    share: float
    spread: float
    anchored: bool = True

    def least(self, run: Run) -> float:
        """The share at the slow end: published runs are tuned ones."""
        least = self.share - self.spread
        return least if run.compiled else min(least, self.share * EAGER_LEAST)


def prior_of(task: Task, card: Card) -> ThroughputPrior:
    """Return what to expect of `task` on `card` before anything is measured."""
    run = task.run
    anchored = card.name in _AMPERE | _HOPPER
    if run.offload != "none":
        return ThroughputPrior(0.17, 0.08, anchored)
    if run.method == "qlora":
        return ThroughputPrior(0.25, 0.08, anchored)
    if run.frozen:
        return ThroughputPrior(0.33, 0.06, anchored)
    if run.precision == "fp8":
        return ThroughputPrior(0.35, 0.06, card.name in _HOPPER)
    if card.name in _AMPERE:
        return ThroughputPrior(0.50, 0.08)
    return ThroughputPrior(0.38, 0.06 if anchored else 0.12, anchored)


@dataclass(frozen=True)
class ThroughputEstimate:
    """Tokens per second of all GPUs together, with the range of the prior.

    `compute_s` and `link_s` are of one micro-step: arithmetic at the prior, and bytes over the
    links; they overlap. `measured`: not by the prior.
    """

    tokens_per_s: float
    low: float
    high: float
    compute_s: float
    link_s: float
    moved_bytes: float
    measured: bool = False

    @property
    def starved(self) -> bool:
        """Return whether the GPUs wait for the links."""
        return self.link_s > self.compute_s


def flops_per_token(task: Task) -> float:
    """Return the operations per token, with attention beyond the priors' sequences."""
    shape, run = task.shape, task.run
    if run.frozen:
        work = 4.0 * shape.parameters + 2.0 * adapter_parameters(shape, run)
    else:
        work = 6.0 * shape.parameters
    # Llm-foundry's count: 4 * layers * width * sequence forward, and twice that backward.
    beyond = max(0, run.sequence - _ANCHORED_TOKENS)
    return work + 12.0 * shape.layers * shape.q_width * beyond


def peak_flops(task: Task, card: Card) -> float:
    """Return the dense peak of one GPU in operations per second."""
    return card.bf16_tflops * 1e12 * (card.fp8 if task.run.precision == "fp8" else 1)


def moved_bytes(task: Task) -> float:
    """Over each GPU's links in a micro-step: FSDP gathers the weights for the forward pass and
    again for the backward pass, and scatters their gradients; a frozen base has none of those."""
    shape, run = task.shape, task.run
    if run.shards == 1:
        return 0.0
    part = (run.shards - 1) / run.shards
    each = {"qlora": 0.55, "lora-8bit": 1.0}.get(run.method, 2.0)
    whole = shape.parameters / run.tensor * each * part
    if run.sharding in ("fsdp", "zero3"):
        return whole * (2 if run.frozen else 3)
    trained = adapter_parameters(shape, run) * 2.0 if run.frozen else whole
    return 2 * trained / run.accumulation  # an all-reduce, at the end of each step


def pace(task: Task, card: Card, measured_tokens_per_s: float = 0.0) -> ThroughputEstimate:
    """Return how fast `task` trains on `task.run.gpus` of `card`.

    `measured_tokens_per_s` of all of them replaces the prior.
    """
    run, prior = task.run, prior_of(task, card)
    link_s = moved_bytes(task) / (card.link_gb_s * 1e9)
    side_by_side = run.replicas * run.context
    tokens = task.trained_tokens

    def at(share: float) -> tuple[float, float]:
        work_s = tokens * flops_per_token(task) / (peak_flops(task, card) * share * run.tensor)
        return work_s, tokens * side_by_side / max(work_s, link_s)

    compute_s, likely = at(prior.share)
    low, high = at(prior.least(run))[1], at(prior.share + prior.spread)[1]
    if measured_tokens_per_s:
        rates = (measured_tokens_per_s,) * 3
        return ThroughputEstimate(*rates, compute_s, link_s, moved_bytes(task), measured=True)
    return ThroughputEstimate(likely, low, high, compute_s, link_s, moved_bytes(task))


def utilisation(task: Task, card: Card, tokens_per_s: float) -> float:
    """The share of the dense peak that `tokens_per_s` of all GPUs is."""
    return tokens_per_s * flops_per_token(task) / (peak_flops(task, card) * task.run.gpus)
