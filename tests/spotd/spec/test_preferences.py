"""Test a job's preferences, and the capacity types that its deadline permits."""

from __future__ import annotations

import pytest

from providers.base import CapacityType
from spotd.domain.preferences import NO_PREFERENCES, Objective, Speed
from spotd.spec import ParsedJobFile, SpecError, load

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
MODEL = "model: {name: llama-3-8b, tokens: 1B}"


def read(spotd: str, resources: str = "{accelerators: H100:8}") -> ParsedJobFile:
    text = f"name: a\nrun: x\nresources: {resources}\nspotd: {{{spotd}}}"
    return load(text, now_us=1_700_000_000_000_000)


def refused(spotd: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(spotd)
    return [str(problem) for problem in caught.value.problems]


def test_a_job_without_settings_has_no_preferences() -> None:
    assert read("").spec.preferences == NO_PREFERENCES


@pytest.mark.parametrize(
    ("work", "seconds", "steps"),
    [
        ("40h", 144_000.0, 0),
        ("1d12h", 129_600.0, 0),
        ("100000 steps", 0.0, 100_000),
        ("100_000 steps", 0.0, 100_000),
        ("1 step", 0.0, 1),
    ],
)
def test_work_is_a_time_or_a_number_of_steps(work: str, seconds: float, steps: int) -> None:
    preferences = read(f"work: {work}").spec.preferences
    assert (preferences.work_s, preferences.work_steps, preferences.measurable) == (
        seconds,
        steps,
        True,
    )


@pytest.mark.parametrize("work", ["40", "0h", "lots", "[1]", "-4h"])
def test_anything_else_is_no_amount_of_work(work: str) -> None:
    (text,) = refused(f"work: {work}")
    assert "spotd.work" in text
    assert "40h" in text
    assert "100000 steps" in text


def test_the_objective_is_cost_unless_it_is_speed() -> None:
    assert read("objective: speed").spec.preferences.objective is Objective.SPEED
    (text,) = refused("objective: fun")
    assert "spotd.objective" in text


@pytest.mark.req("DAT-03")
def test_the_eu_is_neither_switzerland_nor_the_united_kingdom() -> None:
    eu = read("residency: EU").spec.preferences.residency
    assert len(eu) == 27
    assert not {"CH", "GB", "NO", "US"} & set(eu)
    assert set(read("residency: [EU, CH]").spec.preferences.residency) == {*eu, "CH"}
    adequate = set(read("residency: adequate").spec.preferences.residency)
    assert adequate > {*eu, "CH", "GB", "NO", "JP"}
    assert "US" not in adequate
    assert read("residency: de").spec.preferences.residency == ("DE",)


def test_an_unknown_place_is_refused_with_a_fix() -> None:
    (text,) = refused("residency: [EU, Europe]")
    assert "spotd.residency[1]" in text
    assert "'Europe' is not a known place" in text
    assert "EEA or adequate" in text
    (text,) = refused("not_operated_from: []")
    assert "spotd.not_operated_from: the list is empty" in text


def test_a_deadline_without_work_warns() -> None:
    parsed = read("deadline: 36h")
    (text,) = parsed.warnings
    assert "spotd.deadline does not affect placement" in text
    assert "add spotd.work" in text
    assert parsed.spec.resources.alternatives[0].capacity_types == (SPOT, ON_DEMAND)


def test_a_deadline_permits_on_demand_where_spot_is_only_a_wish() -> None:
    parsed = read("deadline: 60h, work: 40h", "{accelerators: H100:8, use_spot: true}")
    assert parsed.spec.resources.alternatives[0].capacity_types == (SPOT, ON_DEMAND)
    (text,) = parsed.warnings
    assert "may use on-demand machines" in text
    assert "capacity: spot instead of use_spot" in text


@pytest.mark.parametrize("spotd", ["work: 40h", "deadline: 60h"])
def test_without_both_spot_stays_spot(spotd: str) -> None:
    parsed = read(spotd, "{accelerators: H100:8, use_spot: true}")
    assert parsed.spec.resources.alternatives[0].capacity_types == (SPOT,)


def test_a_deadline_on_spot_alone_is_no_promise() -> None:
    parsed = read("deadline: 60h, work: 40h, capacity: spot")
    assert parsed.spec.resources.alternatives[0].capacity_types == (SPOT,)
    (text,) = parsed.warnings
    assert "cannot be guaranteed with spot only" in text


def test_steps_need_to_be_measured_before_a_deadline_is_looked_at() -> None:
    (text,) = read("deadline: 60h, work: 1000 steps").warnings
    assert "only after two checkpoints show how long a step takes" in text


def test_the_model_gives_speeds_and_amount_of_work() -> None:
    kinds = "{any_of: [{accelerators: H100:8}, {accelerators: A100-80GB:8}, {accelerators: X9:8}]}"
    preferences = read(MODEL, kinds).spec.preferences
    first, second = preferences.speeds
    assert first == Speed("H100", 8, 1.0)
    assert (second.accelerator, second.count) == ("A100-80GB", 8)
    assert 0.2 < second.times < 0.7  # 312 of 989 TFLOP/s, and both short of their peak
    assert preferences.work_s > 0
    assert preferences.work_steps == 0


def test_explicit_work_precedes_the_model() -> None:
    assert read(f"work: 10h, {MODEL}").spec.preferences.work_s == 36_000
    steps = read("model: {name: llama-3-8b, steps: 500}").spec.preferences
    assert (steps.work_steps, steps.work_s) == (500, 0.0)
    assert steps.step_s > 0


@pytest.mark.req("HYB-06")
@pytest.mark.parametrize(
    ("more", "resources"),
    [
        ("", "{accelerators: H100:8}"),  # both kinds, by price
        (", capacity: spot", "{accelerators: H100:8}"),
        (", capacity: [on_demand, spot]", "{accelerators: H100:8}"),
        ("", "{accelerators: H100:8, use_spot: true}"),
        ("", "{any_of: [{accelerators: H100:8, use_spot: false}, {accelerators: A100:8}]}"),
    ],
)
def test_inference_on_spot_is_refused_unless_accepted(more: str, resources: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(f"kind: inference{more}", resources)
    (problem,) = caught.value.problems
    assert "spotd.kind" in str(problem)
    assert "serve_on_spot: true" in str(problem)
    accepted = read(f"kind: inference, serve_on_spot: true{more}", resources).spec
    assert accepted == read(f"kind: training{more}", resources).spec


@pytest.mark.req("HYB-06")
def test_inference_runs_on_demand() -> None:
    served = read("kind: inference, capacity: on_demand").spec
    assert served.resources.alternatives[0].capacity_types == (ON_DEMAND,)
    assert read("kind: inference", "{accelerators: H100:8, use_spot: false}").spec
    (text,) = refused("serve_on_spot: true")
    assert "needs kind: inference" in text
    assert refused("kind: serving")


def test_total_steps_is_the_work_in_steps() -> None:
    assert read("total_steps: 5000").spec.preferences.work_steps == 5000
    (text,) = refused("total_steps: 5000, work: 40h")
    assert "spotd.total_steps" in text
    assert "leave one of the two out" in text
