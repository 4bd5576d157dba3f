"""Test the `spotd.model` block of a job file."""

from __future__ import annotations

import pytest

from spotd.spec import SpecError, load
from spotd.spec.model import read_model_block

HEAD = "name: x\nrun: python train.py\nspotd:\n  model: "


def problem(block: str) -> str:
    with pytest.raises(SpecError) as caught:
        load(HEAD + block, now_us=0)
    [expected] = caught.value.problems
    with pytest.raises(SpecError) as from_model:
        read_model_block(HEAD + block)
    assert [str(item) for item in from_model.value.problems] == [str(expected)]
    return str(expected)


def test_the_keys_are_returned_as_written() -> None:
    block = "{name: llama-3-70b, method: lora, tokens: 1.4B, micro_batch: 2}"
    load(HEAD + block, now_us=0)
    fields = {"name": "llama-3-70b", "method": "lora", "tokens": 1.4e9, "micro_batch": 2}
    assert read_model_block(HEAD + block) == fields


def test_a_job_without_it_is_as_before() -> None:
    assert read_model_block("name: x\nrun: y\n") == {}
    assert read_model_block("name: x\nrun: y\nspotd: {candidates: 2}\n") == {}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("{name: llama-3-71b}", "line 4: spotd.model.name: no model 'llama-3-71b' is known"),
        ("{name: mixtral-8x7b}", "spotd.model.name: mixtral-8x7b is a mixture of experts"),
        ("{method: lora}", "spotd.model.name: is missing (fix: write one like llama-3-70b"),
        (
            "{name: gpt2, tokens: lots}",
            "spotd.model.tokens: 'lots' is not a number (fix: write",
        ),
        ("{name: gpt2, tokens: 5, steps: 5}", "spotd.model.steps: and tokens both say"),
        (
            "{name: gpt2, step_in_backward: true, accumulation: 2}",
            "spotd.model.accumulation: must be 1 where step_in_backward is set, not 2",
        ),
        ("{name: gpt2, methd: lora}", "spotd.model.methd: unknown key (fix: did you mean"),
        ("{name: gpt2, method: dora}", "spotd.model.method: 'dora' is not possible"),
        ("{name: gpt2, layers: 0}", "spotd.model.layers: "),
    ],
)
def test_problems_have_their_line(block: str, text: str) -> None:
    assert text in problem(block)
