"""The arms differ in how many are asked at once and in nothing else; clouds take their time to
refuse; and what losers cost is counted, and told alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tests.sim.hedging.world
from spotd.domain.states import LeaveReason
from spotd.store.interface import Store
from tests.sim.hedging.__main__ import main
from tests.sim.hedging.arms import ARMS, Arm
from tests.sim.hedging.cases import drawn
from tests.sim.hedging.life import Life, lived
from tests.sim.hedging.score import differences, summed, table
from tests.sim.hedging.world import BOOT_S, SLOW_S, boot_s
from tests.sim.replay.trace import Case, made

ONE, SHIPPED, TWO, FOUR = ARMS
EAST, WEST, NORTH = "us-east-1a_v100_1", "us-west-2a_v100_1", "us-west1-a_h100_16"
ALWAYS = "#" * 24
OPEN = made("open", {EAST: ALWAYS, WEST: ALWAYS}, spot=(1.0, 2.0), on_demand=9.0, deadline_h=4.0)
FULL = made("full", {NORTH: "." * 24, EAST: ALWAYS}, spot=(1.0, 2.0), on_demand=9.0, deadline_h=4.0)


@pytest.fixture
def booting(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How long machines take to come up, by the beginning of their place; 150 s where none is."""
    seconds: dict[str, float] = {}

    def told(_seed: str, place: str, _tick: int, _before: int) -> float:
        return next((s for name, s in seconds.items() if place.startswith(name)), 150.0)

    monkeypatch.setattr(tests.sim.hedging.world, "boot_s", told)
    return seconds


def well(life: Life) -> Life:
    assert not life.violation
    assert life.orphan_s == 0
    assert life.late_s == 0
    return life


def test_one_at_a_time_is_just_that_and_the_others_are_not(booting: dict[str, float]) -> None:
    """The cheaper place takes 10 minutes: the shipped daemon asks for another after 8."""
    booting["us-east"] = 600.0
    one, shipped, two = (well(lived(OPEN, arm)) for arm in (ONE, SHIPPED, TWO))
    assert (one.side_by_side, one.losers, one.machines) == (0, 0, 1)
    assert one.hunts_s[0] == pytest.approx(600, abs=30)
    assert (shipped.side_by_side, shipped.losers) == (1, 1)
    assert shipped.hunts_s[0] == pytest.approx(600, abs=30)  # the slow one is first all the same
    assert (two.side_by_side, two.losers) == (2, 1)  # either beside the other
    assert two.hunts_s[0] == pytest.approx(150, abs=30)


def test_four_ask_for_no_more_than_there_is(booting: dict[str, float]) -> None:
    booting["us-east"] = 300.0
    four = well(lived(OPEN, FOUR))
    assert (four.side_by_side, four.losers) == (2, 1)
    assert four.hunts_s[0] == pytest.approx(150, abs=30)


def test_what_losers_cost_is_counted_and_is_what_the_ledger_says(
    booting: dict[str, float],
) -> None:
    """A loser at $1/h for as long as the other took: by the clouds' meters and by the record."""
    booting["us-east"] = 600.0
    paid: dict[bool, float] = {}

    def look(store: Store) -> None:
        (job,) = store.jobs.rows()
        nodes = {node.id: node for node in store.nodes.of_job(job.id)}
        for row in store.ledger.segments(job.id):
            if row.state != "void":
                lost = nodes[row.node_id].departure.leave_reason is LeaveReason.HEDGE_LOST
                hours = (row.end_us - row.start_us) / 3.6e9
                paid[lost] = paid.get(lost, 0.0) + hours * row.rate_microusd_per_h / 1e6

    life = well(lived(OPEN, TWO, look=look))
    assert life.losers_usd == pytest.approx(150 / 3600 * 1.0, abs=60 / 3600)
    assert life.losers_usd == pytest.approx(paid[True], abs=60 / 3600)
    assert life.usd == pytest.approx(paid[True] + paid[False], abs=60 / 3600 * 2)
    alone = well(lived(OPEN, ONE))
    assert alone.losers_usd == 0
    assert alone.usd == pytest.approx(alone.done_h * 1.0, abs=60 / 3600)


def test_a_cloud_takes_as_long_to_refuse_as_it_does(booting: dict[str, float]) -> None:
    """Google Cloud accepts, and says after 30 s that it has none; AWS says so at once."""
    del booting  # 150 s everywhere
    slow = well(lived(FULL, ONE))
    assert slow.asked == 2
    assert slow.hunts_s[0] == pytest.approx(30 + 150, abs=25)
    at_once = replace(FULL, zones=(WEST, EAST))
    assert well(lived(at_once, ONE)).hunts_s[0] == pytest.approx(1 + 150, abs=15)
    beside = well(lived(FULL, TWO))
    assert beside.hunts_s[0] == pytest.approx(150, abs=15)
    assert beside.losers == 0


def test_a_loss_is_timed_from_the_last_moment_of_training_to_the_next_first_step(
    booting: dict[str, float],
) -> None:
    """Taken away after 80 minutes; AWS says so 2 minutes before, in which the next one boots."""
    del booting
    case = made(
        "taken",
        {EAST: "########" + "." * 16, WEST: ALWAYS},
        spot=(1.0, 2.0),
        on_demand=9.0,
        work_h=2.0,
        deadline_h=4.0,
    )

    def look(store: Store) -> None:
        """The daemon knows soon that a machine trains: one that does is given time to save."""
        (job,) = store.jobs.rows()
        for node in store.nodes.of_job(job.id):
            assert 0 < node.training.first_step_at_us - node.training.claimed_at_us < 60e6

    life = well(lived(case, ONE, look=look))
    (gap_s,) = life.gaps_s
    assert 150 + 420 - 120 <= gap_s <= 150 + 420 + 60
    assert life.machines == 2
    assert life.steps_lost == 0
    assert life.alone_h == pytest.approx((150 + 30) / 3600, abs=0.02)


def test_a_job_that_names_no_deadline_is_played_as_well(booting: dict[str, float]) -> None:
    del booting
    life = well(lived(FULL, TWO, deadline=False))
    assert life.done_h < 2


def test_how_long_a_machine_takes_is_the_same_for_who_asks_at_the_same_moment() -> None:
    found = [boot_s("seed", "zone/spot", tick, 0) for tick in range(2000)]
    assert found == [boot_s("seed", "zone/spot", tick, 0) for tick in range(2000)]
    slow = [seconds for seconds in found if seconds > BOOT_S[1]]
    assert 150 < len(slow) < 250
    assert BOOT_S[0] <= min(found)
    assert max(found) <= SLOW_S[1]


def test_scarcity_is_drawn_the_same_each_time_and_on_three_clouds() -> None:
    (one, other), again = drawn(2), drawn(2)
    assert again[0].case == one.case
    assert one.case.avail != other.case.avail
    assert {one.case.key(zone).split("/")[0] for zone in range(12)} == {"aws", "gcp", "azure"}
    up = sum(map(sum, one.case.avail)) / sum(map(len, one.case.avail))
    assert 0.05 < up < 0.4
    assert one.block != other.block


def life_of(case: str, arm: str, usd: float, **more: float) -> Life:
    life = Life(
        case=case,
        arm=arm,
        usd=usd,
        losers_usd=0.0,
        unchosen_usd=0.0,
        losers=0,
        alone_h=1.0,
        done_h=10.0,
        gaps_s=(60.0,),
        hunts_s=(30.0, 90.0),
        late_s=0.0,
        steps_lost=0,
        orphan_s=0.0,
        violation="",
        machines=2,
        asked=3,
        side_by_side=1,
    )
    return replace(life, **more)  # type: ignore[arg-type]


def test_arms_are_compared_case_by_case() -> None:
    single = [life_of(name, "one", usd) for name, usd in (("a", 10.0), ("b", 20.0), ("c", 30.0))]
    dearer = [
        replace(one, arm="two", usd=one.usd * 1.1, losers_usd=1.0, losers=2) for one in single
    ]
    found = differences([0, 1, 2], dearer, single)
    percent, around = found["usd"]
    assert percent == pytest.approx(10)
    assert around == pytest.approx((10, 10))
    assert found["alone_h"][0] == 0
    assert differences([0, 0, 0], dearer, single)["usd"] == (pytest.approx(10), None)
    with pytest.raises(ValueError, match="other cases"):
        differences([0, 1, 2], dearer[::-1], single)
    total = summed("M1", [0, 1, 2], [replace(dearer[0], late_s=5.0), *dearer[1:]], single)
    assert (total.late, total.losers, total.losses, total.hunts) == (1, 6, 3, 6)
    assert total.losers_usd == 1.0
    assert total.hunt_s == (60.0, 90.0)
    assert "22.00; +10.0 % [+10.0, +10.0] | 1.00 (6)" in table([total])


def test_what_cannot_be_played_is_refused_with_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, text in (
        ([], "--traces: name the folder of run_bench.py"),
        (["--traces", str(tmp_path)], "has no spotbench"),
        (["--suites", "S1"], "--suites: S1 is none of M1"),
        (["--suites", "X", "--arms", "three"], "--arms: three is none of one"),
        (["--suites", "X", "--every", "0"], "numbers from 1"),
        (["--suites", "X", "--trace"], "--case N"),
        (["--suites", "X", "--draws", "2", "--case", "2"], "--case: X has 2 cases"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert text in capsys.readouterr().err


def test_the_command_prints_both_arms_and_writes_each_life(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(count: int) -> list[object]:
        return [replace(one, case=OPEN) for one in drawn(count)]

    monkeypatch.setattr("tests.sim.hedging.cases.drawn", short)
    file = tmp_path / "found.json"
    words = ["--suites", "X", "--draws", "1", "--arms", "one,two", "--json", str(file)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "| X (1, 1) | one |" in said
    assert "| X (1, 1) | two |" in said
    assert '"side_by_side": 0' in file.read_text()


def test_a_late_job_is_told_and_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(_case: Case, arm: Arm, _seed: str, **_more: object) -> Life:
        return life_of("X/0", arm.name, 1.0, late_s=7.0)

    monkeypatch.setattr("tests.sim.hedging.__main__.lived", late)
    assert main(["--suites", "X", "--draws", "1", "--arms", "one"]) == 1
    assert "X/0, one: 7 s late" in capsys.readouterr().err
