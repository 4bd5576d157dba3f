"""Select the machines of a gang that remain when one is lost, and those that replace it.

`spotd.on_node_loss` of the job says what the remaining machines do. If they continue, the next
attempt has their rows, and nothing is launched or set up again. Missing machines are requested
beside them and prepared without a rank; when they are ready, the attempt after that has all
machines. Everything here follows from the rows: no machine is ever marked as one to keep.
"""

from __future__ import annotations

from spotd.domain.job import Desired, Job, JobSpec
from spotd.domain.node import Node
from spotd.domain.on_node_loss import OnNodeLoss
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED

GATHER_S = 120.0  # that one which is ready waits for others that are on their way
_COMING = frozenset({NodeState.LAUNCHING, NodeState.BOOTING})
_ALIVE = frozenset({NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


def shrinks(spec: JobSpec) -> bool:
    """Return whether the job may continue with fewer machines than it requested."""
    return spec.resources.num_nodes > 1 and spec.resources.elastic.on_loss is not OnNodeLoss.WAIT


def size_of(node: Node, spec: JobSpec) -> int:
    """Return the number of ranks of the node's complete gang."""
    return node.gang_size or spec.resources.num_nodes


def taken_on_us(node: Node) -> int:
    """Return when the node's attempt requested it or took it over."""
    return node.moved_at_us or node.requested_at_us


def crew(view: View) -> list[Node]:
    """Return the chosen nodes of the newest attempt by rank, whatever became of them since."""
    chosen = [n for n in view.nodes if n.chosen and n.generation == view.job.generation]
    return sorted(chosen, key=lambda node: node.rank)


def remaining(view: View, now_us: int) -> list[Node]:
    """Return the crew members that continue in the next attempt if this one cannot, by rank.

    Empty if the job waits for a complete gang, has to stop, or is about to end.
    """
    spec, mine = view.job.spec, crew(view)
    if not shrinks(spec) or not _wanted(view.job):
        return []
    if any(node.training.exit_code == EXIT_FINISHED for node in mine):
        return []
    left = [node for node in mine if _goes_on(node, spec, now_us)]
    return left if len(left) >= spec.resources.elastic.min_nodes else []


def _wanted(job: Job) -> bool:
    return job.outcome is None and job.desired is Desired.RUN and not job.end.stop_text


def _goes_on(node: Node, spec: JobSpec, now_us: int) -> bool:
    """Return whether the machine is set up and stays.

    A gang that drains to move elsewhere drains completely; one that drains to admit new ranks keeps
    its machines.
    """
    if node.state not in _ALIVE or noticed(node) or node.departure.kept_until_us > now_us:
        return False
    if node.state is NodeState.BOOTING and not node.moved_at_us:
        return False
    if node.departure.leave_reason in (LeaveReason.OUTBID, LeaveReason.MOVED):
        return size_of(node, spec) < spec.resources.num_nodes
    return node.departure.leave_reason in (None, LeaveReason.PREEMPTED)


def noticed(node: Node) -> bool:
    """Return whether a notice in force takes the machine away."""
    return any(notice.takes_machine for notice in node.notices)


def newcomers(view: View) -> list[Node]:
    """Return machines that will join a smaller crew and have no rank yet."""
    if not shrinks(view.job.spec) or not crew(view):
        return []
    return [n for n in view.nodes if not n.chosen and n.state in _COMING]


def joining(view: View, now_us: int) -> list[Node]:
    """Return the newcomers that join the crew now: all are set up, or the time to wait for the
    others is over."""
    left, coming = remaining(view, now_us), newcomers(view)
    if not left:
        return []
    ready = [node for node in coming if node.startup.ready_at_us and not noticed(node)]
    if len(ready) == len(coming) or (ready and now_us >= gathered_us(ready)):
        return ready[: max(view.job.spec.resources.num_nodes - len(left), 0)]
    return []


def gathered_us(ready: list[Node]) -> int:
    """Return until when ready newcomers wait for others."""
    return min(node.startup.ready_at_us for node in ready) + int(GATHER_S * S)


def mate_released(node: Node, view: View) -> bool:
    """A rank of the same gang has saved and left: without it there is no training on."""
    key = (node.generation, node.candidate)
    gang = [n for n in view.nodes if (n.generation, n.candidate) == key]
    gone = len(gang) < size_of(node, view.job.spec)  # a view has no old nodes that are gone
    return gone or any(n.training.exit_code == EXIT_RELEASED for n in gang if n.id != node.id)


def scripts_gang(job: Job) -> bool:
    """Return whether this is a gang of programs without our engine: the daemon sees their end."""
    return job.spec.resources.num_nodes > 1 and job.spec.checkpoint.engine == "none"


def gang_finished_us(node: Node, view: View) -> int:
    """Return when the last rank of the node's gang exited with 0; 0 while one has not."""
    key = (node.generation, node.candidate)
    gang = [n for n in view.nodes if (n.generation, n.candidate) == key]
    done = [n.training.exited_at_us for n in gang if n.training.exit_code == EXIT_FINISHED]
    return max(done) if len(done) >= size_of(node, view.job.spec) else 0
