"""Who of a gang is left when one of it goes, and who comes in its place.

A job says what becomes of those that are left (`spotd.on_node_loss`). Where they go on, the next
attempt has their machines: nothing is booted or set up again. What is missing is asked for beside
them, and prepared without a rank; when it is ready, the attempt after that has all of them.
Everything here follows from the rows: no machine is ever marked as one that is to stay.
"""

from __future__ import annotations

from spotd.elastic import OnLoss
from spotd.model import Desired, Job, JobSpec, LeaveReason, Node, S, View
from spotd.states import NodeState
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED

GATHER_S = 120.0  # that one which is ready waits for others that are on their way
_COMING = frozenset({NodeState.LAUNCHING, NodeState.BOOTING})
_ALIVE = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


def shrinks(spec: JobSpec) -> bool:
    """Whether the job may go on with fewer machines than it asked for."""
    return spec.num_nodes > 1 and spec.elastic.on_loss is not OnLoss.WAIT


def size_of(node: Node, spec: JobSpec) -> int:
    """How many ranks its gang has when it is whole."""
    return node.gang_size or spec.num_nodes


def taken_on_us(node: Node) -> int:
    """When its attempt asked for it, or took it over."""
    return node.moved_at_us or node.requested_at_us


def crew(view: View) -> list[Node]:
    """By rank, those of the newest attempt if it has chosen, whatever became of them since."""
    mine = [n for n in view.nodes if n.chosen and n.generation == view.job.generation]
    return sorted(mine, key=lambda node: node.rank)


def remaining(view: View, now_us: int) -> list[Node]:
    """Those of the crew that go on in the next attempt if this one cannot, by rank; nobody where
    the job waits for a whole gang, is to stop, or is about to end."""
    spec, mine = view.job.spec, crew(view)
    if not shrinks(spec) or not _wanted(view.job):
        return []
    if any(node.exit_code == EXIT_FINISHED for node in mine):
        return []
    left = [node for node in mine if _goes_on(node, spec, now_us)]
    return left if len(left) >= spec.elastic.min_nodes else []


def _wanted(job: Job) -> bool:
    return job.outcome is None and job.desired is Desired.RUN and not job.stop_text


def _goes_on(node: Node, spec: JobSpec, now_us: int) -> bool:
    """A machine that stays with us, and is set up. What drains for a better place, drains whole;
    but not what drains to take others in."""
    if node.state not in _ALIVE or noticed(node) or node.kept_until_us > now_us:
        return False
    if node.state is NodeState.BOOTING and not node.moved_at_us:
        return False
    if node.leave_reason in (LeaveReason.OUTBID, LeaveReason.MOVED):
        return size_of(node, spec) < spec.num_nodes
    return node.leave_reason in (None, LeaveReason.PREEMPTED)


def noticed(node: Node) -> bool:
    """A notice in force takes it away."""
    return any(notice.takes_away for notice in node.notices)


def newcomers(view: View) -> list[Node]:
    """Machines on their way to a crew that trains with fewer, without a rank of their own yet."""
    if not shrinks(view.job.spec) or not crew(view):
        return []
    return [n for n in view.nodes if not n.chosen and n.state in _COMING]


def joining(view: View, now_us: int) -> list[Node]:
    """The newcomers that the crew is to take in now: they are set up, and those that are not have
    had their time to be."""
    left, coming = remaining(view, now_us), newcomers(view)
    if not left:
        return []
    ready = [node for node in coming if node.ready_at_us and not noticed(node)]
    if len(ready) == len(coming) or (ready and now_us >= gathered_us(ready)):
        return ready[: max(view.job.spec.num_nodes - len(left), 0)]
    return []


def gathered_us(ready: list[Node]) -> int:
    """Until when those that are ready wait for others."""
    return min(node.ready_at_us for node in ready) + int(GATHER_S * S)


def mate_released(node: Node, view: View) -> bool:
    """A rank of the same gang has saved and left: without it there is no training on."""
    key = (node.generation, node.candidate)
    gang = [n for n in view.nodes if (n.generation, n.candidate) == key]
    gone = len(gang) < size_of(node, view.job.spec)  # a view has no old nodes that are gone
    return gone or any(n.exit_code == EXIT_RELEASED for n in gang if n.id != node.id)


def scripts_gang(job: Job) -> bool:
    """Several nodes whose programs do not use our engine: only we know when all have finished."""
    return job.spec.num_nodes > 1 and job.spec.checkpoint.engine == "none"


def gang_finished_us(node: Node, view: View) -> int:
    """When the last rank of the node's gang exited 0; 0 while one has not."""
    key = (node.generation, node.candidate)
    gang = [n for n in view.nodes if (n.generation, n.candidate) == key]
    done = [n.exited_at_us for n in gang if n.exit_code == EXIT_FINISHED]
    return max(done) if len(done) >= size_of(node, view.job.spec) else 0
