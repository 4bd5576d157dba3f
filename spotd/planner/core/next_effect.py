"""The next call that a node needs, derived from what is committed about it, never remembered.

`need` names the call and `due` says when it may be made. The rules arm a due call in the same
commit that makes it due, so that no other pass repeats it while it is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable

from providers.base import InstanceState
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node, NoticeRecord
from spotd.domain.states import TRAINS_ON, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.backoff import effect_backoff_s
from spotd.planner.core.gangs import (
    gang_finished_us,
    joining,
    mate_released,
    newcomers,
    remaining,
    scripts_gang,
)
from spotd.planner.core.image_build import need_baked, setup_done
from spotd.wire import CLAIM_AFTER_RELEASE, CLAIM_NOW, EXIT_FINISHED, EXIT_RELEASED

# How long a call may take before it counts as lost and may be made again, in seconds.
CALL_DEADLINE_S = {
    EffectKind.LAUNCH: 15.0,
    EffectKind.RESOLVE: 15.0,
    EffectKind.SURVEY: 15.0,
    EffectKind.BOOT: 60.0,
    EffectKind.START: 900.0,  # ships the job's packages, up to 1 GiB
    EffectKind.RELEASE: 20.0,
    EffectKind.DRAIN: 20.0,
    EffectKind.SAVE: 20.0,
    EffectKind.READ_HEAD: 20.0,
    EffectKind.IMAGE: 900.0,  # overwrites what may not be in an image
    EffectKind.TERMINATE: 15.0,
}
LAUNCH_S = 10.0  # how long a create itself may take, by the port's contract
LAST_LOOK = 0.75  # of the time after which a silent node is given up: HEAD is read once more
_FOLLOWED = (NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING)


def last_start_us(kind: EffectKind, deadline_us: int) -> int:
    """Return the latest start of a call that is armed until `deadline_us`.

    A launch must have ended by its deadline: a machine that appears later would belong to no job.
    """
    return deadline_us - int(LAUNCH_S * S) if kind is EffectKind.LAUNCH else deadline_us


def silent_since_us(node: Node) -> int:
    """Return when the node last showed a sign of life, or its boot if it never did.

    A restart of its agent is not a sign of life: the agent may end as soon as it starts.
    """
    return node.agent.heard_at_us or node.startup.booted_at_us


def hearing_since_us(node: Node, market: Market) -> int:
    """Return since when messages of the node could be received without a gap.

    Earlier silence says nothing about the node: the daemon or the jump host may be the cause.
    """
    uptime = market.uptime
    return max(uptime.listening_since_us, uptime.reached_since_us.get(node.offer.provider, 0))


def cut_off(node: Node, market: Market, now_us: int) -> bool:
    """Return whether the path to the node is broken: it may be fine and cannot be reached."""
    return market.uptime.reached_since_us.get(node.offer.provider, 0) >= now_us


def suspect(node: Node, market: Market, now_us: int) -> bool:
    """Return whether the node's link is down or it has been silent for too long."""
    if (
        not node.startup.booted_at_us
        or node.training.exit_code is not None
        or node.training.setup_failed
    ):
        return False
    if node.agent.link_down_at_us:
        return True
    since_us = max(silent_since_us(node), hearing_since_us(node, market))
    return now_us - since_us > market.timing.suspect_after_s * S


def may_write(node: Node) -> bool:
    """The node has the right to HEAD and has not given it up: a successor must wait for it."""
    writing = node.state in (NodeState.RUNNING, NodeState.DRAINING)
    return (
        node.chosen
        and writing
        and not node.training.released_at_us
        and node.training.exit_code is None
    )


def predecessors(node: Node, view: View) -> list[Node]:
    """Older nodes of the job that may still write."""
    return [old for old in view.nodes if old.generation < node.generation and may_write(old)]


def claim_for(node: Node, view: View, now_us: int) -> tuple[str, float]:
    """Return when `node` may claim HEAD: the kind of claim, and the latest seconds until it may."""
    waiting = predecessors(node, view)
    if not waiting:
        return CLAIM_NOW, 0.0
    ends = [release_deadline_us(old, view, now_us) for old in waiting]
    return CLAIM_AFTER_RELEASE, max(0.0, (max(ends) - now_us) / S)


def release_deadline_us(node: Node, view: View, now_us: int) -> int:
    """Return when a draining node can no longer save: its notice's deadline, or the job's grace.

    A node that trains until its replacement is ready starts its save only then and gets the time
    for it. A rank that drains because of another rank's notice has that notice's time.
    """
    key = (node.generation, node.candidate)
    mates = [mate for mate in view.nodes if (mate.generation, mate.candidate) == key]
    noticed = _takers(node.notices) or [n for mate in mates for n in _takers(mate.notices)]
    deadlines = [n.heard_at_us if n.deadline_us is None else n.deadline_us for n in noticed]
    if deadlines:
        return min(deadlines)
    spec = view.job.spec
    started_us = node.departure.drained_at_us or now_us
    if node.departure.leave_reason in TRAINS_ON:
        started_us = node.agent.told_release_at_us or now_us + int(
            spec.timeouts.setup_timeout_s * S
        )
    return started_us + int(spec.timeouts.stop_grace_s * S)


def _takers(notices: Iterable[NoticeRecord]) -> list[NoticeRecord]:
    return [notice for notice in notices if notice.takes_machine]


def replacement_ready(node: Node, view: View) -> bool:
    """Return whether every rank of a newer chosen gang is ready to claim HEAD."""
    newer = [n for n in view.nodes if n.generation > node.generation and n.chosen]
    ready = [n for n in newer if n.state is NodeState.BOOTING and n.startup.ready_at_us]
    return len(ready) >= view.job.spec.resources.num_nodes


def need(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    """The one call that this node needs next; None when it needs none."""
    if node.state in _FOLLOWED and may_have_finished(node, view):
        return EffectKind.READ_HEAD
    if view.job.spec.program.bake and node.state is NodeState.BOOTING and setup_done(node):
        return need_baked(node, now_us)
    match node.state:
        case NodeState.LAUNCHING:
            launched = node.instance_id or node.machine.launch_error
            return None if launched else EffectKind.LAUNCH
        case NodeState.BOOTING:
            return _need_booting(node, view, market, now_us)
        case NodeState.RUNNING:
            return _need_running(node, view, market, now_us)
        case NodeState.DRAINING:
            return _need_draining(node, view, market, now_us)
        case NodeState.TERMINATING:
            return _need_terminating(node, market, now_us)
        case NodeState.GONE:
            newest = node.generation == view.job.generation
            return EffectKind.READ_HEAD if newest and end_unread(node, view) else None


def may_have_finished(node: Node, view: View) -> bool:
    """Return whether a crashed node may have finished the job.

    That is so if HEAD was released and not read since the crash: it may hold the final manifest.
    """
    head = view.job.head
    if head is None or head.final or not head.released or head.generation != node.generation:
        return False
    crashed = node.training.exit_code not in (None, EXIT_FINISHED, EXIT_RELEASED)
    return crashed and head.read_at_us < max(node.training.exited_at_us, head.seen_at_us)


def end_unread(node: Node, view: View) -> bool:
    """Return whether the program has ended and HEAD was not read since.

    Only HEAD says whether the job is done. Until it is read, another machine might be launched for
    a job that is done.
    """
    job, head = view.job, view.job.head
    if job.outcome is not None or job.spec.program.bake:
        return False
    if may_have_finished(node, view):
        return True
    if (
        node.training.exit_code != EXIT_FINISHED
        or not node.chosen
        or node.rank
        or scripts_gang(job)
    ):
        return False
    return head is None or (not head.final and head.read_at_us < node.training.exited_at_us)


def alive_at_us(node: Node, view: View, market: Market) -> int:
    """Return when the node last showed that it lives, by its journal or by a checkpoint seen in
    HEAD.

    Before the daemon could receive from it, it counts as alive.
    """
    head, silent_us = view.job.head, max(silent_since_us(node), hearing_since_us(node, market))
    if head is None or head.generation != node.generation or head.step <= node.training.last_step:
        return silent_us
    return max(silent_us, head.seen_at_us)


def last_look_us(node: Node, view: View, market: Market) -> int:
    """Return when a silent node is checked for the last time before it is given up."""
    return alive_at_us(node, view, market) + int(LAST_LOOK * market.timing.lost_after_s * S)


def lost_at_us(node: Node, view: View, market: Market) -> int:
    """Return when a silent node may be given up.

    After its last check of HEAD, and after its cloud was unavailable, it has the rest of its time
    to respond: the fault that prevented the check may also have delayed its messages.
    """
    looked_us = _head_read_at_us(view) if node.training.claimed_at_us else 0
    asked_us = max(looked_us, market.uptime.answering_since_us.get(node.offer.provider, 0))
    rest_us = int((1 - LAST_LOOK) * market.timing.lost_after_s * S)
    return max(last_look_us(node, view, market), asked_us) + rest_us


def unanswered(node: Node, view: View, market: Market) -> str:
    """Return which source (cloud or store) has not been re-checked since the last check, or ""."""
    look_us = last_look_us(node, view, market)
    if node.machine.surveyed_at_us < look_us:
        return "its cloud"
    if node.training.claimed_at_us and _head_read_at_us(view) < look_us:
        return "the store of its checkpoints"
    return ""


def _head_read_at_us(view: View) -> int:
    return view.job.head.read_at_us if view.job.head else 0


def _look_due(node: Node, view: View, market: Market, now_us: int) -> bool:
    """Return whether a read of HEAD is due.

    It is due for the last check, and from time to time while the path to the node is broken and the
    node is not given up: it may have finished meanwhile.
    """
    read_us, look_us = _head_read_at_us(view), last_look_us(node, view, market)
    if cut_off(node, market, now_us):
        pause_us = int(LAST_LOOK * market.timing.lost_after_s * S)
        return now_us - max(read_us, silent_since_us(node)) >= pause_us
    return now_us >= look_us and read_us < look_us


def _need_contact(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    """Return the next call to a suspect node.

    Poll the cloud. If the machine runs, start the agent again: it may have died while training
    continued. Read HEAD before giving up.
    """
    timing = market.timing
    if not suspect(node, market, now_us):
        return None
    look = bool(node.training.claimed_at_us) and _look_due(node, view, market, now_us)
    # A machine that froze keeps a call for long: the last look does not wait for that.
    if not look and _in_flight(node, market, EffectKind.BOOT, node.startup.booted_at_us, now_us):
        return EffectKind.BOOT
    if _in_flight(node, market, EffectKind.READ_HEAD, _head_read_at_us(view), now_us):
        return EffectKind.READ_HEAD
    since_us = node.agent.link_down_at_us or silent_since_us(node)
    asked = node.machine.surveyed_at_us > since_us
    if not asked or now_us - node.machine.surveyed_at_us >= timing.resurvey_s * S:
        return EffectKind.SURVEY
    again = now_us - node.startup.booted_at_us >= timing.suspect_after_s * S
    if look:
        return EffectKind.READ_HEAD
    if node.machine.cloud_state == InstanceState.RUNNING and (
        node.startup.booted_at_us <= since_us or again
    ):
        return EffectKind.BOOT
    return None


def _armed(node: Node, market: Market, kind: EffectKind) -> bool:
    """Return whether the last armed call is of this kind, by a daemon that has not died since."""
    since_us = max(market.uptime.started_at_us, 1)
    return node.call.effect is kind and node.call.effect_armed_at_us >= since_us


def _in_flight(node: Node, market: Market, kind: EffectKind, done_at_us: int, now_us: int) -> bool:
    """Return whether the outcome of the last call, of this kind, is still unknown."""
    over_us = max(done_at_us, node.call.effect_failed_at_us)
    recent = node.call.effect_armed_at_us > over_us and now_us < node.call.effect_due_at_us
    return recent and _armed(node, market, kind)


def _need_booting(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    if not node.address.host:
        return EffectKind.SURVEY
    if not node.startup.booted_at_us:
        if _in_flight(node, market, EffectKind.BOOT, node.startup.booted_at_us, now_us):
            return EffectKind.BOOT
        # Its cloud may still say that nothing comes of it.
        look_us = look_at_us(node, market)
        return EffectKind.SURVEY if 0 < look_us <= now_us else EffectKind.BOOT
    if node.training.exit_code == EXIT_FINISHED:
        return _need_finished(node, view, market, now_us)
    start = EffectKind.START if _start_wanted(node, view, now_us) else None
    if start and _in_flight(node, market, start, node.startup.started_at_us, now_us):
        return start  # it may ship packages for long
    return _need_contact(node, view, market, now_us) or start


def look_at_us(node: Node, market: Market) -> int:
    """Return when to poll the cloud again about a pending launch; 0 for a running machine."""
    if node.machine.cloud_state != InstanceState.PENDING:
        return 0
    return node.machine.surveyed_at_us + int(market.timing.resurvey_s * S)


def _start_wanted(node: Node, view: View, now_us: int) -> bool:
    """Return whether to start the program, or to allow a successor to claim HEAD earlier.

    A machine that will join a gang is started without a rank: it prepares and waits.
    """
    if not node.startup.hello_at_us or node.training.claimed_at_us:
        return False
    if not node.chosen:
        joins = node in newcomers(view) and bool(remaining(view, now_us))
        return joins and not node.startup.started_at_us
    claim, _ = claim_for(node, view, now_us)
    advanced = claim == CLAIM_NOW and node.startup.started_claim == CLAIM_AFTER_RELEASE
    return not node.startup.started_at_us or (advanced and not _released_itself(node, view))


def _released_itself(node: Node, view: View) -> bool:
    """Return whether the predecessor has released in HEAD, which the successor sees by itself."""
    head = view.job.head
    return head is not None and head.released and head.generation < node.generation


def _need_running(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    if node.training.exit_code == EXIT_FINISHED:
        return _need_finished(node, view, market, now_us)
    contact = _need_contact(node, view, market, now_us)
    if node.rank and view.job.spec.checkpoint.engine != "none":
        return contact  # the ranks of our engine save together: rank 0 gets the message
    head, yields_us = view.job.head, view.job.queue.yields_since_us
    if contact is None and yields_us and head and max(yields_us, head.read_at_us) < head.seen_at_us:
        return EffectKind.READ_HEAD  # saved for who gets its machines: by its own word as yet
    wanted_us = view.job.progress.save_wanted_at_us
    if contact is None and wanted_us > max(
        node.agent.told_save_at_us, node.training.first_step_at_us
    ):
        return EffectKind.SAVE
    return contact


def _need_draining(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    if node.training.exit_code == EXIT_FINISHED:
        return _need_finished(node, view, market, now_us)
    contact = _need_contact(node, view, market, now_us)
    if contact is None and node.training.exit_code is None and not node.training.released_at_us:
        if node.departure.leave_reason not in TRAINS_ON and not node.agent.told_drain_at_us:
            return EffectKind.DRAIN
        ready = replacement_ready(node, view) or mate_released(node, view)
        ready = ready or (node.chosen and bool(joining(view, now_us)))
        if not node.agent.told_release_at_us and ready:
            return EffectKind.RELEASE
    return contact


def _need_finished(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    """Return the next call for a program that reports its end: HEAD must confirm it.

    In a gang of scripts without spotd's engine, rank 0 is told to record the end in HEAD when all
    have ended.
    """
    head = view.job.head
    if head is not None and head.final:
        return None
    read_at_us = head.read_at_us if head else 0
    if not scripts_gang(view.job):
        return EffectKind.READ_HEAD if read_at_us < node.training.exited_at_us else None
    ended_us = gang_finished_us(node, view)
    if node.rank or not ended_us:
        return None
    if node.agent.told_save_at_us <= ended_us:
        return EffectKind.SAVE
    # The agent moves HEAD after it has answered, and says so when it has.
    news_us = max(node.agent.told_save_at_us, head.seen_at_us if head else 0)
    late = now_us - read_at_us >= market.timing.resurvey_s * S
    return EffectKind.READ_HEAD if read_at_us < news_us or late else None


def _need_terminating(node: Node, market: Market, now_us: int) -> EffectKind | None:
    if not node.instance_id:
        if node.machine.gone_at_us:
            return None
        # Paced by its own calls: listings that others ask for never say that it is absent.
        asked_us = node.call.effect_armed_at_us if node.call.effect is EffectKind.RESOLVE else 0
        return EffectKind.RESOLVE if now_us - asked_us >= market.timing.resurvey_s * S else None
    if not node.machine.terminated_at_us:
        return EffectKind.TERMINATE
    if now_us - node.machine.terminated_at_us >= market.timing.reterminate_s * S:
        return EffectKind.TERMINATE
    last_us = max(node.machine.surveyed_at_us, node.machine.terminated_at_us)
    # The first look comes soon: most clouds list a terminated machine as such at once.
    wait_s = (
        market.timing.resurvey_s
        if node.machine.surveyed_at_us > node.machine.terminated_at_us
        else 0.5
    )
    return EffectKind.SURVEY if now_us - last_us >= wait_s * S else None


def _done_at_us(node: Node, view: View, kind: EffectKind) -> int:
    """Return when a call of this kind last had an outcome; 0 if the outcome ends the need."""
    return {
        **dict.fromkeys((EffectKind.SURVEY, EffectKind.RESOLVE), node.machine.surveyed_at_us),
        EffectKind.BOOT: node.startup.booted_at_us,
        EffectKind.START: node.startup.started_at_us,
        EffectKind.TERMINATE: node.machine.terminated_at_us,
        EffectKind.SAVE: node.agent.told_save_at_us,
        EffectKind.READ_HEAD: view.job.head.read_at_us if view.job.head else 0,
        EffectKind.IMAGE: max(node.bake.cleaned_at_us, node.bake.image_asked_at_us),
    }.get(kind, 0)


def due_at_us(node: Node, view: View, market: Market, kind: EffectKind, now_us: int) -> int:
    """Return when the needed call may be made.

    That is now, when the call in flight is given up, or when the pause after a failure ends.
    """
    # A cloud is asked about the same machine at most twice a second.
    free_us = max(now_us, node.machine.surveyed_at_us + S // 2 if kind is EffectKind.SURVEY else 0)
    if not _armed(node, market, kind):
        return free_us
    if _done_at_us(node, view, kind) >= node.call.effect_armed_at_us:
        return free_us
    if node.call.effect_failed_at_us >= node.call.effect_armed_at_us:
        pause_us = int(effect_backoff_s(node.call.effect_failures) * S)
        return max(now_us, node.call.effect_failed_at_us + pause_us)
    return max(now_us, node.call.effect_due_at_us)
