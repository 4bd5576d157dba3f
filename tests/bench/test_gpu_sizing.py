"""What the bench of the right-sizer on a GPU does without one: its models are of the catalogue's
shapes, and its rows are of the form that bench/sizing.py reads."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.gpu import sized, sizing
from bench.gpu.sized import CASES, LATER, Case, case
from spotd.sizing import cards, catalog
from spotd.sizing.memory import GIB, adapter_parameters, estimate
from spotd.sizing.run import Run
from spotd.sizing.shape import Shape

ROOT = Path(__file__).parents[2]
FAMILIES = (
    "llama-3.2-1b",
    "qwen2.5-1.5b",
    "qwen3-0.6b",
    "pythia-1.4b",
    "opt-1.3b",
    "gemma-2b",
    "gpt2-xl",
    "phi-2",
)
CPU = torch.device("cpu")
# transformers' newer name for it is one that peft does not use yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def small(model: str) -> Shape:
    """The model's kind, in a size for a test."""
    shape = catalog.find(model)
    fewer = min(shape.kv_heads, 2) if shape.kv_heads < shape.heads else 4
    return replace(shape, layers=2, hidden=64, heads=4, kv_heads=fewer, head_dim=16, ffn=256,
                   vocab=300)  # fmt: skip


@pytest.mark.parametrize("model", FAMILIES)
def test_a_model_has_the_shape_of_its_name(model: str) -> None:
    shape = small(model)
    made = sized.make(Run(checkpointing="none"), shape, CPU)
    counted = sum(one.numel() for one in made.parameters())
    assert counted == pytest.approx(shape.parameters, rel=0.02)  # biases, norms of queries
    assert {one.dtype for one in made.parameters()} == {torch.float32}


def test_what_is_all_in_fp32_is_built_so() -> None:
    for method in ("full", "lora"):
        made = sized.make(Run(method=method, precision="fp32"), small("llama-3-8b"), CPU)
        assert {one.dtype for one in made.parameters()} == {torch.float32}


def test_adapters_are_as_large_as_the_formula_says() -> None:
    run = Run(method="lora", loss="plain", sequence=32)
    made = sized.make(run, small("llama-3-8b"), CPU)
    trained = [one for one in made.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == adapter_parameters(small("llama-3-8b"), run)
    assert {one.dtype for one in trained} == {torch.float32}
    assert made.training
    frozen = {one.dtype for one in made.parameters() if not one.requires_grad}
    assert frozen == {torch.bfloat16}


def test_a_run_trains_and_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = small("llama-3-8b")
    monkeypatch.setattr(sized, "STEPS", 4)
    monkeypatch.setattr(sized.catalog, "find", lambda name: shape)
    run = Run(method="lora", loss="plain", sequence=32, micro_batch=2, accumulation=2)
    found = sized.measure(Case("llama-3-8b", run), CPU)
    assert list(found) == ["tokens_per_s"]
    assert found["tokens_per_s"] > 0


def test_a_row_has_what_was_measured_and_the_formula_of_the_shipped_right_sizer() -> None:
    one = case("llama-3-8b", method="lora", loss="plain", micro_batch=2)
    found = {"allocated": 22.42, "reserved": 24.93, "used": 25.68, "tokens_per_s": 6379.0}
    row = sizing.beside(one, found, cards.find("H100"))
    memory = estimate(catalog.find("llama-3-8b"), one.run)
    assert (row["gib"], row["allocated"], row["used"]) == (24.93, 22.42, 25.68)
    assert row["formula_gib"] == round(memory.reserved / GIB, 3)
    assert row["formula_allocated_gib"] == round(memory.allocated / GIB, 3)
    assert Run(**row["run"]) == one.run
    assert row["label"] == "method lora, micro batch 2, loss plain"
    assert "+59%" in sizing.line(row)  # the prior is of tuned runs
    out = dict.fromkeys(found)
    assert "OOM" in sizing.line(sizing.beside(one, out, cards.find("H100")))


def test_nothing_is_measured_for_a_bench_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sizing, "measure", lambda chosen, device: asked.append(chosen.model))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert (sizing.one(0), asked) == (1, [])
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    assert (sizing.one(0), asked) == (0, ["llama-3.2-1b"])


def test_no_run_is_in_both_lists() -> None:
    assert len({*CASES, *LATER}) == len(CASES) + len(LATER)


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    argv = [sys.executable, "-m", "bench.gpu.sizing"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no CUDA device here, and this measures one" in done.stderr
