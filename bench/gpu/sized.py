"""Training runs whose memory and pace are measured, and one of them.

The models are Hugging Face's own classes with random weights, in the shape that the catalogue has
for their name; AdamW is torch's fused one unless the run says `foreach`, adapters are
peft's, 8-bit and NF4 are bitsandbytes', "chunked" with "compiled" is Liger.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from spotd.sizing import catalog
from spotd.sizing.run import Run
from spotd.sizing.shape import Shape

STEPS, COUNTED_FROM = 7, 3
_KINDS = {
    "llama": "llama", "tinyllama": "llama", "mistral": "mistral", "qwen2.5": "qwen2",
    "qwen3": "qwen3", "pythia": "gpt_neox", "gpt2": "gpt2", "phi": "phi", "opt": "opt",
    "gemma": "gemma", "smollm2": "llama", "yi": "llama", "deepseek": "llama",
}  # fmt: skip
_ATTENTION = {
    "gpt_neox": (["query_key_value"], ["query_key_value", "dense"]),
    "gpt2": (["c_attn"], ["c_attn", "c_proj"]),
}
_SEED = 1


@dataclass(frozen=True)
class Case:
    model: str
    run: Run

    @property
    def label(self) -> str:
        """What differs of `Run()`, in words."""
        usual = asdict(Run())
        parts = [
            f"{key} {value}".removesuffix(" True").replace("_", " ")
            for key, value in asdict(self.run).items()
            if value != usual[key]
        ]
        return ", ".join(parts) or "as by default"


def case(model: str, **words: Any) -> Case:
    return Case(model, Run(**words))


_LIGER: dict[str, Any] = {"loss": "chunked", "compiled": True}
_PLAIN: dict[str, Any] = {"loss": "plain"}
# Chosen before any was measured: every method, in mixed precision and bf16, with full checkpointing
# and none, and a plain and a chunked loss; of models of several families. Not run: fp32, fp8, the
# loss "compiled", selective checkpointing, offloading.
CASES = [
    case("llama-3.2-1b", micro_batch=4, **_PLAIN),
    case("llama-3.2-1b", micro_batch=2, checkpointing="none", **_PLAIN),
    case("llama-3.2-1b", micro_batch=4, sequence=4096, checkpointing="none", **_LIGER),
    case("llama-3.2-1b", micro_batch=2, precision="bf16", checkpointing="none", **_PLAIN),
    case("llama-3.2-3b", precision="bf16", sequence=4096, micro_batch=2, **_PLAIN),
    case("llama-3.2-3b", **_PLAIN),
    case("qwen2.5-1.5b", foreach=True, sequence=1024, micro_batch=4, **_PLAIN),
    case("qwen2.5-7b", precision="bf16", sequence=4096, **_LIGER),
    case("qwen3-1.7b", method="full-8bit", micro_batch=2, **_PLAIN),
    case("qwen3-4b", method="full-8bit", precision="bf16", sequence=4096, **_PLAIN),
    case("tinyllama-1.1b", micro_batch=8, checkpointing="none", **_PLAIN),
    case("pythia-1.4b", micro_batch=4, checkpointing="none", **_PLAIN),
    case("gpt2-xl", sequence=1024, micro_batch=8, checkpointing="none", **_PLAIN),
    case("llama-3-8b", method="lora", micro_batch=2, **_PLAIN),
    case("llama-3-8b", method="lora", lora_targets="qv", sequence=1024, checkpointing="none",
         **_PLAIN),
    case("llama-2-13b", method="lora", sequence=4096, **_PLAIN),
    case("mistral-7b-v0.3", method="lora", sequence=4096, micro_batch=4, **_LIGER),
    case("pythia-6.9b", method="lora", lora_targets="attention", micro_batch=2, **_PLAIN),
    case("llama-3-8b", method="qlora", micro_batch=4, **_PLAIN),
    case("qwen2.5-14b", method="qlora", quantiser="nf4", **_PLAIN),
    case("qwen2.5-7b", method="qlora", lora_rank=64, sequence=4096, micro_batch=2, **_LIGER),
]  # fmt: skip
# Chosen after the formula was mended by what those showed, and before any of these was measured.
LATER = [
    case("llama-3-8b", precision="bf16", **_PLAIN),
    case("llama-3-8b", precision="bf16", sequence=8192, micro_batch=2, **_PLAIN),
    case("llama-2-7b", **_PLAIN),
    case("llama-3.2-3b", micro_batch=8, checkpointing="none", **_PLAIN),
    case("qwen3-0.6b", micro_batch=8, checkpointing="none", **_PLAIN),
    case("smollm2-1.7b", micro_batch=4, accumulation=2, **_PLAIN),
    case("phi-2", precision="bf16", micro_batch=2, checkpointing="none", **_PLAIN),
    case("opt-1.3b", micro_batch=4, checkpointing="none", **_PLAIN),
    case("gemma-2b", micro_batch=2, **_PLAIN),
    case("qwen2.5-3b", precision="bf16", foreach=True, sequence=4096, **_PLAIN),
    case("yi-6b", method="lora", checkpointing="none", **_LIGER),
    case("deepseek-llm-7b", method="lora", lora_targets="attention", sequence=4096, micro_batch=2,
         **_PLAIN),
    case("mistral-nemo-12b", method="lora", sequence=8192, **_LIGER),
    case("qwen3-8b", method="qlora", micro_batch=2, lora_dropout=0.0, **_PLAIN),
    case("gpt2-large", precision="bf16", sequence=1024, micro_batch=16, checkpointing="none",
         **_PLAIN),
    case("llama-3-8b", method="lora-8bit", micro_batch=2, **_PLAIN),
]  # fmt: skip


def measure(chosen: Case, device: torch.device) -> dict[str, Any]:
    """GiB that the allocator gave out and held at most, GiB of the GPU in use by the driver, and
    tokens per second in the median; None of each where memory ran out."""
    shape = catalog.find(chosen.model)
    on_gpu = device.type == "cuda"
    try:
        samples = _train(chosen.run, shape, device)
    except torch.cuda.OutOfMemoryError:
        return {"allocated": None, "reserved": None, "used": None, "tokens_per_s": None}
    found: dict[str, Any] = {
        "tokens_per_s": round(chosen.run.tokens * chosen.run.accumulation / median(samples), 1)
    }
    if on_gpu:
        free, total = torch.cuda.mem_get_info(device)
        found |= {
            "allocated": _gib(torch.cuda.max_memory_allocated(device)),
            "reserved": _gib(torch.cuda.max_memory_reserved(device)),
            "used": _gib(total - free),
        }
    return found


def _gib(count: int) -> float:
    return round(count / 2**30, 3)


def _train(run: Run, shape: Shape, device: torch.device) -> list[float]:
    """Seconds of each step that counts."""
    torch.manual_seed(_SEED)
    model = make(run, shape, device)
    optimizer = _optimizer(run, model)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of loading, which is not what is foretold
        torch.cuda.reset_peak_memory_stats(device)
    samples = []
    for number in range(STEPS):
        rows = torch.randint(shape.vocab, (run.micro_batch, run.sequence), device=device)
        _wait(device)
        began_s = time.perf_counter()
        for _ in range(run.accumulation):
            with _arithmetic(run, device):
                loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait(device)
        if number >= COUNTED_FROM:
            samples.append(time.perf_counter() - began_s)
    return samples


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _arithmetic(run: Run, device: torch.device) -> AbstractContextManager[Any]:
    if run.precision == "mixed":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def make(run: Run, shape: Shape, device: torch.device) -> nn.Module:
    """The model as `run` trains it, on `device`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = _KINDS[shape.name.partition("-")[0]]
    if run.compiled:
        from liger_kernel.transformers import _apply_liger_kernel

        _apply_liger_kernel(kind)
    config = AutoConfig.for_model(kind, **_words(kind, shape), use_cache=False)
    wide = run.precision == "fp32" or (run.precision == "mixed" and not run.frozen)
    whole = torch.float32 if wide else torch.bfloat16
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=whole, attn_implementation="sdpa"
        )
    model.train()
    if run.quantised:
        _quantise(model, run, device)
    if run.checkpointing == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if run.frozen:
        model = _adapted(model, run, kind)
    return model  # type: ignore[no-any-return]


def _words(kind: str, shape: Shape) -> dict[str, Any]:
    """Of a config.json."""
    if kind == "gpt2":
        return {
            "n_embd": shape.hidden, "n_head": shape.heads, "n_layer": shape.layers,
            "vocab_size": shape.vocab, "n_positions": shape.positions,
        }  # fmt: skip
    if kind == "opt":
        return {
            "hidden_size": shape.hidden, "word_embed_proj_dim": shape.hidden,
            "num_attention_heads": shape.heads, "num_hidden_layers": shape.layers,
            "ffn_dim": shape.ffn, "vocab_size": shape.vocab, "max_position_embeddings": 2048,
        }  # fmt: skip
    words: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": shape.tied,
    }
    if kind not in ("gpt_neox", "phi"):
        words |= {"num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
    return words


def _adapted(model: Any, run: Run, kind: str) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    if kind in _ATTENTION:
        few, all_ = _ATTENTION[kind]
        targets: Any = few if run.lora_targets == "qv" else all_
    else:
        targets = {
            "qv": ["q_proj", "v_proj"],
            "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "all": "all-linear",
        }[run.lora_targets]
    model.enable_input_require_grads()  # or checkpointed layers would see nothing to train
    words = LoraConfig(
        r=run.lora_rank,
        lora_alpha=2 * run.lora_rank,
        lora_dropout=run.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, words, autocast_adapter_dtype=run.precision != "bf16")


def _quantise(model: nn.Module, run: Run, device: torch.device) -> None:
    """The layers' matrices, each in its place."""
    import bitsandbytes

    for parent, name, old in list(_matrices(model)):
        if run.method == "qlora":
            new: Any = bitsandbytes.nn.Linear4bit(
                old.in_features,
                old.out_features,
                old.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=run.quantiser == "nf4-dq",
                quant_type="nf4",
                device="meta",
            )
            new.weight = bitsandbytes.nn.Params4bit(
                old.weight.data.cpu(),
                requires_grad=False,
                compress_statistics=run.quantiser == "nf4-dq",
                quant_type="nf4",
                module=new,
            )
        else:
            new = bitsandbytes.nn.Linear8bitLt(
                old.in_features,
                old.out_features,
                old.bias is not None,
                has_fp16_weights=False,
                device="meta",
            )
            new.weight = bitsandbytes.nn.Int8Params(
                old.weight.data.cpu(), requires_grad=False, has_fp16_weights=False
            )
        new.bias = old.bias
        setattr(parent, name, new.to(device))


def _matrices(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    head = model.get_output_embeddings()  # type: ignore[operator]
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) and child is not head:
                yield parent, name, child


def _optimizer(run: Run, model: nn.Module) -> Any:
    trained = [one for one in model.parameters() if one.requires_grad]
    if run.method == "full-8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(trained, lr=1e-5)
    return torch.optim.AdamW(trained, lr=1e-5, fused=not run.foreach)
