"""The `spotd.model` block: the model and training method, to estimate memory, time and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spotd.base.validation import key_text, validate_partly
from spotd.sizing.task import Task, TaskError, task_of
from spotd.spec.block import Block
from spotd.spec.document import SpecError, parse
from spotd.spec.findings import Findings

_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000_000)]


def parse_count(value: Any) -> Any:
    """Parse a number, or a text with a unit such as "300M" or "1.4B". Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number; write e.g. 300M or 1.4B")
    text = str(value).strip().lower().replace("_", "")
    unit = _UNITS.get(text[-1:], 0.0)
    try:
        number = float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        raise ValueError(f"{value!r} is not a number; write e.g. 300M or 1.4B") from None
    if not 0 < number < 1e18:
        raise ValueError(f"{value!r} is not possible; write e.g. 300M or 1.4B")
    return number


Tokens = Annotated[float, BeforeValidator(parse_count, json_schema_input_type=float | str)]


class ModelBlock(Block):
    """The model, by name, by dimensions or by a Hugging Face config, and how it is trained."""

    name: str | None = Field(default=None, description="Like llama-3-70b or Qwen/Qwen2.5-72B")
    config: dict[str, Any] | None = Field(
        default=None, description="The content of a Hugging Face config.json"
    )
    layers: PositiveInt | None = None
    hidden: PositiveInt | None = None
    heads: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    ffn: PositiveInt | None = None
    vocab: PositiveInt | None = None
    gated: bool | None = Field(default=None, description="MLP with three matrices; the default")
    tied: bool | None = Field(
        default=None, description="The output layer shares the embedding's weights"
    )
    method: Literal["full", "full-8bit", "8bit", "lora", "lora-8bit", "qlora"] = Field(
        default="full", description="full-8bit (8bit): 8-bit Adam; lora-8bit: an 8-bit base"
    )
    precision: Literal["mixed", "bf16", "fp8", "fp32"] | None = Field(
        default=None, description="mixed: fp32 weights and Adam; bf16: everything in bf16"
    )
    sharding: Literal["fsdp", "zero3", "zero2", "zero1", "none"] | None = None
    sequence: PositiveInt = Field(default=2048, description="Tokens per sequence, with padding")
    micro_batch: PositiveInt | None = Field(
        default=None, description="Sequences per GPU and micro-batch"
    )
    accumulation: PositiveInt | None = Field(
        default=None, description="Micro-batches for each optimizer step"
    )
    checkpointing: Literal["full", "selective", "none"] | None = Field(
        default=None, description="Activation checkpointing"
    )
    loss: Literal["plain", "compiled", "chunked"] | None = Field(
        default=None, description="chunked: Liger, torchtune; plain: logits all in fp32"
    )
    compiled: bool | None = Field(default=None, description="torch.compile, Liger or Unsloth")
    lora_rank: PositiveInt | None = None
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Dropout of the adapters' inputs; 0: none"
    )
    lora_targets: Literal["all", "attention", "qv"] | None = None
    quantiser: Literal["nf4", "nf4-dq", "int8", "torchao"] | None = Field(
        default=None,
        description="bitsandbytes: nf4, nf4-dq (double quantisation), int8 (as lora-8bit); torchao",
    )
    framework: Literal["transformers", "trl", "lightning", "torch"] = Field(
        default="transformers",
        description="For memory, its default counts for each option that is not given",
    )
    step_in_backward: bool | None = Field(
        default=None, description="Each gradient is freed with its layer"
    )
    offload: Literal["none", "optimizer", "all"] | None = Field(
        default=None, description="State that is offloaded to host memory"
    )
    offload_activations: bool | None = None
    tensor: PositiveInt = Field(default=1, description="Degree of tensor parallelism")
    context: PositiveInt = Field(default=1, description="Degree of context parallelism")
    loads_whole: bool | None = Field(
        default=None, description="Each GPU loads the whole model before it is sharded"
    )
    ragged: bool | None = Field(
        default=None, description="Batches of unequal length; true if example_tokens is set"
    )
    foreach: bool | None = Field(
        default=None, description="torch's AdamW without fused: a step copies all weights"
    )
    tokens: Tokens | None = Field(default=None, description="Total training tokens, like 1.4B")
    steps: PositiveInt | None = Field(
        default=None, description="Optimizer steps, instead of tokens"
    )
    example_tokens: Tokens | None = Field(
        default=None, description="Mean tokens per example, if not packed"
    )


def read_model_block(text: str) -> dict[str, Any]:
    """Return the keys set in `spotd.model` of a job file; empty without one. Raises SpecError."""
    document = parse(text)
    block = document.data.get("spotd")
    model_data = block.get("model") if isinstance(block, dict) else None
    if model_data is None:
        return {}
    model, problems = validate_partly(
        ModelBlock, dict(model_data) if isinstance(model_data, dict) else {}
    )
    findings = Findings()
    findings.problems += [
        (("spotd", "model", *path), replace(problem, where=key_text(("spotd", "model", *path))))
        for path, problem in problems
    ]
    check_model(model, findings)
    if findings.problems:
        raise SpecError(*findings.problems_with_lines(document))
    return model.model_dump(exclude_unset=True)


def read_deadline(text: str) -> str:
    """Return `spotd.deadline` of a job file as written, or "". Raises SpecError."""
    block = parse(text).data.get("spotd")
    return str(block.get("deadline") or "") if isinstance(block, dict) else ""


def task(block: ModelBlock) -> Task:
    """Return the training task that the block describes. Raises TaskError."""
    return task_of(block.model_dump(exclude_unset=True))


def check_model(block: ModelBlock | None, findings: Findings) -> None:
    """Report a block that does not describe a model that can be sized."""
    try:
        if block is not None:
            task(block)
    except TaskError as error:
        findings.refuse(("spotd", "model", error.field), error.text, error.fix)
