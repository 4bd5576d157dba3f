"""What a checkpoint weighs, beside what guides say that it does."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.sizing.checkpoint_size import GUIDES, checkpoint_bytes, guide_of, saves_data, saves_lines
from spotd.sizing.task import task_of


def data(name: str, **words: Any) -> dict[str, Any]:
    return saves_data(task_of({"name": name, **words}))


@pytest.mark.req("CKP-07")
@pytest.mark.parametrize(
    ("name", "weights_gb", "least_gb", "most_gb"),
    [("llama-3-70b", 141.1, 840, 990), ("llama-3.1-405b", 811.7, 4_860, 5_690)],
)
def test_weights_alone_and_what_resumes_side_by_side(
    name: str, weights_gb: float, least_gb: float, most_gb: float
) -> None:
    """AdamW beside fp32 weights takes 12 bytes a parameter, and with a bf16 copy (ZeRO) 14."""
    plain, zero = data(name), data(name, sharding="zero3")
    assert plain["weights_2_bytes_gb"] == zero["weights_2_bytes_gb"] == weights_gb
    assert (plain["bytes_a_parameter"], zero["bytes_a_parameter"]) == (12, 14)
    assert least_gb <= plain["resumable_gb"] < zero["resumable_gb"] <= most_gb
    [line, _] = saves_lines(plain)
    assert f"{plain['resumable_gb']:,.1f} GB to resume from" in line
    assert f"{weights_gb:,.1f} GB in 2 bytes" in line


@pytest.mark.req("CKP-07")
def test_what_guides_say_is_of_weights_alone_and_needs_so_fast_a_disk() -> None:
    assert [(one.gb, one.save_s) for one in GUIDES] == [
        (3, (5, 10)),
        (35, (30, 60)),
        (140, (120, 240)),
        (810, (600, 1200)),
    ]
    speeds = [speed for one in GUIDES for speed in one.gb_per_s]
    assert (min(speeds), max(speeds)) == pytest.approx((0.3, 1.35))
    line = saves_lines(data("llama-3-70b"))[1]
    assert "140 GB in 120 to 240 s for 70B fp16: weights alone, written at 0.58 to 1.17" in line
    assert "what resumes takes 725 to 1,452 s" in line
    kinds = {
        name: guide.kind if guide else None
        for name, method in (("llama-2-7b", "qlora"), ("llama-3-70b", "qlora"), ("gpt2", "full"))
        for guide in [guide_of(task_of({"name": name, "method": method}))]
    }
    assert kinds == {"llama-2-7b": "7B QLoRA", "llama-3-70b": "70B QLoRA", "gpt2": None}
    assert len(saves_lines(data("gpt2"))) == 1


@pytest.mark.req("CKP-29")
def test_the_three_bands_and_which_state_each_counts() -> None:
    """7 to 13B below 30 GB are weights in 2 bytes; 70B in 200 to 400 GB weights in 4; above 1 TB is
    what resumes, and of 70B it is beyond its band."""
    assert all(data(name)["weights_2_bytes_gb"] < 30 for name in ("llama-2-7b", "llama-2-13b"))
    assert 200 <= data("llama-3-70b")["weights_4_bytes_gb"] <= 400
    assert data("llama-3-70b")["resumable_gb"] > 400
    assert data("gpt3-175b")["resumable_gb"] > 1000
    assert data("llama-3.1-405b")["resumable_gb"] > 1000
    assert data("llama-3-70b")["counted"] == "weights and optimizer"
    [line, *_] = saves_lines(data("llama-3-70b"))
    assert "(weights and optimizer, 12 bytes a parameter)" in line


@pytest.mark.parametrize(
    ("words", "each"),
    [
        ({"precision": "bf16"}, 6),
        ({"method": "full-8bit"}, 6),
        ({"method": "full-8bit", "precision": "bf16"}, 4),
        ({"precision": "fp32"}, 12),
    ],
)
def test_narrower_state_weighs_less(words: dict[str, Any], each: int) -> None:
    task = task_of({"name": "qwen2-72b", **words})
    assert checkpoint_bytes(task) == each * task.shape.parameters


def test_of_adapters_they_alone_with_their_moments() -> None:
    lora = data("llama-3-70b", method="lora")
    assert lora["counted"] == "adapters and their two moments"
    assert lora["resumable_gb"] == pytest.approx(207_093_760 * 12 / 1e9, abs=0.05)
    assert lora["weights_2_bytes_gb"] == 141.1
