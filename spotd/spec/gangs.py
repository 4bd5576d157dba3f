"""What a gang does when it loses a machine, and whether its program can continue then."""

from __future__ import annotations

import re

from spotd.domain.job import JobSpec
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.spec.file import JobFile
from spotd.spec.findings import Findings

SHRINK_AFTER_S = 300.0
# Options of torchrun that say for every attempt alike what is another number in each.
_FIXED = re.compile(r"--nnodes[= ]\s*['\"]?\d|--node[-_]rank[= ]\s*['\"]?\d|--standalone\b")
# Our own trainer takes another number of ranks only where a step is always the same work.
_OURS = re.compile(r"-m\s+trainer\.train\b")
_SAME_WORK = re.compile(r"--(shares|virtual-ranks)\b")


def read_elastic(file: JobFile, found: Findings) -> Elastic:
    """Refuses what cannot be; where the job waits, all else is of no use to it."""
    block, where = file.spotd, ("spotd", "on_node_loss")
    on_loss = OnNodeLoss(block.on_node_loss)
    if on_loss is not OnNodeLoss.WAIT_THEN_SHRINK and block.shrink_after is not None:
        text = "is of on_node_loss: wait-then-shrink"
        found.refuse(("spotd", "shrink_after"), text, "write that, or leave shrink_after out")
    if on_loss is OnNodeLoss.WAIT:
        if block.min_nodes is not None:
            text = "is of a gang that may shrink, and this one waits"
            found.refuse(
                ("spotd", "min_nodes"), text, "write on_node_loss: shrink, or leave it out"
            )
        return Elastic()
    if file.num_nodes == 1:
        found.refuse(where, "is for several machines, and num_nodes is 1", "leave it out")
    elif (block.min_nodes or 1) > file.num_nodes:
        text = f"is more than num_nodes, which is {file.num_nodes}"
        found.refuse(("spotd", "min_nodes"), text, f"write 1 to {file.num_nodes - 1}")
    if block.checkpoint.engine != "spotd":
        text = (
            f"{on_loss.value} needs a program whose checkpoints another number of ranks can read, "
            "and of a program of its own nobody knows that"
        )
        found.refuse(where, text, "save by spotd_hook (engine: spotd), or on_node_loss: wait")
    _check_run(file.run, found)
    after_s = SHRINK_AFTER_S if block.shrink_after is None else block.shrink_after
    waits = on_loss is OnNodeLoss.WAIT_THEN_SHRINK
    return Elastic(on_loss, block.min_nodes or 1, after_s if waits else 0.0)


def peer_timeout_s(given_s: float | None, setup_timeout_s: float | None) -> float | None:
    """Return how long ranks wait for another; None for the default.

    It includes the time that another rank's `setup` may take.
    """
    if given_s is not None or setup_timeout_s is None:
        return given_s
    return max(setup_timeout_s, JobSpec.peer_timeout_s)


def _check_run(run: str, found: Findings) -> None:
    fixed = _FIXED.search(run)
    if fixed:
        text = f"says {fixed.group().strip()!r} for every attempt, and their number changes"
        found.refuse(("run",), text, "leave it out: torchrun gets it from spotd (docs/networks.md)")
    if _OURS.search(run) and not _SAME_WORK.search(run):
        text = "trains one batch a rank: with fewer ranks it would be another batch"
        found.refuse(("run",), text, "add --virtual-ranks N or --shares N (docs/elastic.md)")
