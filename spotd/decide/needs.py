"""What has to be done to a node next, derived from what is committed about it; never remembered.
`need` names the call; `due` says when it may be made. The rules arm a due call in the same commit
that makes it due, so that no other pass repeats it while it is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable

from providers.base import InstanceState
from spotd.decide.backoff import effect_backoff_s
from spotd.decide.baking import need_baked, setup_done
from spotd.decide.gangs import (
    gang_finished_us,
    joining,
    mate_released,
    newcomers,
    remaining,
    scripts_gang,
)
from spotd.model import TRAINS_ON, EffectKind, Market, Node, NoticeSeen, S, View
from spotd.states import NodeState
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
    """When a call armed until `deadline_us` may begin at the latest. A create must have ended by
    its deadline: a machine that nobody waits for any more would be nobody's."""
    return deadline_us - int(LAUNCH_S * S) if kind is EffectKind.LAUNCH else deadline_us


def silent_since_us(node: Node) -> int:
    """When the node was last known to live: its last word, or the boot where it never spoke. That
    its agent was started again is no sign of life: it may end as soon as it starts."""
    return node.heard_at_us or node.booted_at_us


def hearing_since_us(node: Node, market: Market) -> int:
    """Since when the node could be heard without a gap: silence before says nothing about it. What
    keeps us from it may be our own, or the jump host on the way to it."""
    return max(market.listening_since_us, market.reached_since_us.get(node.offer.provider, 0))


def cut_off(node: Node, market: Market, now_us: int) -> bool:
    """The way to it is broken: it may do well, and nobody can tell it anything."""
    return market.reached_since_us.get(node.offer.provider, 0) >= now_us


def suspect(node: Node, market: Market, now_us: int) -> bool:
    """Its link is down, or it has been silent for too long."""
    if not node.booted_at_us or node.exit_code is not None or node.setup_failed:
        return False
    if node.link_down_at_us:
        return True
    since_us = max(silent_since_us(node), hearing_since_us(node, market))
    return now_us - since_us > market.timing.suspect_after_s * S


def may_write(node: Node) -> bool:
    """The node has the right to HEAD and has not given it up: a successor must wait for it."""
    writing = node.state in (NodeState.RUNNING, NodeState.DRAINING)
    return node.chosen and writing and not node.released_at_us and node.exit_code is None


def predecessors(node: Node, view: View) -> list[Node]:
    """Older nodes of the job that may still write."""
    return [old for old in view.nodes if old.generation < node.generation and may_write(old)]


def claim_for(node: Node, view: View, now_us: int) -> tuple[str, float]:
    """When `node` may take HEAD: (claim, seconds until it may in any case)."""
    waiting = predecessors(node, view)
    if not waiting:
        return CLAIM_NOW, 0.0
    ends = [release_deadline_us(old, view, now_us) for old in waiting]
    return CLAIM_AFTER_RELEASE, max(0.0, (max(ends) - now_us) / S)


def release_deadline_us(node: Node, view: View, now_us: int) -> int:
    """When a draining node is past saving: its notice's deadline, else the job's grace. One that
    trains on until its replacement is ready begins to save only then: as long as that may take.
    A rank that drains for the notice of another has that one's time."""
    key = (node.generation, node.candidate)
    mates = [mate for mate in view.nodes if (mate.generation, mate.candidate) == key]
    noticed = _takers(node.notices) or [n for mate in mates for n in _takers(mate.notices)]
    deadlines = [n.heard_at_us if n.deadline_us is None else n.deadline_us for n in noticed]
    if deadlines:
        return min(deadlines)
    spec = view.job.spec
    started_us = node.drained_at_us or now_us
    if node.leave_reason in TRAINS_ON:
        started_us = node.told_release_at_us or now_us + int(spec.setup_timeout_s * S)
    return started_us + int(spec.stop_grace_s * S)


def _takers(notices: Iterable[NoticeSeen]) -> list[NoticeSeen]:
    return [notice for notice in notices if notice.takes_away]


def replacement_ready(node: Node, view: View) -> bool:
    """Every rank of a newer chosen gang waits at the gate."""
    newer = [n for n in view.nodes if n.generation > node.generation and n.chosen]
    ready = [n for n in newer if n.state is NodeState.BOOTING and n.ready_at_us]
    return len(ready) >= view.job.spec.num_nodes


def need(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    """The one call that this node needs next; None when it needs none."""
    if node.state in _FOLLOWED and may_have_finished(node, view):
        return EffectKind.READ_HEAD
    if view.job.spec.bake and node.state is NodeState.BOOTING and setup_done(node):
        return need_baked(node, now_us)
    match node.state:
        case NodeState.LAUNCHING:
            launched = node.instance_id or node.launch_error
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
    """It crashed, and HEAD, released, was not read since: that may have been the final manifest,
    after which the end of a program says nothing."""
    head = view.job.head
    if head is None or head.final or not head.released or head.generation != node.generation:
        return False
    crashed = node.exit_code not in (None, EXIT_FINISHED, EXIT_RELEASED)
    return crashed and head.read_at_us < max(node.exited_at_us, head.seen_at_us)


def end_unread(node: Node, view: View) -> bool:
    """Its program ended, only HEAD says whether the job has, and that was not read since: until it
    is, another machine would at best find that all is done."""
    job, head = view.job, view.job.head
    if job.outcome is not None or job.spec.bake:
        return False
    if may_have_finished(node, view):
        return True
    if node.exit_code != EXIT_FINISHED or not node.chosen or node.rank or scripts_gang(job):
        return False
    return head is None or (not head.final and head.read_at_us < node.exited_at_us)


def alive_at_us(node: Node, view: View, market: Market) -> int:
    """When the node last showed that it lives: by its word, or by a checkpoint that we know of from
    HEAD alone. Before we could hear it, it may have spoken all the time."""
    head, silent_us = view.job.head, max(silent_since_us(node), hearing_since_us(node, market))
    if head is None or head.generation != node.generation or head.step <= node.last_step:
        return silent_us
    return max(silent_us, head.seen_at_us)


def last_look_us(node: Node, view: View, market: Market) -> int:
    """When a silent node is looked for once more, before it is given up."""
    return alive_at_us(node, view, market) + int(LAST_LOOK * market.timing.lost_after_s * S)


def lost_at_us(node: Node, view: View, market: Market) -> int:
    """When a silent node may be given up. After its last look at HEAD, and after a time when its
    cloud was away, it has the rest of its time to speak: what kept us from looking may have kept it
    from being heard."""
    looked_us = _head_read_at_us(view) if node.claimed_at_us else 0
    asked_us = max(looked_us, market.answering_since_us.get(node.offer.provider, 0))
    rest_us = int((1 - LAST_LOOK) * market.timing.lost_after_s * S)
    return max(last_look_us(node, view, market), asked_us) + rest_us


def unanswered(node: Node, view: View, market: Market) -> str:
    """Who has not told us yet, since the last look, that the node is no more to be seen; "" when
    nobody is left to be asked."""
    look_us = last_look_us(node, view, market)
    if node.surveyed_at_us < look_us:
        return "its cloud"
    if node.claimed_at_us and _head_read_at_us(view) < look_us:
        return "the store of its checkpoints"
    return ""


def _head_read_at_us(view: View) -> int:
    return view.job.head.read_at_us if view.job.head else 0


def _look_due(node: Node, view: View, market: Market, now_us: int) -> bool:
    """HEAD is to be read: for the last look, and now and then while nobody is given up because the
    way to the node is broken. It may have finished meanwhile."""
    read_us, look_us = _head_read_at_us(view), last_look_us(node, view, market)
    if cut_off(node, market, now_us):
        pause_us = int(LAST_LOOK * market.timing.lost_after_s * S)
        return now_us - max(read_us, silent_since_us(node)) >= pause_us
    return now_us >= look_us and read_us < look_us


def _need_contact(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    """Ask the cloud about a suspect, again and again; where it says that the machine runs, start
    the agent again, which may have died and left training alone; ask HEAD before it is given up."""
    timing = market.timing
    if not suspect(node, market, now_us):
        return None
    look = bool(node.claimed_at_us) and _look_due(node, view, market, now_us)
    # A machine that froze keeps a call for long: the last look does not wait for that.
    if not look and _in_flight(node, market, EffectKind.BOOT, node.booted_at_us, now_us):
        return EffectKind.BOOT
    if _in_flight(node, market, EffectKind.READ_HEAD, _head_read_at_us(view), now_us):
        return EffectKind.READ_HEAD
    since_us = node.link_down_at_us or silent_since_us(node)
    asked = node.surveyed_at_us > since_us
    if not asked or now_us - node.surveyed_at_us >= timing.resurvey_s * S:
        return EffectKind.SURVEY
    again = now_us - node.booted_at_us >= timing.suspect_after_s * S
    if look:
        return EffectKind.READ_HEAD
    if node.cloud_state == InstanceState.RUNNING and (node.booted_at_us <= since_us or again):
        return EffectKind.BOOT
    return None


def _armed(node: Node, market: Market, kind: EffectKind) -> bool:
    """The last call armed is of this kind, by a daemon that has not died since."""
    return node.effect is kind and node.effect_armed_at_us >= max(market.started_at_us, 1)


def _in_flight(node: Node, market: Market, kind: EffectKind, done_at_us: int, now_us: int) -> bool:
    """What came of the last call, which is of this kind, is not known yet."""
    over_us = max(done_at_us, node.effect_failed_at_us)
    fresh = node.effect_armed_at_us > over_us and now_us < node.effect_due_at_us
    return fresh and _armed(node, market, kind)


def _need_booting(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    if not node.host:
        return EffectKind.SURVEY
    if not node.booted_at_us:
        if _in_flight(node, market, EffectKind.BOOT, node.booted_at_us, now_us):
            return EffectKind.BOOT
        # Its cloud may still say that nothing comes of it.
        look_us = look_at_us(node, market)
        return EffectKind.SURVEY if 0 < look_us <= now_us else EffectKind.BOOT
    if node.exit_code == EXIT_FINISHED:
        return _need_finished(node, view, market, now_us)
    start = EffectKind.START if _start_wanted(node, view, now_us) else None
    if start and _in_flight(node, market, start, node.started_at_us, now_us):
        return start  # it may ship packages for long
    return _need_contact(node, view, market, now_us) or start


def look_at_us(node: Node, market: Market) -> int:
    """When the cloud is asked again what becomes of a create that it works on; 0 for a machine that
    it calls running."""
    if node.cloud_state != InstanceState.PENDING:
        return 0
    return node.surveyed_at_us + int(market.timing.resurvey_s * S)


def _start_wanted(node: Node, view: View, now_us: int) -> bool:
    """The program is to be started, or a successor told that it may claim HEAD earlier. One that
    is to join a gang is started without a rank: it prepares, and waits."""
    if not node.hello_at_us or node.claimed_at_us:
        return False
    if not node.chosen:
        joins = node in newcomers(view) and bool(remaining(view, now_us))
        return joins and not node.started_at_us
    claim, _ = claim_for(node, view, now_us)
    advanced = claim == CLAIM_NOW and node.started_claim == CLAIM_AFTER_RELEASE
    return not node.started_at_us or (advanced and not _released_itself(node, view))


def _released_itself(node: Node, view: View) -> bool:
    """The predecessor said in HEAD that it is done: the successor sees that without us."""
    head = view.job.head
    return head is not None and head.released and head.generation < node.generation


def _need_running(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    if node.exit_code == EXIT_FINISHED:
        return _need_finished(node, view, market, now_us)
    contact = _need_contact(node, view, market, now_us)
    if node.rank and view.job.spec.checkpoint.engine != "none":
        return contact  # the ranks of our engine save together: rank 0 is told
    head, yields_us = view.job.head, view.job.yields_since_us
    if contact is None and yields_us and head and max(yields_us, head.read_at_us) < head.seen_at_us:
        return EffectKind.READ_HEAD  # saved for who gets its machines: by its own word as yet
    wanted_us = view.job.save_wanted_at_us
    if contact is None and wanted_us > max(node.told_save_at_us, node.first_step_at_us):
        return EffectKind.SAVE
    return contact


def _need_draining(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    if node.exit_code == EXIT_FINISHED:
        return _need_finished(node, view, market, now_us)
    contact = _need_contact(node, view, market, now_us)
    if contact is None and node.exit_code is None and not node.released_at_us:
        if node.leave_reason not in TRAINS_ON and not node.told_drain_at_us:
            return EffectKind.DRAIN
        ready = replacement_ready(node, view) or mate_released(node, view)
        ready = ready or (node.chosen and bool(joining(view, now_us)))
        if not node.told_release_at_us and ready:
            return EffectKind.RELEASE
    return contact


def _need_finished(node: Node, view: View, market: Market, now_us: int) -> EffectKind | None:
    """A program that says it finished is believed when HEAD says so too. Of a gang of scripts that
    know nothing of HEAD, rank 0 is told to say it there, when all of them have ended."""
    head = view.job.head
    if head is not None and head.final:
        return None
    read_at_us = head.read_at_us if head else 0
    if not scripts_gang(view.job):
        return EffectKind.READ_HEAD if read_at_us < node.exited_at_us else None
    ended_us = gang_finished_us(node, view)
    if node.rank or not ended_us:
        return None
    if node.told_save_at_us <= ended_us:
        return EffectKind.SAVE
    # The agent moves HEAD after it has answered, and says so when it has.
    news_us = max(node.told_save_at_us, head.seen_at_us if head else 0)
    late = now_us - read_at_us >= market.timing.resurvey_s * S
    return EffectKind.READ_HEAD if read_at_us < news_us or late else None


def _need_terminating(node: Node, market: Market, now_us: int) -> EffectKind | None:
    if not node.instance_id:
        if node.gone_at_us:
            return None
        # Paced by its own calls: listings that others ask for never say that it is absent.
        asked_us = node.effect_armed_at_us if node.effect is EffectKind.RESOLVE else 0
        return EffectKind.RESOLVE if now_us - asked_us >= market.timing.resurvey_s * S else None
    if not node.terminated_at_us:
        return EffectKind.TERMINATE
    if now_us - node.terminated_at_us >= market.timing.reterminate_s * S:
        return EffectKind.TERMINATE
    last_us = max(node.surveyed_at_us, node.terminated_at_us)
    # The first look comes soon: most clouds list a terminated machine as such at once.
    wait_s = market.timing.resurvey_s if node.surveyed_at_us > node.terminated_at_us else 0.5
    return EffectKind.SURVEY if now_us - last_us >= wait_s * S else None


def _done_at_us(node: Node, view: View, kind: EffectKind) -> int:
    """When a call of this kind was last seen to have its outcome; 0 where the outcome removes the
    need itself."""
    return {
        **dict.fromkeys((EffectKind.SURVEY, EffectKind.RESOLVE), node.surveyed_at_us),
        EffectKind.BOOT: node.booted_at_us,
        EffectKind.START: node.started_at_us,
        EffectKind.TERMINATE: node.terminated_at_us,
        EffectKind.SAVE: node.told_save_at_us,
        EffectKind.READ_HEAD: view.job.head.read_at_us if view.job.head else 0,
        EffectKind.IMAGE: max(node.cleaned_at_us, node.image_asked_at_us),
    }.get(kind, 0)


def due_at_us(node: Node, view: View, market: Market, kind: EffectKind, now_us: int) -> int:
    """When the needed call may be made: now, or when the one in flight is given up, or when the
    pause after a failure is over."""
    # A cloud is asked about the same machine at most twice a second.
    free_us = max(now_us, node.surveyed_at_us + S // 2 if kind is EffectKind.SURVEY else 0)
    if not _armed(node, market, kind):
        return free_us
    if _done_at_us(node, view, kind) >= node.effect_armed_at_us:
        return free_us
    if node.effect_failed_at_us >= node.effect_armed_at_us:
        pause_us = int(effect_backoff_s(node.effect_failures) * S)
        return max(now_us, node.effect_failed_at_us + pause_us)
    return max(now_us, node.effect_due_at_us)
