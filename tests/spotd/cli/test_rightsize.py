"""`spotctl rightsize` and the memory column of `spotctl plan`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from spotd.api.views import store_capacity
from spotd.cli.app import run
from spotd.cli.fit_table import bar
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.api.routes.test_rightsize import job_file, train
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.sizing.told import TUNED, flags

MODEL = ["--model", "qwen2-72b", "--sequence", "4096", *flags(TUNED)]
CASE = [*MODEL, "--gpu", "H100-80", "--gpus", "8"]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    roomy = SimpleNamespace(free=10**14)  # for the checkpoints of large models
    monkeypatch.setattr(store_capacity.shutil, "disk_usage", lambda _folder: roomy)


def run_rightsize(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run(["--socket", "nobody.sock", "rightsize", *args, "-o", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_without_a_daemon_only_prices_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--socket", "nobody.sock", "rightsize", *CASE, "--tokens", "1.4B"]) == 0
    shown = capsys.readouterr()
    [line] = [line for line in shown.out.splitlines() if line.startswith("H100 ")]
    assert "145.1  79.2  does not fit  ████████████████████│█████████»" in line
    assert line.split()[-3:] == ["6,896", "?", "2d8h"]
    assert "without offers and their prices: " in shown.err
    assert "mixtures of experts, images, encoders and pipeline parallelism" in shown.err


def test_fitting_number_of_gpus_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_rightsize(capsys, *MODEL)
    fits = {row["accelerator"]: row["gpus"] for row in data["items"] if row["verdict"] == "fits"}
    assert fits == {"A100": 48, "A100-80GB": 24, "H100": 24, "H200": 16, "B200": 8}
    assert data["limits"]


@pytest.mark.req("RSZ-02")
def test_naive_rule_is_shown_only_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "naive" not in json.dumps(run_rightsize(capsys, *CASE))
    assert run_rightsize(capsys, *CASE, "--naive")["naive_gib_in_all"] == pytest.approx(
        270.8, abs=0.1
    )
    assert run(["--socket", "nobody.sock", "rightsize", *CASE, "--naive"]) == 0
    assert "no training run is that small" in capsys.readouterr().out


def test_config_json_describes_the_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        run_rightsize(capsys, "--config", "config.json", "--gpu", "H100")["parameters"]
        == 8030261248
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "--model: is missing"),
        (["--model", "qwen2-73b"], "did you mean qwen2-7"),
        (["--model", "gpt2", "--gpu", "H1000"], "--gpu: no GPU 'H1000' is known"),
        (["--model", "gpt2", "--method", "dora"], "--method: must be one of full"),
        (["--model", "gpt2", "--tokens", "many"], "--tokens: 'many' is not a number"),
        (["--model", "gpt2", "--tensor", "3", "--gpus", "8"], "--gpus: gpus must be a multiple"),
        (["--config", "none.json"], "--config: cannot read none.json"),
        (["job.yaml"], "job.yaml has no spotd.model"),
        (["job.yaml", "--job", "gpt"], "FILE and --job both describe the run"),
    ],
)
def test_invalid_values_are_named_with_a_fix(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.yaml").write_text(JOB_FILE)
    assert run(["--socket", "nobody.sock", "rightsize", *args]) == 2
    shown = capsys.readouterr()
    assert text in shown.err
    assert not shown.out


def test_option_in_conflict_with_the_file_is_one_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    block = "spotd: {model: {name: gpt2, step_in_backward: true}}"
    Path("job.yaml").write_text(f"name: x\nrun: python train.py\n{block}\n")
    assert run(["--socket", "nobody.sock", "rightsize", "job.yaml", "--accumulation", "2"]) == 2
    shown = capsys.readouterr()
    text = "spotd.model.accumulation: must be 1 where step_in_backward is set, not 2"
    assert (shown.err.count(text), shown.err.count("accumulation"), shown.out) == (1, 1, "")


@pytest.mark.req("RSZ-05")
def test_offers_are_ranked_by_cost_of_the_run(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.folder / "job.yaml").write_text(job_file("mixed"))
    assert spotctl(rig, "rightsize", str(rig.folder / "job.yaml"), "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)["offers"]
    # On one machine it does not fit; on three it does, by what a GPU has and not by their sum.
    # What may fit on two comes after that.
    fits = [(row["size"]["num_nodes"], row["size"]["verdict"]) for row in rows]
    assert fits == [(3, "fits")] * 4 + [(2, "tight")] * 4
    costs = [row["size"]["usd"] for row in rows[:4]]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(3 * 19.93 * rows[0]["size"]["hours"], rel=1e-3)
    assert spotctl(rig, "rightsize", str(rig.folder / "job.yaml"), "--gpus", "8", "-o", "wide") == 0
    assert "does not fit: 145 GiB/GPU of 79.2" in capsys.readouterr().out


def test_fitting_offers_come_before_cheaper_ones(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    roomy = replace(SPOT, accelerator="H200", instance_type="p5en.48xlarge", zone="us-east-1c")
    rig.offer_them(*OFFERS, replace(roomy, price_microusd_per_h=60_000_000))
    (rig.folder / "job.yaml").write_text(job_file("bf16"))
    file = str(rig.folder / "job.yaml")
    assert spotctl(rig, "rightsize", file, "--gpus", "8", "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)["offers"]
    assert [row["size"]["verdict"] for row in rows] == ["fits", *["tight"] * 4]


def test_job_is_sized_by_its_measurements(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    train(rig, 60)
    assert spotctl(rig, "rightsize", "--job", "gpt", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    [item] = data["items"]
    assert (item["accelerator"], item["gpus"], item["measured"]) == ("H100", 8, True)
    assert data["measured"]["steps"] == 60
    assert item["cause"].startswith("under-fed: ")


def test_job_with_few_measurements_is_estimated(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    train(rig, 49)
    assert spotctl(rig, "rightsize", "--job", "gpt", "--gpu", "H100", "--gpus", "8") == 0
    shown = capsys.readouterr()
    assert "gpt has not trained 50 warm steps" in shown.err
    assert "6,896 ?" in shown.out


def test_plan_shows_the_verdict_of_each_offer(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.folder / "job.yaml").write_text(job_file("mixed"))
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml"), "-o", "wide") == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert "guides to spot say, by size and length: search and training on spot" in lines[4]
    title, first, *_ = lines[5:]
    assert title.split()[-3:] == ["MEMORY", "TIME", "COST"]
    assert "does not fit: 145 GiB/GPU of 79.2" in first
    assert "qwen2.5-72b fits none of these" in shown.err
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml")) == 0
    assert "MEMORY" not in capsys.readouterr().out


def test_svg_shows_the_bars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each GPU has its parts and a mark at the card.

    The parts are longer than the card if the run does not fit.
    """
    data = run_rightsize(capsys, *MODEL, "--svg", "fit.svg")
    root = ET.fromstring((tmp_path / "fit.svg").read_text())
    labels = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for item in data["items"]:
        assert f"{item['gpus']} x {item['accelerator']}" in labels
    assert "does not fit, 145 of 79.2" in labels
    tips = [tip.text for tip in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(tips) == 5 * len(data["items"])
    assert run(["--socket", "nobody.sock", "rightsize", *CASE, "--svg", "none/fit.svg"]) == 2
    assert "--svg: cannot write none/fit.svg" in capsys.readouterr().err


def test_bar_ends_at_the_card() -> None:
    parts = {"state": 40.0, "gather": 10.0, "activations": 20.0, "logits": 10.0, "context": 0.0}
    assert bar(parts, 80.0) == "██████████▓▓▒▒▒▒▒▒░░│"
    assert bar(parts, 160.0) == "█████▓▒▒▒░          │"
    assert bar(parts, 64.0) == "████████████▓▓▓▓▒▒▒▒│▒▒░░░"
    assert bar(parts, 20.0).endswith("│█████████»")


def test_plan_explains_slow_runs_and_assumptions(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "{name: llama-3-8b, sequence: 4096, micro_batch: MICRO, tokens: 1B}"
    for micro, words in (
        ("12", "loss chunked saves"),
        ("1, example_tokens: 200", "packing to 4k tokens: "),
    ):
        text = f"{JOB_FILE}  model: {model.replace('MICRO', micro)}\n"
        (rig.folder / "job.yaml").write_text(text)
        assert spotctl(rig, "plan", str(rig.folder / "job.yaml")) == 0
        assert words in capsys.readouterr().out


# --- options that are not given

BARE = ("--model", "llama-3-8b", "--method", "lora", "--gpu", "H100", "--gpus", "1")


@pytest.mark.req("RSZ-01")
def test_options_that_are_left_out_have_the_frameworks_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [item] = run_rightsize(capsys, *BARE)["items"]
    assert (item["verdict"], item["by_default"]) == ("fits with options", "does not fit")
    assert (item["framework"], item["whatever_options"]) == ("transformers", False)
    assert (item["assumed"]["checkpointing"], item["assumed"]["micro_batch"]) == ("none", 8)
    low, high = item["range_gib"]
    assert low < item["card_gib"] < item["gib_with_context"] < high
    assert [option["option"] for option in item["options"]] == ["checkpointing"]
    saved = item["options"][0]["saves_gib"]
    assert item["gib_with_options"] == pytest.approx(item["gib_per_gpu"] - saved, abs=0.02)
    [trl] = run_rightsize(capsys, *BARE, "--framework", "trl", "--sequence", "512")["items"]
    assert (trl["by_default"], trl["assumed"]["checkpointing"]) == ("fits", "full")


def test_options_that_would_help_are_listed_with_what_they_save(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--socket", "nobody.sock", "rightsize", *BARE]) == 0
    shown = capsys.readouterr().out
    assert "the rest by the defaults of transformers: checkpointing none, loss plain" in shown
    assert (
        "1 H100: fits only with checkpointing full (assuming precision mixed, 2,048 tokens): "
        "50 GiB/GPU of 79.2" in shown
    )
    assert "it fits with: checkpointing full saves 71.6" in shown
    given = ("--checkpointing", "full", "--sequence", "2048")
    assert run(["--socket", "nobody.sock", "rightsize", *BARE, *given]) == 0
    assert "fits by the defaults of transformers (assuming precision mixed): 50 GiB/GPU" in (
        capsys.readouterr().out
    )


def test_an_option_that_is_turned_off_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    [item] = run_rightsize(capsys, *BARE, "--no-compiled", "--no-ragged")["items"]
    assert not {"compiled", "ragged"} & item["assumed"].keys()


def test_quantiser_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "llama-3-8b", "--gpu", "A10G", "--gpus", "1")
    states = {}
    for quantiser, method in (("nf4", "qlora"), ("nf4-dq", "qlora"), ("int8", "lora-8bit")):
        data = run_rightsize(capsys, *model, "--quantiser", quantiser)
        assert data["method"] == method
        states[quantiser] = data["items"][0]["parts_gib"]["state"]
    assert states["nf4-dq"] < states["nf4"] < states["int8"]
    for args, text in (
        (("--quantiser", "gptq"), "--quantiser: must be one of nf4, nf4-dq, torchao, int8, not"),
        (("--quantiser", "nf4", "--method", "full"), "--quantiser: nf4 is of qlora, not of full"),
        (("--framework", "keras"), "--framework: 'keras' is not known"),
    ):
        assert run(["--socket", "nobody.sock", "rightsize", *model, *args]) == 2
        assert text in capsys.readouterr().err


def test_plan_and_advise_say_the_same_as_rightsize(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """One verdict: of the same run on the same GPUs, in words and as JSON."""
    file = str(rig.folder / "job.yaml")
    Path(file).write_text(JOB_FILE + "  model: {name: llama-3-70b, method: lora, tokens: 1B}\n")

    def answer(*args: str) -> dict[str, Any]:
        assert spotctl(rig, *args, "-o", "json") == 0
        data: dict[str, Any] = json.loads(capsys.readouterr().out)
        return data

    plan = answer("plan", file)["offers"][0]["size"]
    gpu = ("--gpu", plan["accelerator"], "--gpus", str(plan["gpus"]))
    [sized] = answer("rightsize", file, *gpu)["items"]
    advised = answer("advisor", "job", file)["memory"]
    assert sized["verdict"] == "fits with options"
    keys = ("verdict", "by_default", "text", "note", "options")
    for key in keys:
        assert sized[key] == plan[key] == advised[key]
    for command in (("plan",), ("advisor", "job")):
        assert spotctl(rig, *command, file, "-o", "wide") == 0
        shown = capsys.readouterr().out
        assert sized["text"] in shown
        assert sized["note"] in shown
