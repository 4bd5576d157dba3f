"""THE policy: `decide(view, market, now_us) -> Plan`, a flat, ordered list of rules.

Every rule looks at the draft as the rules before it left it and adds what follows. A rule never
acts, never waits and knows no other time than `now_us`; running the list again on what it decided
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from spotd.decide.arming import arm
from spotd.decide.booked import next_end_us, with_ends
from spotd.decide.draft import Draft
from spotd.decide.ending import (
    clean_up,
    finish,
    obey_limits,
    stop_interrupted,
    stop_lost,
    stop_wanted,
)
from spotd.decide.filling import move_when_full
from spotd.decide.following import follow
from spotd.decide.growing import ask_others
from spotd.decide.leaving import drain_noticed, give_up_boot, give_up_lost, keep_gang, withdraw
from spotd.decide.outbidding import move_outbid
from spotd.decide.overdue import tell_unsaved
from spotd.decide.placing import choose, place_job
from spotd.decide.queueing import give_way
from spotd.decide.regrouping import regroup, send_home, take_in
from spotd.decide.saving import move_when_slow, save_when_slow
from spotd.decide.settling import settle_exits, settle_observed, settle_trained
from spotd.decide.steering import steer
from spotd.model import (
    Market,
    View,
)
from spotd.plan import (
    Plan,
)

RULES: tuple[Callable[[Draft], None], ...] = (
    settle_observed,  # what the clouds and the nodes said moves the states
    settle_exits,  # a program that ended: finished, released, fenced or crashed
    finish,  # a final manifest is the job's success
    follow,  # the job before it has not succeeded
    obey_limits,  # cost and duration
    stop_lost,  # its losses are no numbers any more
    stop_wanted,  # cancel, pause, or a limit: save and give back
    drain_noticed,  # a notice: drain, and place in the same pass
    withdraw,  # the notice was withdrawn and nothing is lost yet
    move_when_slow,  # two rounds slower than itself
    move_when_full,  # its disk stays full
    give_up_lost,  # silent, and the cloud or time says dead
    give_up_boot,  # never said hello
    move_outbid,  # its price rose above the job's cap
    give_way,  # a job of higher priority waits for its room
    take_in,  # a gang that misses some: those that are ready
    keep_gang,  # one rank leaves: all do
    stop_interrupted,  # it was taken away more often than it may be
    regroup,  # or those that are left go on, in a new attempt
    choose,  # the first whole gang that said hello
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
    """What to change about one job now, with the reasons. Pure: same arguments, same plan."""
    draft = Draft(with_ends(view, now_us), market, now_us)
    end_us = next_end_us(view, now_us)
    if end_us:
        draft.wake(end_us)
    for rule in RULES:
        rule(draft)
    return draft.plan()
