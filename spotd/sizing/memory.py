"""Bytes on one GPU during training, part by part. docs/rightsizing.md derives each formula."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotd.sizing.run import Run
from spotd.sizing.shape import Shape

GIB = 1 << 30
CONTEXT_BYTES = 1e9  # CUDA's context, its libraries' workspaces and NCCL's buffers
# Bytes of a logit at the loss: bf16, then in fp32 the log-softmax, its gradient and the logits'
# gradient, when the loss upcasts all of them; bf16 and its gradient when that is fused; an eighth
# of the first when they are taken in eight pieces.
_LOGIT_BYTES = {"plain": 14.0, "compiled": 4.0, "chunked": 1.75}
_NF4 = 0.5
# The scale of each block of 64 weights, in bytes a weight: fp32, or 8 bits with a scale for 256.
_SCALES = {"nf4": 4 / 64, "nf4-dq": 1 / 64 + 4 / 64 / 256, "torchao": 1 / 64 + 4 / 64 / 256}
# DeepSpeed's two communication buckets, each of 5e8 elements of two bytes by its defaults
# (allgather_bucket_size, reduce_bucket_size).
_BUCKETS_BYTES = 2 * 5e8 * 2
FITS_WITHIN = 1.05  # room for what an allocator splits badly, by published pairs of both readings
CARD_SHARE = 0.99  # of a card's memory
ERROR = 0.07  # of the formula on average, by bench/sizing.py: what misses by less is tight
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU that needs most. `state` is weights, gradients and optimizer; `gather` what
    sharding puts together for a moment, and buckets of gradients; `activations` what the backward
    pass needs beyond the room that gradients take when it is done; `logits` the loss; `context`
    what no framework counts; `allocated` the most that is in use at one moment."""

    state: float
    gather: float
    activations: float
    logits: float
    context: float = CONTEXT_BYTES
    allocated: float = 0.0

    @property
    def reserved(self) -> float:
        """Return the bytes that the framework's allocator holds at its peak, in use or not."""
        return self.state + self.gather + self.activations + self.logits

    @property
    def total(self) -> float:
        """Return the bytes of the GPU's memory as nvidia-smi shows them."""
        return self.reserved + self.context


def verdict(memory: Memory, card_gib: float) -> str:
    """Return whether it fits a GPU of `card_gib`; "tight" is within the formula's own error."""
    room = CARD_SHARE * card_gib * GIB
    if memory.total * FITS_WITHIN <= room:
        return FITS
    return TIGHT if memory.total * (1 - ERROR) <= room else DOES_NOT_FIT


def naive_bytes(shape: Shape) -> float:
    """The rule of thumb of 4 bytes a parameter: of all GPUs together, and of no training run."""
    return 4.0 * shape.parameters


def adapter_parameters(shape: Shape, run: Run) -> int:
    """Return LoRA's parameters, rank x (inputs + outputs) of each adapted matrix, else 0."""
    if not run.frozen:
        return 0
    h, q, kv, f = shape.hidden, shape.q_width, shape.kv_width, shape.ffn
    widths = (h + q) + (h + kv)  # query and value
    if run.lora_targets != "qv":
        widths += (h + kv) + (q + h)
    if run.lora_targets == "all":
        widths += (3 if shape.gated else 2) * (h + f)
    return shape.layers * run.lora_rank * widths


def estimate(shape: Shape, run: Run) -> Memory:
    """Return the peak of one training step on the GPU that needs most.

    Gradients appear while activations disappear and reuse their room: the larger counts, except if
    gradients outlive a micro-batch. The loss is over by then. Still, an allocator holds both: the
    few large blocks of logits do not fit among those of a step's gradients and of the optimizer's
    state, which the first step put where its logits had been. Of what is gathered, the larger
    counts: the output layer with its gradient, or two layers.
    """
    per_layer = _layer_bytes(shape, run) * run.tokens / run.tensor
    kept_bytes = _kept_bytes(shape, run)
    working = 0.0 if run.checkpointing == "none" else per_layer
    # The MLP's gradients exist beside all that its backward pass reads.
    working += 2 * _width(run) * shape.ffn * run.tokens / run.tensor
    if run.tensor > 1:  # two inputs gathered and an output before it is scattered, all whole
        working += 3 * _width(run) * shape.hidden * run.tokens
    logits = run.tokens * shape.vocab * _LOGIT_BYTES[run.loss] / run.tensor
    # Blocks of one length do not serve the next: the allocator keeps both.
    kinds = 2 if run.ragged else 1
    state, late = _state_bytes(shape, run), _late_gradients(shape, run)
    gather = max(_gathers(shape, run)) + _buckets(shape, run)
    forward = kinds * kept_bytes + _casts(shape, run)
    activations = kinds * working + max(0.0, forward - late)
    at_loss = state - late + gather + forward + kinds * logits
    allocated = max(at_loss, state + gather + activations)
    beside = max(_loading(shape, run) - state, _step_bytes(shape, run) + _ddp_buckets(shape, run))
    memory = Memory(state, gather, activations, kinds * logits, CONTEXT_BYTES, allocated)
    if state + beside > memory.reserved:
        return Memory(state, beside, 0.0, 0.0, CONTEXT_BYTES, state + beside)
    return replace(memory, allocated=max(allocated, state + beside))


def _width(run: Run) -> int:
    """Bytes of a number that is computed with."""
    return 4 if run.precision == "fp32" else 2


def _autocast(run: Run) -> bool:
    """Return whether fp32 weights are cast where they are used, with fp32 between layers.

    FSDP casts once, and bf16 flows between layers.
    """
    sharded = run.shards > 1 and run.sharding in ("fsdp", "zero3")
    cast = run.precision in ("mixed", "fp8") and not run.sharding.startswith("zero")
    return cast and not run.frozen and not sharded and run.offload != "all"


def _casts(shape: Shape, run: Run) -> float:
    """Autocast's copies of the weights, which the backward pass reads."""
    return _share(shape, run) * 2 if _autocast(run) else 0.0


def _late_gradients(shape: Shape, run: Run) -> float:
    """Return the bytes of gradients that do not exist before a backward pass.

    All of them for a step with one micro-batch; none if DeepSpeed keeps them, or if they are
    outside of the GPU. DDP's buckets always exist beside them: see `_buckets`.
    """
    if run.frozen or run.step_in_backward or run.offload == "all" or run.accumulation > 1:
        return 0.0
    if run.sharding.startswith("zero"):
        return 0.0
    return _share(shape, run) * full_bytes(run)[1] / (1 if run.sharding == "none" else run.shards)


def _share(shape: Shape, run: Run) -> float:
    """Return the share of all parameters on one tensor-parallel part."""
    return shape.parameters / run.tensor


def _base_bytes(shape: Shape, run: Run) -> float:
    """Return the mean bytes of a frozen base's parameter; only layers' matrices are quantised."""
    width = _width(run)
    if run.method == "lora":
        return width
    linear = shape.layers * shape.linear_parameters
    each = 1.0 if run.method == "lora-8bit" else _NF4
    return (linear * each + (shape.parameters - linear) * width) / shape.parameters


def _state_bytes(shape: Shape, run: Run) -> float:
    parameters = _share(shape, run)
    if run.frozen:
        adapters = adapter_parameters(shape, run) / run.tensor
        whole = run.shards if run.sharding in ("fsdp", "zero3") else 1
        spread = parameters * _base_bytes(shape, run) + adapters * adapter_bytes(run)
        return _scales(shape, run, whole) + (0.0 if run.offload == "all" else spread / whole)
    weight, gradient, optimizer = full_bytes(run)
    if run.step_in_backward:
        gradient = 0.0
    if run.offload != "none":
        optimizer = 0.0
    if run.offload == "all":
        weight = gradient = 0.0
    whole = {"none": 0, "zero1": 1, "zero2": 2}.get(run.sharding, 3)  # how much is spread
    parts = (optimizer, gradient, weight)
    return parameters * (sum(parts[:whole]) / run.shards + sum(parts[whole:]))


def adapter_bytes(run: Run) -> float:
    """Bytes of an adapter's parameter: weight, gradient, two moments; fp32 unless all is bf16."""
    return 8.0 if run.precision == "bf16" else 16.0


def _scales(shape: Shape, run: Run, shards: int) -> float:
    """Return the bytes of NF4's scales.

    bitsandbytes keeps them beside the weights, where sharding and offloading do not see them;
    torchao's go with the weights.
    """
    if run.method != "qlora":
        return 0.0
    scales = shape.layers * shape.linear_parameters * _SCALES[run.quantiser] / run.tensor
    if run.quantiser != "torchao":
        return scales
    return 0.0 if run.offload == "all" else scales / shards


def full_bytes(run: Run) -> tuple[float, float, float]:
    """Bytes of a trained parameter: weight, gradient, and Adam with what master weight it keeps."""
    small = run.method == "full-8bit"
    if run.precision == "bf16":
        return 2.0, 2.0, 2.0 if small else 4.0
    moments = 2.0 if small else 8.0
    if run.sharding.startswith("zero"):
        return 2.0, 4.0, 4.0 + moments  # the master weight is the optimizer's
    return 4.0, 4.0, moments


def _gathers(shape: Shape, run: Run) -> tuple[float, float]:
    """Bytes put together for a moment: at the loss, and in a layer's backward pass."""
    width = _width(run)
    layer = shape.layer_parameters / run.tensor
    head = shape.vocab * shape.hidden / run.tensor
    biggest = max(shape.ffn, shape.q_width) * shape.hidden / run.tensor
    each = _base_bytes(shape, run) if run.quantised else width
    unpacked = biggest * width if run.quantised else 0.0
    trained = 0 if run.frozen else width
    if run.shards == 1 or run.sharding not in ("fsdp", "zero3"):
        if run.offload == "all":
            return head * (width + trained), 2 * layer * each + layer * trained + unpacked
        grads = (head * trained, layer * trained) if run.step_in_backward else (0.0, 0.0)
        return grads[0], unpacked + grads[1]
    at_loss = head * (width + trained) + layer * each
    # This layer and the next one, this one's gradient and the buffer that it is reduced in.
    in_layer = 2 * layer * each + 2 * layer * trained + unpacked
    return at_loss, in_layer


def _buckets(shape: Shape, run: Run) -> float:
    """Return the bytes of buckets in which gradients are sent: DDP's, or DeepSpeed's.

    DeepSpeed's are no larger than the model.
    """
    if not run.sharding.startswith("zero"):
        return _ddp_buckets(shape, run)
    return min(_BUCKETS_BYTES, 4.0 * shape.parameters)


def _ddp_buckets(shape: Shape, run: Run) -> float:
    """Return the bytes of DDP's buckets: as large as all gradients, and retained between steps.

    By torch's documentation `gradient_as_bucket_view=True`, which is not the default, saves the
    size of the gradients. No full training with DDP was measured.
    """
    if run.sharding != "none" or run.shards == 1 or run.frozen or run.offload == "all":
        return 0.0
    return _share(shape, run) * full_bytes(run)[1]


def _layer_bytes(shape: Shape, run: Run) -> float:
    """Return the bytes per token that a layer's backward pass reads, without checkpointing.

    Autograd keeps a matrix product's input only if its weight is trained; bitsandbytes keeps it for
    quantised weights as well.
    """
    e, h, q, f = _width(run), shape.hidden, shape.q_width, shape.ffn
    kv = shape.kv_width if run.compiled else q  # eager attention repeats keys and values
    whole, cast = not run.frozen, _autocast(run) and not run.compiled
    # Eager RMSNorm keeps an fp32 copy of its input; LayerNorm is one kernel, and does not.
    residual = 2 * h * (4 if cast or (shape.gated and not run.compiled) else e)
    attention = e * (2 * q + 2 * kv)
    mlp = e * f * ((3 if shape.gated else 1) - (run.compiled and shape.gated and not whole))
    if shape.gelu_new and not run.compiled:
        # x for its cube, tanh, 0.5 x and 1 + tanh; autocast has all of it but 0.5 x in fp32.
        mlp = (3 * 4 + e if cast else 4 * e) * f
        if shape.gated:  # what comes of it, and what that is multiplied with
            mlp += ((4 if cast else e) + e) * f
    adapted = run.lora_targets
    reads_mlp = whole or run.quantised or adapted == "all"
    total = residual + attention + mlp + e * h + (e * (h + f) if reads_mlp else 0)
    if whole and shape.gated and not run.compiled:
        total += 2 * (4 if cast else e) * h  # the normalised input, for a norm's weight's gradient
        total += 3 * e * h * cast  # query, key and value, gate and up each cast their input
    if run.frozen and run.lora_dropout:
        # Dropout before each adapter keeps what it let through, and its mask.
        inputs = {"qv": 2 * h, "attention": 3 * h + q, "all": 5 * h + q + f}[adapted]
        total += (e + 1) * inputs
    return total


def _kept_bytes(shape: Shape, run: Run) -> float:
    """Return the activations retained from the forward pass, of all layers on this GPU."""
    e, h = _width(run), shape.hidden
    between = 4 if _autocast(run) else e
    if run.checkpointing == "full":
        each = float(between * h)
    elif run.checkpointing == "selective":
        # The layer's input, attention's output, and every second product: query, value, one of the
        # MLP's, and its output.
        each = between * h + e * (1.0 * h + 2 * shape.q_width + shape.kv_width + shape.ffn)
    else:
        each = _layer_bytes(shape, run)
    if run.method == "lora-8bit" and run.checkpointing != "none":
        # bitsandbytes' product keeps its input where torch's checkpointing does not see it, cast
        # anew for each matrix (measured.json: 32 GiB of Llama 3 8B, and not 19).
        each += e * (5 * h + shape.q_width + shape.ffn)
    layers = 2 if run.offload_activations else shape.layers
    return each * layers * run.tokens / run.tensor


def _step_bytes(shape: Shape, run: Run) -> float:
    """The copies of the optimizer's step, of the width of the weights that it changes."""
    if not run.foreach or run.frozen or run.step_in_backward:
        return 0.0
    width = 2 if run.precision == "bf16" else 4
    spread = run.shards if run.sharding != "none" else 1
    return _share(shape, run) * width / spread


def _loading(shape: Shape, run: Run) -> float:
    """Return the bytes of the whole model beside its shard, if each GPU loads it first."""
    if not run.loads_whole or run.shards == 1:
        return 0.0
    width = 2 if run.frozen or run.precision == "bf16" else 4
    return shape.parameters * width * (1 + 1 / run.shards)
