"""The planner: `decide(view, market, now_us) -> Plan`, a flat, ordered list of rules.

Every rule reads the plan as the rules before it left it, and adds to it. A rule performs nothing,
never waits, and knows no time but `now_us`. Running the list again on its own result changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from spotd.domain.market import Market
from spotd.domain.plan import Plan
from spotd.domain.view import View
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.core.reservation_end import next_end_us, with_ends
from spotd.planner.queue.fair_share import give_way
from spotd.planner.rules.apply_observations import settle_exits, settle_observed, settle_trained
from spotd.planner.rules.arm_effects import arm
from spotd.planner.rules.disk_full import move_when_full
from spotd.planner.rules.finish_job import (
    clean_up,
    finish,
    obey_limits,
    stop_interrupted,
    stop_lost,
    stop_wanted,
)
from spotd.planner.rules.gang_grow import ask_others
from spotd.planner.rules.gang_resize import regroup, send_home, take_in
from spotd.planner.rules.job_dependency import follow
from spotd.planner.rules.place_job import choose, place_job
from spotd.planner.rules.price_cap import move_outbid
from spotd.planner.rules.replace_node import (
    drain_noticed,
    give_up_boot,
    give_up_lost,
    keep_gang,
    withdraw,
)
from spotd.planner.rules.slow_training import move_when_slow, save_when_slow
from spotd.planner.rules.spot_policy_rule import steer
from spotd.planner.rules.stale_alerts import tell_unsaved

RULES: tuple[Callable[[PlanBuilder], None], ...] = (
    settle_observed,  # reports of clouds and nodes change the states
    settle_exits,  # a program that ended: finished, released, fenced or crashed
    finish,  # a final manifest is the job's success
    follow,  # the job before it has not succeeded
    obey_limits,  # cost and duration
    stop_lost,  # its losses are no longer finite
    stop_wanted,  # cancel, pause, or a limit: save and give back
    drain_noticed,  # a notice: drain, and place in the same pass
    withdraw,  # the notice was withdrawn and nothing is lost yet
    move_when_slow,  # two rounds slower than itself
    move_when_full,  # its disk stays full
    give_up_lost,  # silent, and the cloud or time says dead
    give_up_boot,  # its agent never sent a hello
    move_outbid,  # its price rose above the job's cap
    give_way,  # a job of higher priority waits for its room
    take_in,  # a gang that misses some: those that are ready
    keep_gang,  # one rank leaves: all do
    stop_interrupted,  # it was taken away more often than it may be
    regroup,  # or those that are left go on, in a new attempt
    choose,  # the first complete gang with a hello of every rank
    settle_trained,  # which may train already, of a record that was restored
    steer,  # another place does better by now, or the deadline needs one
    send_home,  # nobody waits for them any more
    ask_others,  # what a gang that goes on misses
    place_job,  # a wanted job without an active node
    save_when_slow,  # health asks for a checkpoint
    tell_unsaved,  # the newest checkpoint is old
    clean_up,  # an ended job keeps nothing
    arm,  # the calls that are due now
)


def decide(view: View, market: Market, now_us: int) -> Plan:
    """Return the changes of one job now, with reasons. Pure: same arguments, same plan."""
    builder = PlanBuilder(with_ends(view, now_us), market, now_us)
    end_us = next_end_us(view, now_us)
    if end_us:
        builder.wake_at(end_us)
    for rule in RULES:
        rule(builder)
    return builder.plan()
