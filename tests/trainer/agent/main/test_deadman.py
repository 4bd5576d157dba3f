"""The dead man's switch: a real agent, and no control box."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import pytest

from spotd import wire
from spotd.wire import AgentConfig, DaemonPresence
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running
from trainer.agent.base.stop_timing import FINAL_S, StopTiming
from trainer.agent.main.deadman import BOOKED_SLACK_S, SLACK_SHARE, Deadman, power_off

DAY_S = 86_400.0
HOUR_S = 3600.0
SCRIPT = StopTiming("none", 29.0)
OURS = StopTiming("spotd", 30.0, save_s=100.0, step_s=10.0)


def deadman(left_s: float = DAY_S, time_s: float = DAY_S, keep_s: float = 0.0) -> Deadman:
    times = {"unattended_s": time_s, "left_s": left_s, "keep_s": keep_s}
    return Deadman(AgentConfig("d", "j", 1, 0, "t", "none", **times), 0.0)


# --- the arithmetic


@pytest.mark.parametrize("policy", [SCRIPT, OURS])
def test_a_program_has_the_whole_time_but_for_its_own_end(policy: StopTiming) -> None:
    end_s = DAY_S * (1 - SLACK_SHARE) - policy.stop_duration_s
    assert not deadman().due(policy, end_s - 1, idle=False)
    found = deadman()
    assert found.due(policy, end_s, idle=False)
    assert found.deadline == DAY_S * (1 - SLACK_SHARE)
    assert found.should_power_off(end_s, awaits_final=True, failed=False), (
        "what was stopped for this waits for nobody"
    )


def test_where_nothing_runs_a_short_outage_is_waited_for() -> None:
    assert not deadman().due(SCRIPT, HOUR_S - 1, idle=True)
    assert deadman().due(SCRIPT, HOUR_S, idle=True)
    assert not deadman().should_power_off(HOUR_S - 1, awaits_final=False, failed=False)
    assert deadman().should_power_off(HOUR_S, awaits_final=False, failed=False)
    assert not deadman().should_power_off(HOUR_S, awaits_final=True, failed=False), (
        "only the box knows whether the gang is done"
    )
    assert deadman().should_power_off(DAY_S, awaits_final=True, failed=False)


def test_what_failed_is_kept_for_its_user_as_long_as_the_job_asks() -> None:
    """Counted from the failure, which may be long after the last contact; never beyond the whole
    time, which bounds the cost of a dead box."""
    end_s = 5 * HOUR_S
    found = deadman(keep_s=6 * HOUR_S)
    assert not found.should_power_off(end_s, awaits_final=False, failed=True)
    assert not found.should_power_off(end_s + 6 * HOUR_S - 1, awaits_final=False, failed=True)
    assert found.should_power_off(end_s + 6 * HOUR_S, awaits_final=False, failed=True)
    assert deadman(keep_s=6 * HOUR_S).should_power_off(end_s, awaits_final=False, failed=False), (
        "nothing to look at"
    )
    brief = deadman(keep_s=60.0)
    assert not brief.should_power_off(60.0, awaits_final=False, failed=True)
    assert not brief.should_power_off(HOUR_S - 1, awaits_final=False, failed=True), (
        "a short outage is waited for"
    )
    long = deadman(keep_s=7 * DAY_S)
    assert not long.should_power_off(22 * HOUR_S, awaits_final=False, failed=True)
    assert long.should_power_off(DAY_S * (1 - SLACK_SHARE), awaits_final=False, failed=True)


def test_every_word_begins_it_anew() -> None:
    found = deadman()
    for hour in range(1, 100):
        assert not found.due(SCRIPT, hour * HOUR_S, idle=hour % 2 == 0 and hour < 2)
        found.renew(DAY_S, hour * HOUR_S)
    assert not found.due(SCRIPT, 122 * HOUR_S, idle=False)
    assert found.due(SCRIPT, 123 * HOUR_S, idle=False)


def test_a_box_that_cannot_renew_the_expiry_does_not_save_the_machine_from_it() -> None:
    """spot-reaper goes by the tag: the program must save before that, although the box is in
    contact."""
    found = deadman()
    for hour in range(1, 24):
        found.renew(DAY_S - hour * HOUR_S, hour * HOUR_S)
    assert found.due(SCRIPT, DAY_S, idle=False)


def test_a_cloud_that_ends_the_machine_in_any_case_finds_it_saved() -> None:
    """The cloud's limit counts from the machine's start and cannot be extended."""
    config = AgentConfig(
        "d", "j", 1, 0, "t", "none", unattended_s=DAY_S, left_s=DAY_S, life_s=3 * DAY_S
    )
    found = Deadman(config, 0.0)
    for hour in range(1, 71):
        found.renew(DAY_S, hour * HOUR_S)
        assert not found.due(SCRIPT, hour * HOUR_S, idle=False)
    found.renew(DAY_S, 71 * HOUR_S)
    assert found.due(SCRIPT, 3 * DAY_S - DAY_S * SLACK_SHARE - SCRIPT.stop_duration_s, idle=False)
    assert "the cloud's own time limit" in found.reason(71 * HOUR_S)


@pytest.mark.parametrize("time_s", [DAY_S, 30 * DAY_S])
def test_booked_time_is_used_to_its_end_and_all_is_saved_by_then(time_s: float) -> None:
    """Reserved time is paid for, so it is used whatever the other limits are."""
    times = {"unattended_s": time_s, "left_s": time_s, "ends_s": 2 * HOUR_S}
    found = Deadman(AgentConfig("d", "j", 1, 0, "t", "none", **times), 0.0)
    last_s = 2 * HOUR_S - BOOKED_SLACK_S - SCRIPT.stop_duration_s
    found.renew(time_s, HOUR_S)
    assert not found.due(SCRIPT, last_s - 1, idle=False)
    assert found.due(SCRIPT, last_s, idle=False)
    assert "reserved time" in found.reason(last_s)


def test_no_word_takes_time_away() -> None:
    """A box whose database was restored may send an expiry of yesterday."""
    found = deadman()
    found.renew(-HOUR_S, 10.0)
    found.renew(None, 20.0)
    assert not found.due(SCRIPT, 23 * HOUR_S, idle=False)
    restarted = deadman(left_s=0.0)
    assert not restarted.due(SCRIPT, HOUR_S / 2, idle=False)


def test_without_a_time_it_is_off() -> None:
    found = deadman(0.0, 0.0)
    assert not found.enabled
    assert not found.due(SCRIPT, 1e9, idle=True)
    assert not found.should_power_off(1e9, awaits_final=False, failed=False)


def test_a_switch_that_does_not_work_is_left_to_the_reaper(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        for argv in ((), ("/no/such/switch",), ("false",)):
            power_off(argv, {})
    assert [record.message.count("left to spot-reaper") for record in caplog.records] == [1, 1, 1]


# --- a real agent


@pytest.fixture
def switch(node: Node, tmp_path: Path) -> Path:
    """A file that exists once the machine was switched off."""
    path = tmp_path / "off"
    node.power_off = (sys.executable, "-c", f"open({str(path)!r}, 'w')")
    return path


def test_unattended_it_saves_releases_and_switches_the_machine_off(
    node: Node, switch: Path
) -> None:
    """A running program has its whole time before that."""
    node.unattended_s, grace_s = 6.0, 1.0
    node.run()
    pid = node.agent_pid
    node.start(
        run="trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done", stop_grace_s=grace_s
    )
    started = node.wait_for(wire.STARTED)
    draining = node.wait_for(wire.DRAINING)
    assert "no contact with the control box" in draining.data["reason"]
    stopped_after_s = (draining.at_us - started.at_us) / 1e6
    own_end_s = 6.0 * SLACK_SHARE + grace_s + FINAL_S
    assert stopped_after_s > 6.0 - own_end_s - 2.0, "its start may be heard of a little late"
    wait_until("the machine is off", switch.exists)
    wait_until("the agent has left", lambda: not is_running(pid))
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert wire.RELEASED in node.kinds()
    head = node.head()
    assert head is not None
    assert head.released
    log = (node.paths.logs / "rank0.log").read_text()
    assert "saved" in log


def test_a_word_from_the_box_keeps_it_going(node: Node, switch: Path) -> None:
    node.unattended_s = 8.0
    node.run()
    follower = node.follow()
    follower.stdin.write(b"nonsense\n" + DaemonPresence(HOUR_S).to_line())
    follower.stdin.flush()
    node.start(run="while :; do sleep 0.05; done", stop_grace_s=0.5)
    node.wait_for(wire.STARTED)
    time.sleep(8.0)  # its whole time passes, since it was last spoken to
    node.live_on(0.5)
    assert wire.DRAINING not in node.kinds()
    assert not switch.exists()


def test_what_has_ended_and_nobody_collects_is_switched_off(node: Node, switch: Path) -> None:
    node.unattended_s = 6.0
    node.run()
    pid = node.agent_pid
    node.start(run="exit 3")
    assert node.wait_for(wire.EXITED).data["code"] == 3
    wait_until("the machine is off", switch.exists)
    wait_until("the agent has left", lambda: not is_running(pid))


def test_what_has_failed_is_left_to_its_user_first(node: Node, switch: Path) -> None:
    """With its files, for the whole time; an idle machine gets half of it."""
    node.unattended_s, node.keep_s = 10.0, 3600.0
    before_s = time.time()
    node.run()
    node.start(run="echo why > evidence; exit 3")
    wait_until("its evidence", (node.paths.workdir / "evidence").exists)
    wait_until("the machine is off", switch.exists)
    assert switch.stat().st_mtime - before_s > 10.0 * (1 - SLACK_SHARE) - 0.1
    assert not (node.paths.workdir / "evidence").exists()


def test_what_was_never_started_is_switched_off(node: Node, switch: Path) -> None:
    node.unattended_s = 2.0
    node.run()
    wait_until("the machine is off", switch.exists)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED


def test_told_to_stop_it_leaves_the_machine_to_the_box(node: Node, switch: Path) -> None:
    node.unattended_s = 3600.0
    node.run()
    pid = node.agent_pid
    node.start(run="sleep 60")
    node.wait_for(wire.STARTED)
    assert node.send(wire.STOP).ok
    wait_until("the agent has left", lambda: not is_running(pid))
    assert not switch.exists()
