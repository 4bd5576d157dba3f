"""A task on GPUs and on offers: verdict, hours, dollars."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.sizing import cards
from spotd.sizing.sizes import Measured, around, on_offer, proposed, size, size_data, with_hardware
from spotd.sizing.task import task_of
from tests.spotd.sizing.told import tuned

LORA = task_of(tuned({"name": "llama-3-70b", "method": "lora", "sequence": 4096, "tokens": 1.4e9}))
FULL = task_of(tuned({"name": "qwen2-72b", "sequence": 4096}))
OFFER = {"accelerator": "H100", "accelerator_count": 8, "price_usd_per_h": 20.0}


def test_it_is_said_as_a_person_would() -> None:
    assert size(FULL, cards.find("H100"), 8).fit.text == "does not fit: 145 GiB/GPU of 79.2"
    assert size(LORA, cards.find("H100"), 8).fit.text.startswith("fits: ")


def test_around_it_is_what_is_too_small_or_tight() -> None:
    sizes = around(
        task_of(tuned({"name": "qwen2-72b", "precision": "bf16", "sequence": 2048})),
        cards.find("H100"),
    )
    assert [one.gpus for one in sizes] == [4, 8, 16]
    assert [one.verdict for one in sizes] == ["does not fit", "tight", "fits"]


def test_a_run_of_open_options_is_looked_for_where_it_needs_no_host_memory() -> None:
    """By its defaults, a copy of all state on each GPU, it fits no number of them."""
    sizes = around(task_of({"name": "qwen2-72b", "sequence": 4096}), cards.find("H100"))
    assert {one.fit.by_default for one in sizes} == {"does not fit"}
    assert {one.verdict for one in sizes} == {"fits with options"}
    assert [(one.gpus, one.fit.on_the_gpu) for one in sizes] == [(4, False), (8, True)]
    assert sizes[-1].fit.text.startswith("fits only with sharding fsdp, checkpointing full, ")


def test_machines_are_proposed_by_the_same_verdict() -> None:
    """The fewest with state in the host's memory, and the fewest without."""
    task = task_of({"name": "qwen2-72b", "sequence": 4096})
    offer = {**OFFER, "accelerator_count": 1, "interconnect": "efa"}
    proposals = [(one["num_nodes"], one["on_the_gpu"]) for one in proposed(task, offer)]
    assert proposals == [(1, False), (8, True)]


def test_what_fits_with_a_loss_in_pieces_alone_says_so() -> None:
    """Liger's own example: with it, 8B at batch 8 and 4k tokens runs on 8 A100; without, it does
    not."""
    words = tuned({"name": "llama-3-8b", "sequence": 4096, "micro_batch": 8})
    a100 = cards.find("A100-80GB")
    open_ = size(task_of({key: value for key, value in words.items() if key != "loss"}), a100, 8)
    assert open_.verdict == "fits with options"
    assert open_.fit.text.startswith("fits only with loss chunked: ")
    said = {loss: size(task_of({**words, "loss": loss}), a100, 8) for loss in ("chunked", "plain")}
    assert (said["chunked"].verdict, said["chunked"].fit.note) == ("fits", "")
    assert said["plain"].verdict == "does not fit"


def test_dollars_are_hours_times_price_times_machines() -> None:
    joined = {**OFFER, "interconnect": "efa"}
    one, two = (on_offer(LORA, joined, nodes) for nodes in (1, 2))
    assert one is not None
    assert two is not None
    assert one["usd"] == pytest.approx(one["hours"] * 20.0, rel=0.001)
    assert two["hours"] == pytest.approx(one["hours"] / 2, rel=0.01)
    assert two["usd"] == pytest.approx(one["usd"], rel=0.01)
    assert one["hours_range"][0] < one["hours"] < one["hours_range"][1]


def test_machines_on_plain_ip_wait_for_each_other() -> None:
    plain, joined = (
        on_offer(LORA, {**OFFER, "interconnect": name}, 2) for name in ("", "infiniband")
    )
    assert plain is not None
    assert joined is not None
    assert plain["starved"]
    assert "s at 12.5 GB/s" in plain["cause"]
    assert plain["hours"] > 2 * joined["hours"]
    assert on_offer(LORA, OFFER, 1)["starved"] is False  # type: ignore[index]


@pytest.mark.parametrize("change", [{"accelerator": "TPU"}, {"accelerator_count": 0}])
def test_nothing_is_said_of_what_is_not_known(change: dict[str, object]) -> None:
    assert on_offer(LORA, {**OFFER, **change}, 1) is None


def test_a_number_of_gpus_that_it_cannot_be_spread_over_is_none() -> None:
    task = task_of({"name": "llama-3-70b", "tensor": 16})
    assert on_offer(task, OFFER, 1) is None
    assert on_offer(task, OFFER, 2) is not None


def test_a_measurement_is_of_its_kind_of_gpu_alone() -> None:
    measured = Measured(8000.0, 60, "H100", 8)
    assert size(LORA, cards.find("H100"), 16, measured).pace.tokens_per_s == pytest.approx(16000)
    assert not size(LORA, cards.find("H200"), 8, measured).pace.measured
    assert not size(LORA, cards.find("H100"), 16, measured, joined=False).pace.measured


def row(accelerator: str, usd_per_h: float, **words: object) -> dict[str, Any]:
    offer = {**OFFER, "accelerator": accelerator, "price_usd_per_h": usd_per_h}
    task = task_of(tuned({"name": "llama-3-8b", "sequence": 256, "tokens": 1e9, **words}))
    named = {"instance_type": "big", "provider": "aws", "zone": "", "region": "us-east-2"}
    return {**offer, **named, "size": on_offer(task, offer, 1)}


def test_slow_hardware_is_told_of_what_is_cheaper_to_finish_on() -> None:
    dear, cheap = with_hardware([row("H100", 40.0), row("H200", 20.0)])
    [advice] = [one for one in dear["size"]["advice"] if one["kind"] == "hardware"]
    assert advice["text"].startswith("1 x big in aws/us-east-2 (8 H200): ")
    assert advice["saves_usd"] == pytest.approx(dear["size"]["usd"] - cheap["size"]["usd"], abs=0.1)
    assert all(one["kind"] != "hardware" for one in cheap["size"]["advice"])


@pytest.mark.parametrize(
    "rows",
    [
        [row("H100", 20.0), row("H200", 19.0)],  # a twentieth is not worth a move
        [row("H100", 40.0), row("T4", 1.0)],  # which it does not fit
        [row("H100", 40.0, sequence=4096), row("H200", 20.0, sequence=4096)],  # nothing is slow
    ],
)
def test_else_nothing_is_said_of_other_hardware(rows: list[dict[str, Any]]) -> None:
    told = [one["kind"] for found in with_hardware(rows) for one in found["size"]["advice"]]
    assert "hardware" not in told


def test_a_guess_is_called_one() -> None:
    """No published run on that card stands behind its prior."""
    assert not size_data(size(LORA, cards.find("L40S"), 8))["prior"]["anchored"]
    assert size_data(size(LORA, cards.find("H100"), 8))["prior"]["anchored"]
