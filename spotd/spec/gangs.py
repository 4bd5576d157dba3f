"""Read how a gang reacts to the loss of a machine, and check that its program can continue."""

from __future__ import annotations

import re

from spotd.domain.job import JobTimeouts
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.spec.file import JobFile
from spotd.spec.findings import Findings

SHRINK_AFTER_S = 300.0
# torchrun options that fix a number which differs between attempts of an elastic job.
_FIXED = re.compile(r"--nnodes[= ]\s*['\"]?\d|--node[-_]rank[= ]\s*['\"]?\d|--standalone\b")
# The bundled trainer can change its number of ranks only if a step is always the same work.
_BUNDLED_TRAINER = re.compile(r"-m\s+trainer\.train\b")
_SAME_WORK = re.compile(r"--(shares|virtual-ranks)\b")


def read_elastic(file: JobFile, findings: Findings) -> Elastic:
    """Return the reaction to a node loss. Reports settings that contradict each other."""
    block, path = file.spotd, ("spotd", "on_node_loss")
    on_loss = OnNodeLoss(block.on_node_loss)
    if on_loss is not OnNodeLoss.WAIT_THEN_SHRINK and block.shrink_after is not None:
        message = "needs on_node_loss: wait-then-shrink"
        findings.refuse(("spotd", "shrink_after"), message, "write that, or leave shrink_after out")
    if on_loss is OnNodeLoss.WAIT:
        if block.min_nodes is not None:
            message = "applies only to a gang that may shrink, but on_node_loss is wait"
            findings.refuse(
                ("spotd", "min_nodes"), message, "write on_node_loss: shrink, or leave it out"
            )
        return Elastic()
    if file.num_nodes == 1:
        findings.refuse(
            path, "applies only to several machines, but num_nodes is 1", "leave it out"
        )
    elif (block.min_nodes or 1) > file.num_nodes:
        message = f"is more than num_nodes, which is {file.num_nodes}"
        findings.refuse(("spotd", "min_nodes"), message, f"write 1 to {file.num_nodes - 1}")
    if block.checkpoint.engine != "spotd":
        message = (
            f"{on_loss.value} needs checkpoints that a different number of ranks can read, "
            "which is unknown with engine: none"
        )
        findings.refuse(
            path, message, "save with spotd_hook (engine: spotd), or set on_node_loss: wait"
        )
    _check_run(file.run, findings)
    after_s = SHRINK_AFTER_S if block.shrink_after is None else block.shrink_after
    waits = on_loss is OnNodeLoss.WAIT_THEN_SHRINK
    return Elastic(on_loss, block.min_nodes or 1, after_s if waits else 0.0)


def peer_timeout_s(configured_s: float | None, setup_timeout_s: float | None) -> float | None:
    """Return how long ranks wait for each other in seconds; None for the default.

    Without `peer_timeout` it is at least `setup_timeout`, because another rank's setup may take
    that long.
    """
    if configured_s is not None or setup_timeout_s is None:
        return configured_s
    return max(setup_timeout_s, JobTimeouts.peer_timeout_s)


def _check_run(run: str, findings: Findings) -> None:
    fixed = _FIXED.search(run)
    if fixed:
        message = (
            f"fixes {fixed.group().strip()!r} for every attempt, but the number of machines changes"
        )
        findings.refuse(
            ("run",), message, "leave it out: torchrun gets it from spotd (docs/networks.md)"
        )
    if _BUNDLED_TRAINER.search(run) and not _SAME_WORK.search(run):
        message = "trains one batch per rank: fewer ranks would change the batch size"
        findings.refuse(("run",), message, "add --virtual-ranks N or --shares N (docs/elastic.md)")
