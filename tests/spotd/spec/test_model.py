"""The block `spotd.model` of a job file."""

from __future__ import annotations

import pytest

from spotd.spec import SpecError, load
from spotd.spec.model import model_words

HEAD = "name: x\nrun: python train.py\nspotd:\n  model: "


def problem(block: str) -> str:
    with pytest.raises(SpecError) as caught:
        load(HEAD + block, now_us=0)
    [found] = caught.value.problems
    with pytest.raises(SpecError) as again:
        model_words(HEAD + block)
    assert [str(one) for one in again.value.problems] == [str(found)]
    return str(found)


def test_its_words_are_those_that_were_written() -> None:
    block = "{name: llama-3-70b, method: lora, tokens: 1.4B, micro_batch: 2}"
    load(HEAD + block, now_us=0)
    words = {"name": "llama-3-70b", "method": "lora", "tokens": 1.4e9, "micro_batch": 2}
    assert model_words(HEAD + block) == words


def test_a_job_without_it_is_as_before() -> None:
    assert model_words("name: x\nrun: y\n") == {}
    assert model_words("name: x\nrun: y\nspotd: {candidates: 2}\n") == {}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("{name: llama-3-71b}", "line 4: spotd.model.name: no model 'llama-3-71b' is known"),
        ("{name: mixtral-8x7b}", "spotd.model.name: mixtral-8x7b is a mixture of experts"),
        ("{method: lora}", "spotd.model.name: is missing (fix: write one like llama-3-70b"),
        (
            "{name: gpt2, tokens: lots}",
            "spotd.model.tokens: 'lots' is no number (fix: write",
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
def test_what_is_wrong_is_said_with_its_line(block: str, text: str) -> None:
    assert text in problem(block)
