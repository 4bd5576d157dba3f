"""Well-known models by name, with the numbers of each model's published config.json."""

from __future__ import annotations

import re

from spotd.sizing.shape import NotCoveredError, Shape

# name: layers, hidden, heads, kv heads, head width, ffn, vocabulary [, ungated, tied, gelu_new,
# positions]
_UNGATED, _TIED, _GELU_NEW = "ungated", "tied", "gelu_new"
_ROWS: dict[str, tuple[int | str, ...]] = {
    "llama-2-7b": (32, 4096, 32, 32, 128, 11008, 32000),
    "llama-2-13b": (40, 5120, 40, 40, 128, 13824, 32000),
    "llama-2-70b": (80, 8192, 64, 8, 128, 28672, 32000),
    "llama-30b": (60, 6656, 52, 52, 128, 17920, 32000),
    "llama-65b": (80, 8192, 64, 64, 128, 22016, 32000),
    "codellama-34b": (48, 8192, 64, 8, 128, 22016, 32000),
    "llama-3-8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3-70b": (80, 8192, 64, 8, 128, 28672, 128256),
    "llama-3.1-405b": (126, 16384, 128, 8, 128, 53248, 128256),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, _TIED),
    "llama-3.2-3b": (28, 3072, 24, 8, 128, 8192, 128256, _TIED),
    "tinyllama-1.1b": (22, 2048, 32, 4, 64, 5632, 32000),
    "mistral-7b": (32, 4096, 32, 8, 128, 14336, 32000),
    "mistral-7b-v0.3": (32, 4096, 32, 8, 128, 14336, 32768),
    "mistral-nemo-12b": (40, 5120, 32, 8, 128, 14336, 131072),
    "mistral-small-24b": (40, 5120, 32, 8, 128, 32768, 131072),
    "mistral-large-123b": (88, 12288, 96, 8, 128, 28672, 32768),
    "yi-6b": (32, 4096, 32, 4, 128, 11008, 64000),
    "yi-34b": (60, 7168, 56, 8, 128, 20480, 64000),
    "qwen-1.8b": (24, 2048, 16, 16, 128, 5504, 151936),
    "qwen-7b": (32, 4096, 32, 32, 128, 11008, 151936),
    "qwen-14b": (40, 5120, 40, 40, 128, 13696, 152064),
    "qwen-72b": (80, 8192, 64, 64, 128, 24576, 152064),
    "qwen2.5-0.5b": (24, 896, 14, 2, 64, 4864, 151936, _TIED),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 128, 8960, 151936, _TIED),
    "qwen2.5-3b": (36, 2048, 16, 2, 128, 11008, 151936, _TIED),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 18944, 152064),
    "qwen2.5-14b": (48, 5120, 40, 8, 128, 13824, 152064),
    "qwen2.5-32b": (64, 5120, 40, 8, 128, 27648, 152064),
    "qwen2.5-72b": (80, 8192, 64, 8, 128, 29568, 152064),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151936, _TIED),
    "qwen3-1.7b": (28, 2048, 16, 8, 128, 6144, 151936, _TIED),
    "qwen3-4b": (36, 2560, 32, 8, 128, 9728, 151936, _TIED),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936),
    "qwen3-14b": (40, 5120, 40, 8, 128, 17408, 151936),
    "qwen3-32b": (64, 5120, 64, 8, 128, 25600, 151936),
    "gemma-2b": (18, 2048, 8, 1, 256, 16384, 256000, _TIED),
    "gemma-7b": (28, 3072, 16, 16, 256, 24576, 256000, _TIED),
    "gemma-2-2b": (26, 2304, 8, 4, 256, 9216, 256000, _TIED),
    "gemma-2-9b": (42, 3584, 16, 8, 256, 14336, 256000, _TIED),
    "gemma-2-27b": (46, 4608, 32, 16, 128, 36864, 256000, _TIED),
    "gemma-3-1b": (26, 1152, 4, 1, 256, 6912, 262144, _TIED),
    "gemma-3-4b": (34, 2560, 8, 4, 256, 10240, 262208, _TIED),
    "gemma-3-12b": (48, 3840, 16, 8, 256, 15360, 262208, _TIED),
    "gemma-3-27b": (62, 5376, 32, 16, 128, 21504, 262208, _TIED),
    "phi-1.5": (24, 2048, 32, 32, 64, 8192, 51200, _UNGATED, _GELU_NEW),
    "phi-2": (32, 2560, 32, 32, 80, 10240, 51200, _UNGATED, _GELU_NEW),
    "phi-3-mini": (32, 3072, 32, 32, 96, 8192, 32064),
    "phi-3-medium": (40, 5120, 40, 10, 128, 17920, 32064),
    "phi-4": (40, 5120, 40, 10, 128, 17920, 100352),
    "falcon-7b": (32, 4544, 71, 1, 64, 18176, 65024, _UNGATED, _TIED),
    "falcon-40b": (60, 8192, 128, 8, 64, 32768, 65024, _UNGATED, _TIED),
    "stablelm-alpha-3b": (16, 4096, 32, 32, 128, 16384, 50688, _UNGATED),
    "gpt-j-6b": (28, 4096, 16, 16, 256, 16384, 50400, _UNGATED, _GELU_NEW),
    "gpt-neox-20b": (44, 6144, 64, 64, 96, 24576, 50432, _UNGATED),
    "pythia-1.4b": (24, 2048, 16, 16, 128, 8192, 50304, _UNGATED),
    "pythia-2.8b": (32, 2560, 32, 32, 80, 10240, 50304, _UNGATED),
    "pythia-6.9b": (32, 4096, 32, 32, 128, 16384, 50432, _UNGATED),
    "pythia-12b": (36, 5120, 40, 40, 128, 20480, 50688, _UNGATED),
    "opt-1.3b": (24, 2048, 32, 32, 64, 8192, 50272, _UNGATED, _TIED, 2050),
    "opt-6.7b": (32, 4096, 32, 32, 128, 16384, 50272, _UNGATED, _TIED, 2050),
    "opt-13b": (40, 5120, 40, 40, 128, 20480, 50272, _UNGATED, _TIED, 2050),
    "opt-30b": (48, 7168, 56, 56, 128, 28672, 50272, _UNGATED, _TIED, 2050),
    "opt-66b": (64, 9216, 72, 72, 128, 36864, 50272, _UNGATED, _TIED, 2050),
    "gpt3-175b": (96, 12288, 96, 96, 128, 49152, 50257, _UNGATED, _TIED, 2048),
    "internlm2-7b": (32, 4096, 32, 8, 128, 14336, 92544),
    "internlm2-20b": (48, 6144, 48, 8, 128, 16384, 92544),
    "starcoder2-15b": (40, 6144, 48, 4, 128, 24576, 49152, _UNGATED),
    "gpt2": (12, 768, 12, 12, 64, 3072, 50257, _UNGATED, _GELU_NEW, _TIED, 1024),
    "gpt2-medium": (24, 1024, 16, 16, 64, 4096, 50257, _UNGATED, _GELU_NEW, _TIED, 1024),
    "gpt2-large": (36, 1280, 20, 20, 64, 5120, 50257, _UNGATED, _GELU_NEW, _TIED, 1024),
    "gpt2-xl": (48, 1600, 25, 25, 64, 6400, 50257, _UNGATED, _GELU_NEW, _TIED, 1024),
    "mpt-1b": (24, 2048, 16, 16, 128, 8192, 50368, _UNGATED, _TIED, 2048),
    "mpt-3b": (32, 2560, 20, 20, 128, 10240, 50368, _UNGATED, _TIED, 2048),
    "mpt-7b": (32, 4096, 32, 32, 128, 16384, 50368, _UNGATED, _TIED, 2048),
    "mpt-13b": (40, 5120, 40, 40, 128, 20480, 50368, _UNGATED, _TIED, 2048),
    "mpt-30b": (48, 7168, 56, 56, 128, 28672, 50368, _UNGATED, _TIED, 2048),
    "mpt-70b": (80, 8192, 64, 64, 128, 32768, 50368, _UNGATED, _TIED, 2048),
    "deepseek-llm-7b": (30, 4096, 32, 32, 128, 11008, 102400),
    "deepseek-llm-67b": (95, 8192, 64, 8, 128, 22016, 102400),
    "olmo-2-7b": (32, 4096, 32, 32, 128, 11008, 100352),
    "olmo-2-13b": (40, 5120, 40, 40, 128, 13824, 100352),
    "olmo-2-32b": (64, 5120, 40, 8, 128, 27648, 100352),
    "smollm2-135m": (30, 576, 9, 3, 64, 1536, 49152, _TIED),
    "smollm2-360m": (32, 960, 15, 5, 64, 2560, 49152, _TIED),
    "smollm2-1.7b": (24, 2048, 32, 32, 64, 8192, 49152, _TIED),
}
# Another name of the same shape.
_SAME = {
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
    "codellama-7b": "llama-2-7b",
    "codellama-13b": "llama-2-13b",
    "codellama-70b": "llama-2-70b",
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.3-70b": "llama-3-70b",
    "llama-3-405b": "llama-3.1-405b",
    "qwen2-0.5b": "qwen2.5-0.5b",
    "qwen2-1.5b": "qwen2.5-1.5b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "qwen1.5-7b": "qwen-7b",
    "gpt2-small": "gpt2",
    "llama-33b": "llama-30b",
}
_EXPERTS = re.compile(
    r"mixtral|moe|deepseek-(v[23]|r1)|dbrx|grok|gpt-oss|-a\d+b\b|llama-4|\d+x\d+b"
)
_SIGHT = re.compile(r"vision|llava|-vl\b|pixtral|paligemma|qwen\d*(\.\d)?-vl")
_SUFFIX = re.compile(
    r"-(instruct|chat|hf|base|it|pt|preview|bnb-4bit|awq|gptq|fp8|\d+k|v\d+(\.\d+)*|2\d{3})$"
)
_INSIDE = re.compile(r"-(instruct|coder|math)(?=-)")
_DISTILLED = {"qwen": "qwen2.5"}  # what DeepSeek's distilled ones were made of


def _shape(name: str) -> Shape:
    row = _ROWS[name]
    numbers = [value for value in row if isinstance(value, int)]
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab, *positions = numbers
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        gated=_UNGATED not in row,
        tied=_TIED in row,
        positions=positions[0] if positions else 0,
        gelu_new=_GELU_NEW in row,
    )


def names() -> list[str]:
    """Return every name that `find` knows, in order."""
    return sorted([*_ROWS, *_SAME])


def find(name: str) -> Shape:
    """Return a model's shape by name: "llama-3-70b", or as on Hugging Face.

    Hugging Face writes "meta-llama/Meta-Llama-3.1-70B-Instruct". Raises NotCoveredError for a
    mixture of experts or a vision model, KeyError for an unknown name.
    """
    short = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").removeprefix("meta-")
    _, distilled, made_of = short.partition("-distill-")
    if distilled:
        kind = made_of.partition("-")[0]
        short = made_of.replace(kind, _DISTILLED.get(kind, "llama-3"), 1)
    if _EXPERTS.search(short):
        raise NotCoveredError(f"{name} is a mixture of experts, which is not covered")
    if _SIGHT.search(short):
        raise NotCoveredError(f"{name} reads images, which is not covered")
    short = _INSIDE.sub("", re.sub(r"^llama(\d)", r"llama-\1", short))
    while True:
        for known in (short, _SAME.get(short, "")):
            if known in _ROWS:
                return _shape(known)
        cut = _SUFFIX.search(short)
        if cut is None:
            raise KeyError(name)
        short = short[: cut.start()]
