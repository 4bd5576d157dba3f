"""How a model is trained, as far as memory and speed depend on it."""

from __future__ import annotations

from dataclasses import dataclass

METHODS = ("full", "full-8bit", "lora", "lora-8bit", "qlora")
PRECISIONS = ("mixed", "bf16", "fp8", "fp32")
SHARDINGS = ("fsdp", "zero3", "zero2", "zero1", "none")
CHECKPOINTINGS = ("full", "selective", "none")
LOSSES = ("plain", "compiled", "chunked")
TARGETS = ("all", "attention", "qv")
OFFLOADS = ("none", "optimizer", "all")
QUANTISERS = ("nf4", "nf4-dq", "torchao")


@dataclass(frozen=True)
class Run:
    """One training run on `gpus` GPUs.

    `precision` is of weights and optimizer: "mixed" is fp32 weights, gradients and Adam with bf16
    arithmetic, "bf16" all of it in bf16, "fp8" mixed with matrices multiplied in FP8. `sharding`
    says what is spread over the GPUs: "fsdp" and "zero3" everything, "zero2" gradients and
    optimizer, "zero1" the optimizer, "none" nothing. `checkpointing` is of activations: "full"
    keeps each layer's input, "selective" every second matrix product as well (torchtitan's "op"),
    "none" everything. `loss` is how logits become a loss: "plain" upcasts all of them, "compiled"
    fuses it (torch.compile), "chunked" takes them piece by piece (Liger, torchtune). `compiled`:
    norms and activations are fused (torch.compile, Liger, Unsloth). `accumulation` counts the
    micro-batches of an optimizer step: gradients outlive all but the last. `lora_dropout` is a
    share; 0: adapters have none. `tensor` and `context`
    are degrees of parallelism besides. `offload` keeps state in the machine's memory.
    `quantiser` is of QLoRA: bitsandbytes' NF4 with fp32 scales or double-quantised ones ("nf4-dq"),
    which sharding leaves whole on each GPU, or torchao's, which it spreads with the weights.
    `loads_whole`: each GPU loads the whole model before it is sharded. `ragged`: batches are as
    long as their longest example, so that each has another length. `foreach`: the optimizer is
    torch's default on GPUs, which copies all weights for a step, and not the fused one.
    """

    method: str = "full"
    gpus: int = 1
    sequence: int = 2048
    micro_batch: int = 1
    accumulation: int = 1
    precision: str = "mixed"
    sharding: str = "fsdp"
    checkpointing: str = "full"
    loss: str = "chunked"
    compiled: bool = False
    lora_rank: int = 16
    lora_dropout: float = 0.05
    lora_targets: str = "all"
    quantiser: str = "nf4-dq"
    step_in_backward: bool = False
    offload: str = "none"
    offload_activations: bool = False
    tensor: int = 1
    context: int = 1
    loads_whole: bool = False
    ragged: bool = False
    foreach: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for an impossible run."""
        for field, known in (
            ("method", METHODS), ("precision", PRECISIONS), ("sharding", SHARDINGS),
            ("checkpointing", CHECKPOINTINGS), ("loss", LOSSES), ("lora_targets", TARGETS),
            ("offload", OFFLOADS), ("quantiser", QUANTISERS),
        ):  # fmt: skip
            if (value := getattr(self, field)) not in known:
                raise ValueError(f"{field} must be one of {', '.join(known)}, not {value!r}")
        counts = ("gpus", "sequence", "micro_batch", "accumulation", "lora_rank", "tensor")
        for field in (*counts, "context"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)}")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout must be from 0 to below 1, not {self.lora_dropout}")
        if self.step_in_backward and self.accumulation > 1:  # no gradient is left to add to
            raise ValueError(
                f"accumulation must be 1 where step_in_backward is set, not {self.accumulation}"
            )
        if self.gpus % (self.tensor * self.context):
            raise ValueError(
                f"gpus must be a multiple of tensor x context ({self.tensor} x {self.context}), "
                f"not {self.gpus}"
            )

    @property
    def frozen(self) -> bool:
        """Return whether the base is frozen and adapters are trained."""
        return self.method in ("lora", "lora-8bit", "qlora")

    @property
    def quantised(self) -> bool:
        return self.method in ("lora-8bit", "qlora")

    @property
    def shards(self) -> int:
        """Over how many GPUs the state of one tensor-parallel part is spread."""
        return self.gpus // self.tensor

    @property
    def replicas(self) -> int:
        """Return how many micro-batches are trained side by side."""
        return self.gpus // (self.tensor * self.context)

    @property
    def tokens(self) -> int:
        """Return the tokens of one micro-batch on one GPU."""
        return self.micro_batch * self.sequence // self.context
