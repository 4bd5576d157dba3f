"""Whether a run fits where not all of its options are given: the range, the defaults, the options
that help; and what public reports say of the same runs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.sizing import cards, catalog
from spotd.sizing.fit import FITS_WITH, TIGHT_WITH, VERDICTS, Fit
from spotd.sizing.memory import DOES_NOT_FIT, FITS, GIB, TIGHT, estimate, verdict
from spotd.sizing.run import CHECKPOINTINGS, LOSSES, OFFLOADS, PRECISIONS, SHARDINGS, TARGETS
from spotd.sizing.task import TaskError, task_of
from tests.fixtures.examples import examples
from tests.spotd.sizing.told import TUNED, tuned

FOLDER = Path(__file__).parent
REPORTS = json.loads((FOLDER / "reports.json").read_text())
FIGURES = [
    row
    for name in ("published.json", "measured.json")
    for row in json.loads((FOLDER / name).read_text())["measurements"]
]
OUT_OF_MEMORY = [row for row in REPORTS if row["ran_out_of_memory"]]


def fit_of(words: dict[str, Any], card: str, gpus: int = 1) -> Fit:
    return task_of(words).on(gpus).fit(cards.find(card).memory_gib)


def of_report(row: dict[str, Any], *, told: bool) -> Fit:
    words = {"name": row["model"], "method": row["method"]}
    return fit_of({**words, **(row["told"] if told else {})}, row["gpu"], row["gpus"])


def of_figure(row: dict[str, Any], *, told: bool) -> Fit:
    run = dict(row["run"])
    words = {"name": row["model"], "method": run.get("method", "full")}
    gpus = run.pop("gpus", 1)
    return fit_of({**words, **(run if told else {})}, row["card"], gpus)


def names_its_options(fit: Fit) -> bool:
    """Nothing is called a fit but by options that are named."""
    if fit.whatever:
        return False
    if fit.verdict in (FITS_WITH, TIGHT_WITH):
        return bool(fit.remedies) and all(one.text in fit.text for one in fit.remedies)
    if fit.verdict == FITS:
        return all(f"{name} " in fit.note for name in fit.assumed) and bool(fit.assumed)
    return True


# --- public reports


@pytest.mark.req("RSZ-01")
@pytest.mark.parametrize("told", [False, True], ids=["bare", "as told"])
@pytest.mark.parametrize("row", OUT_OF_MEMORY, ids=lambda row: f"{row['model']} {row['about']}")
def test_a_reported_out_of_memory_fits_only_by_named_options(
    row: dict[str, Any], told: bool
) -> None:
    assert names_its_options(of_report(row, told=told))


@pytest.mark.req("RSZ-01")
def test_with_a_model_a_method_and_a_gpu_alone_no_out_of_memory_fits() -> None:
    """Nor does one of the figures' own, of which 8 of 12 did with the lightest options assumed."""
    assert len(OUT_OF_MEMORY) >= 12
    assert len({row["url"] for row in OUT_OF_MEMORY}) >= 12
    fits = [of_report(row, told=False) for row in OUT_OF_MEMORY]
    fits += [of_figure(row, told=False) for row in FIGURES if row["gib"] is None]
    assert [fit.text for fit in fits if fit.by_default == FITS] == []
    assert all(names_its_options(fit) for fit in fits)


@pytest.mark.req("RSZ-01")
@pytest.mark.parametrize("told", [False, True], ids=["bare", "as told"])
def test_what_ran_is_never_said_not_to_fit(told: bool) -> None:
    ran = [row for row in REPORTS if not row["ran_out_of_memory"]]
    assert len(ran) >= 8
    said = [(row["about"], of_report(row, told=told)) for row in ran]
    said += [(row["label"], of_figure(row, told=told)) for row in FIGURES if row["gib"]]
    assert [(name, fit.text) for name, fit in said if fit.verdict == DOES_NOT_FIT] == []


# --- the range


OPTIONS: dict[str, tuple[Any, ...]] = {
    "checkpointing": CHECKPOINTINGS, "loss": LOSSES, "precision": PRECISIONS,
    "sharding": SHARDINGS, "offload": OFFLOADS, "lora_targets": TARGETS,
    "quantiser": ("nf4", "nf4-dq", "torchao"), "micro_batch": (1, 2, 3, 5, 8),
    "accumulation": (1, 2, 16), "lora_dropout": (0.0, 0.05), "compiled": (False, True),
    "foreach": (False, True), "ragged": (False, True), "loads_whole": (False, True),
    "offload_activations": (False, True), "step_in_backward": (False, True),
}  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], int]:
    """A run's words, a value of each of its options, and its GPUs."""
    words = {
        "name": draw(st.sampled_from(["llama-3-8b", "gpt2-xl", "falcon-7b", "qwen2.5-0.5b"])),
        "method": draw(st.sampled_from(["full", "full-8bit", "lora", "lora-8bit", "qlora"])),
        "sequence": draw(st.sampled_from([128, 1024])),
        "framework": draw(st.sampled_from(["transformers", "trl", "lightning", "torch"])),
    }
    names = {name for name in OPTIONS if name != "quantiser" or words["method"] == "qlora"}
    options = {name: draw(st.sampled_from(OPTIONS[name])) for name in sorted(names)}
    if options["step_in_backward"]:
        options["accumulation"] = 1
    return words, options, draw(st.sampled_from([1, 2, 8]))


@settings(max_examples=examples(60), deadline=None)
@given(run=runs(), data=st.data())
def test_an_option_that_is_given_narrows_the_range_and_never_contradicts_it(
    run: tuple[dict[str, Any], dict[str, Any], int], data: st.DataObject
) -> None:
    words, options, gpus = run
    names = data.draw(st.permutations(sorted(options)))
    bounds, told = [fit_of(words, "H100", gpus)], dict(words)
    for name in names:
        told[name] = options[name]
        if told.get("step_in_backward") and told.get("accumulation", 1) > 1:
            continue
        bounds.append(fit_of(told, "H100", gpus))
    for wide, narrow in pairwise(bounds):
        assert wide.low.total <= narrow.low.total <= narrow.high.total <= wide.high.total
    last, task = bounds[-1], task_of({**told, "lora_rank": 8}).on(gpus)
    assert last.memory == last.low == last.high == estimate(task.shape, task.run)
    for fit in bounds:
        assert fit.low.total <= fit.memory.total <= fit.high.total
        assert fit.low.total <= last.memory.total <= fit.high.total
        assert fit.low.total <= fit.remedied.total <= fit.memory.total
        if fit.whatever:
            assert verdict(last.memory, last.card_gib) == FITS
        if fit.verdict == DOES_NOT_FIT:
            assert last.verdict == DOES_NOT_FIT


@settings(max_examples=examples(60), deadline=None)
@given(run=runs(), card=st.sampled_from(["T4", "A10G", "A100", "H100"]))
def test_the_options_that_are_listed_do_what_is_said(
    run: tuple[dict[str, Any], dict[str, Any], int], card: str
) -> None:
    """Given as options, they make it fit by default; what they save adds up; each is needed."""
    words, _, gpus = run
    fit = fit_of(words, card, gpus)
    chosen = {one.option: one.value for one in fit.remedies}
    saved = sum(one.saves for one in fit.remedies)
    if not chosen:
        assert fit.verdict in (FITS, TIGHT, DOES_NOT_FIT)
        return
    assert saved == pytest.approx(fit.memory.total - fit.remedied.total)
    told = fit_of({**words, **chosen}, card, gpus)
    assert told.memory == fit.remedied
    assert told.by_default == {FITS_WITH: FITS, TIGHT_WITH: TIGHT}.get(fit.verdict, told.by_default)
    for name in chosen:
        fewer = {key: value for key, value in chosen.items() if key != name}
        without = fit_of({**words, **fewer}, card, gpus)
        assert VERDICTS.index(without.by_default) > VERDICTS.index(told.by_default)


def test_nothing_is_left_open_where_all_is_given() -> None:
    fit = fit_of(tuned({"name": "llama-3-8b", "sequence": 2048}), "H100", 8)
    assert (fit.assumed, fit.note, fit.remedies) == ({}, "", ())
    assert fit.memory == fit.low == fit.high
    assert fit.text == "fits: 18 GiB/GPU of 79.2"


def test_what_fits_whatever_the_options_says_so() -> None:
    fit = fit_of({"name": "gpt2", "method": "lora"}, "H100")
    assert fit.whatever
    assert fit.text.startswith("fits whatever the options (assuming ")
    assert fit.text.endswith(f"up to {fit.high.reserved / GIB:.0f} GiB/GPU of 79.2")


def test_a_length_that_is_not_given_is_called_an_assumption() -> None:
    words = {"name": "llama-3-8b", "method": "lora"}
    assert "2,048 tokens" in fit_of(words, "H100").text
    assert "tokens" not in fit_of({**words, "sequence": 2048}, "H100").text


def test_what_no_option_mends_does_not_fit() -> None:
    closed = {key: value for key, value in TUNED.items() if key.startswith("offload")}
    fit = fit_of({"name": "llama-3.1-405b", "method": "lora", **closed}, "A10G")
    assert (fit.verdict, fit.remedies) == (DOES_NOT_FIT, ())
    assert fit.text.startswith("does not fit (assuming ")
    assert f"at least {fit.low.reserved / GIB:,.0f} GiB/GPU" in fit.text


def test_an_open_option_without_effect_is_not_assumed() -> None:
    full, lora = (fit_of({"name": "gpt2", "method": m}, "H100").assumed for m in ("full", "lora"))
    assert not {"lora_rank", "lora_targets", "quantiser", "loads_whole"} & full.keys()
    assert not {"foreach", "step_in_backward", "quantiser"} & lora.keys()
    assert "quantiser" in fit_of({"name": "gpt2", "method": "qlora"}, "H100").assumed


# --- the quantiser


def test_a_quantiser_names_its_method() -> None:
    assert task_of({"name": "gpt2", "quantiser": "nf4"}).run.method == "qlora"
    assert task_of({"name": "gpt2", "quantiser": "int8"}).run.method == "lora-8bit"
    assert task_of({"name": "gpt2", "method": "lora", "quantiser": "nf4-dq"}).run.method == "qlora"
    with pytest.raises(TaskError, match="nf4 is of qlora, not of full"):
        task_of({"name": "gpt2", "method": "full", "quantiser": "nf4"})
    with pytest.raises(TaskError, match="must be one of nf4, nf4-dq, torchao, int8, not 'gptq'"):
        task_of({"name": "gpt2", "quantiser": "gptq"})


def test_a_quantiser_that_is_given_is_the_one_that_counts() -> None:
    words = {"name": "llama-3-8b", "method": "qlora"}
    once, twice = (fit_of({**words, "quantiser": q}, "H100") for q in ("nf4", "nf4-dq"))
    saved = (4 / 64 - 1 / 64 - 4 / 64 / 256) * 32 * catalog.find("llama-3-8b").linear_parameters
    assert once.memory.state - twice.memory.state == pytest.approx(saved)
    open_ = fit_of(words, "H100")
    assert open_.memory == once.memory  # bitsandbytes does not quantise twice by default
    assert replace(open_.run, quantiser="nf4-dq") == twice.run
