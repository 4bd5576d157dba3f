"""A task out of the words of a job file or of flags, or one error that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.sizing import catalog
from spotd.sizing.advice import hours_of
from spotd.sizing.task import TaskError, task_of


def test_a_name_and_a_method_are_enough() -> None:
    task = task_of({"name": "llama-3-70b", "method": "lora", "config": None})
    assert task.shape == catalog.find("llama-3-70b")
    assert (task.run.method, task.run.sequence, task.run.micro_batch) == ("lora", 2048, 1)
    assert task.total_tokens() == 0


def test_a_shape_by_numbers_or_by_its_config() -> None:
    numbers = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336}
    by_numbers = task_of({**numbers, "vocab": 128256}).shape
    config = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }  # fmt: skip
    assert by_numbers.parameters == catalog.find("llama-3-8b").parameters
    assert task_of({"config": config, "name": "x"}).shape.parameters == by_numbers.parameters


@pytest.mark.req("RSZ-08")
def test_steps_are_tokens() -> None:
    """49,219 steps of 16 micro-batches on 8 GPUs are 2.1 million pairs, three times."""
    words = {"name": "qwen2-72b", "steps": 49_219, "accumulation": 16, "example_tokens": 228}
    task = task_of(words).on(8)
    assert task.total_tokens() / 228 == pytest.approx(2.1e6 * 3, rel=0.001)
    assert hours_of(task, 1850) == pytest.approx(216, rel=0.002)


def test_unpacked_examples_make_unequal_batches() -> None:
    words = {"name": "gpt2", "example_tokens": 228}
    assert task_of(words).run.ragged
    assert not task_of({**words, "ragged": False}).run.ragged
    assert not task_of({"name": "gpt2"}).run.ragged


@pytest.mark.parametrize(
    ("words", "field", "text"),
    [
        ({}, "name", "is missing"),
        ({"name": "lama-3-70b"}, "name", "did you mean llama-3-70b?"),
        ({"name": "mixtral-8x7b"}, "name", "mixture of experts"),
        ({"layers": 2, "hidden": 8, "heads": 1, "ffn": 8}, "vocab", "is missing"),
        ({"layers": 2, "hidden": 8, "heads": 3, "ffn": 8, "vocab": 9}, "heads", "add head_dim"),
        (
            {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 3, "ffn": 8, "vocab": 9},
            "kv_heads",
            "does not divide heads, 4",
        ),
        ({"config": {"hidden_size": 8}}, "config", "num_attention_heads is missing"),
        ({"name": "gpt2", "sequence": 4096}, "sequence", "has 1024 positions"),
        (
            {"name": "gpt2", "step_in_backward": True, "accumulation": 2},
            "accumulation",
            "must be 1 where step_in_backward is set, not 2",
        ),
        ({"name": "gpt2", "method": "dora"}, "method", "must be one of full"),
        ({"name": "gpt2", "steps": 5, "tokens": 5}, "steps", "leave one of them out"),
    ],
)
def test_what_cannot_be_used_is_named(words: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(TaskError) as caught:
        task_of(words)
    assert caught.value.field == field
    assert text in str(caught.value)
