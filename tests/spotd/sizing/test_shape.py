"""Parameters of published models, and shapes from their config.json."""

from __future__ import annotations

import pytest

from spotd.sizing import cards, catalog
from spotd.sizing.shape import NotCoveredError, of_config

# As their makers publish them, in billions.
PUBLISHED = {
    "llama-2-7b": 6.738, "llama-2-13b": 13.016, "llama-2-70b": 68.977, "codellama-34b": 33.744,
    "llama-3-8b": 8.030, "llama-3-70b": 70.554, "llama-3.1-405b": 405.85, "llama-3.2-1b": 1.236,
    "llama-3.2-3b": 3.213, "mistral-7b": 7.242, "mistral-nemo-12b": 12.248, "yi-34b": 34.389,
    "qwen-7b": 7.721, "qwen-72b": 72.288, "qwen2.5-0.5b": 0.494, "qwen2.5-7b": 7.616,
    "qwen2.5-32b": 32.764, "qwen2.5-72b": 72.706, "qwen3-8b": 8.191, "qwen3-32b": 32.762,
    "gemma-2b": 2.506, "gemma-7b": 8.538, "gemma-2-9b": 9.242, "gemma-2-27b": 27.227,
    "phi-1.5": 1.418, "phi-3-mini": 3.821, "phi-4": 14.660, "falcon-40b": 41.303,
    "gpt2": 0.124, "gpt2-xl": 1.558, "gpt-j-6b": 6.051, "gpt-neox-20b": 20.554,
    "mpt-7b": 6.659, "mpt-30b": 29.975, "mpt-70b": 64.862, "stablelm-alpha-3b": 3.638,
    "mistral-large-123b": 122.61, "deepseek-llm-67b": 67.425, "tinyllama-1.1b": 1.100,
    "llama-65b": 65.286, "opt-13b": 12.853, "pythia-6.9b": 6.857, "gpt3-175b": 174.6,
    "internlm2-20b": 19.861, "starcoder2-15b": 15.958, "smollm2-1.7b": 1.711,
    "olmo-2-7b": 7.299, "qwen2.5-14b": 14.770, "gemma-3-27b": 27.009,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_parameters_are_those_that_were_published(name: str, billions: float) -> None:
    assert catalog.find(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_every_name_is_found_and_plausible() -> None:
    for name in catalog.names():
        shape = catalog.find(name)
        assert shape.heads % shape.kv_heads == 0, name
        assert 1e8 < shape.parameters < 5e11, name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3-70b"),
        ("Qwen/Qwen2.5-72B", "qwen2.5-72b"),
        ("Qwen/Qwen2-72B-Instruct", "qwen2.5-72b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("llama3_8b", "llama-3-8b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b"),
    ],
)
def test_names_as_others_write_them(written: str, name: str) -> None:
    assert catalog.find(written) == catalog.find(name)


@pytest.mark.parametrize(
    "name",
    ["mixtral-8x7b", "deepseek-ai/DeepSeek-R1", "Qwen/Qwen3-30B-A3B", "llama-3.2-11b-vision"],
)
def test_what_is_not_covered_is_said(name: str) -> None:
    with pytest.raises(NotCoveredError, match="not covered"):
        catalog.find(name)


def test_an_unknown_name_is_none_of_those() -> None:
    with pytest.raises(KeyError):
        catalog.find("gpt-5")


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
    "vocab_size": 50257, "n_inner": None,
}  # fmt: skip


def test_a_config_says_the_same_as_the_name() -> None:
    assert of_config(LLAMA, "llama-3-8b") == catalog.find("llama-3-8b")
    assert of_config(GPT2, "gpt2") == catalog.find("gpt2")
    assert not of_config({**GPT2, "activation_function": "gelu"}, "gpt2").gelu_new
    assert of_config({**LLAMA, "hidden_act": "gelu_new"}).gelu_new


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number above 0, not 'many'"),
        ({"num_attention_heads": 33}, "not a multiple of 33 heads; add head_dim"),
        ({"num_local_experts": 8}, "num_local_experts is 8: mixtures of experts"),
        ({"vision_config": {"depth": 32}}, "it has vision_config"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        of_config({**LLAMA, **change})


def test_cards_go_by_the_names_of_offers_and_of_people() -> None:
    assert cards.find("H100-80") == cards.find("H100")
    assert cards.find("a100-80gb").memory_gib > cards.find("A100").memory_gib
    assert cards.find("H200").bf16_tflops == pytest.approx(989.5)  # dense, not "with sparsity"
    with pytest.raises(KeyError):
        cards.find("H1000")
