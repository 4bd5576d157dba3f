"""Derive a job's phase, one word for its activity, from the job and its nodes. It is never stored.

waiting ─► launching ─► booting ─► running ─► succeeded | failed
               └──── recovering ◄── draining       cancelling ─► cancelled      paused
"""

from __future__ import annotations

from collections.abc import Iterable

from spotd.domain.job import CheckpointSpec, Desired, Job
from spotd.domain.node import Node
from spotd.domain.states import NodeState

WAITING = "waiting"  # no machine, and none asked for: no fitting offer, or a backoff
LAUNCHING = "launching"  # a machine was asked for
BOOTING = "booting"  # a machine exists and prepares
RUNNING = "running"  # the program runs on every rank
DRAINING = "draining"  # it saves and gives its machine back: a notice, a pause or a limit
RECOVERING = "recovering"  # it ran before and nothing runs now: the next machine is on its way
PAUSED = "paused"
CANCELLING = "cancelling"

FINISHED = frozenset({"succeeded", "failed", "cancelled"})  # the values of model.Outcome
PHASES = FINISHED | {
    WAITING,
    LAUNCHING,
    BOOTING,
    RUNNING,
    DRAINING,
    RECOVERING,
    PAUSED,
    CANCELLING,
}

_ALIVE = frozenset({NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING})


def phase(job: Job, nodes: Iterable[Node]) -> str:
    """Return one of PHASES. `nodes` are the job's; terminating and gone ones do not count."""
    if job.outcome is not None:
        return job.outcome.value
    alive = [node for node in nodes if node.state in _ALIVE]
    match job.desired:
        case Desired.CANCEL:
            return CANCELLING
        case Desired.PAUSE:
            return DRAINING if alive else PAUSED
        case Desired.RUN:
            return _wanted_phase(job, alive)


def _wanted_phase(job: Job, alive: list[Node]) -> str:
    training = [node for node in alive if node.state is NodeState.RUNNING]
    least = min((node.gang_size or job.spec.resources.num_nodes for node in training), default=0)
    if training and len({node.rank for node in training}) >= least:
        return RUNNING
    if any(_saving(node) for node in alive):
        return DRAINING
    if not alive:
        return WAITING
    if job.progress.first_step_at_us:
        return RECOVERING
    launching = all(node.state is NodeState.LAUNCHING for node in alive)
    return LAUNCHING if launching else BOOTING


def _saving(node: Node) -> bool:
    draining = node.state is NodeState.DRAINING
    return draining and not node.training.released_at_us and node.training.exit_code is None


def keeps(spec: CheckpointSpec) -> bool:
    """Return whether anything that the program saves reaches the job's store."""
    return spec.engine != "none" or bool(spec.directory)
