"""What every run must show in the end, by three witnesses: the daemon's rows, the cloud's own meter
and HEAD as it was seen from the outside."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spotd.demo.box import Box
from spotd.demo.facts import final_losses, losses_by_generation, orphan_seconds, release_delays
from spotd.demo.heads import zombie_commits
from spotd.demo.report import MAX_RELEASE_DELAY_S
from spotd.domain.node import Node
from spotd.store.interface import Store
from spotd.store.progress import ProgressRow
from spotd.wire import Head
from tests.e2e.rig import EVERY_S, REPORT_S, STEP_MS, Reference, Run, open_records

REPORT_STEPS = int(REPORT_S * 1000 / STEP_MS) + 1
# A death without notice costs what came after the last save; one may still have been on its way.
LOST_MAX_STEPS = EVERY_S * 1000 // STEP_MS + REPORT_STEPS


def judge(run: Run, reference: Reference, versions: Sequence[Head]) -> list[str]:
    """What is wrong, one sentence each; nothing when all is well."""
    wrong: list[str] = []
    records = open_records(run.box)
    try:
        nodes, progress = records.nodes.of_job(run.job_id), records.progress.rows(run.job_id)
        wrong += segments(records, run.job_id)
    finally:
        records.close()
    wrong += state(run.box, run.job_id, reference)
    wrong += losses(progress, reference)
    wrong += missing_steps(run, progress, reference)
    wrong += lost_steps(run.box.call_cloud("/control/state")["notices"], nodes, progress)
    wrong += machines(run.meter(), nodes, time.time_ns() // 1000, run.refused_s)
    wrong += _one_at_a_time(progress)
    wrong += head(versions, nodes)
    return wrong


def segments(records: Store, job_id: str) -> list[str]:
    """Every machine's costs are on record, and reckoned to their end."""
    states = Counter(segment.state for segment in records.ledger.segments(job_id))
    unfinished = {state: n for state, n in states.items() if state not in ("closed", "void")}
    return [f"ledger segments not closed: {unfinished}"] if unfinished or not states else []


def state(box: Box, job_id: str, reference: Reference) -> list[str]:
    """The final state is the reference's, bit for bit."""
    done = box.compare(job_id, reference.store, reference.job_id)
    said = (done.stdout + done.stderr).strip()
    return [] if done.returncode == 0 else [f"the final state is not the reference's: {said}"]


def losses(progress: Sequence[ProgressRow], reference: Reference) -> list[str]:
    """Every loss that was ever reported is the reference's, to the last bit."""
    wrong = []
    for generation, pairs in losses_by_generation(progress).items():
        for step, loss in pairs:
            if loss != reference.losses[step]:
                wrong.append(
                    f"generation {generation}, step {step}: loss {loss!r}, "
                    f"not {reference.losses[step]!r}"
                )
    return wrong


def missing_steps(run: Run, progress: Sequence[ProgressRow], reference: Reference) -> list[str]:
    """Every step was reported, but for what `run` says went with a daemon or an agent."""
    missing = set(reference.losses) - set(final_losses(progress))
    if run.unheard:
        for _, last, first in _hand_overs(progress):
            missing -= set(range(last + 1, first))
    if len(missing) <= run.agents_killed * REPORT_STEPS:
        return []
    return [f"{len(missing)} steps were never reported, the first is {min(missing)}"]


def lost_steps(
    takings: Sequence[Mapping[str, Any]], nodes: Sequence[Node], progress: Sequence[ProgressRow]
) -> list[str]:
    """No step was trained twice where the cloud gave notice, and few where it did not."""
    noticed = {taking["instance_id"] for taking in takings if taking["mode"] == "notice"}
    saved = {node.generation for node in nodes if node.chosen and node.instance_id in noticed}
    wrong = []
    for generation, last, first in _hand_overs(progress):
        lost, most = last - (first - 1), 0 if generation in saved else LOST_MAX_STEPS
        if lost > most:
            wrong.append(f"generation {generation} lost {lost} steps: more than {most}")
    return wrong


def _hand_overs(progress: Sequence[ProgressRow]) -> list[tuple[int, int, int]]:
    """A generation, its last step and the next one's first, of all that reported."""
    pairs = itertools.pairwise(losses_by_generation(progress).items())
    return [(generation, old[-1][0], new[0][0]) for (generation, old), (_, new) in pairs]


def machines(
    meter: Sequence[Mapping[str, Any]], nodes: Sequence[Node], now_us: int, refused_s: float = 0.0
) -> list[str]:
    """The cloud's meter knows no machine but ours, one a token, none that still runs, and none that
    ran on when it was not wanted any more, but for `refused_s` in which it was told to end none."""
    wrong = []
    tokens = Counter(str(row["token"]) for row in meter)
    wrong += [f"token {token} got {n} machines" for token, n in tokens.items() if n > 1]
    known = Counter(node.token for node in nodes)
    wrong += [f"token {token} is on {n} nodes" for token, n in known.items() if n > 1]
    running = [row["instance_id"] for row in meter if not row["ended_at_us"]]
    if running:
        wrong.append(f"machines left running: {running}")
    orphan_s = orphan_seconds(nodes, meter, now_us)
    if orphan_s:
        wrong.append(f"{orphan_s} s of machines that belong to no node")
    wrong += [
        f"{node_id} was not wanted any more and cost {seconds} s more"
        for node_id, seconds in release_delays(nodes, meter, now_us).items()
        if seconds > MAX_RELEASE_DELAY_S + refused_s
    ]
    return wrong


def _one_at_a_time(progress: Sequence[ProgressRow]) -> list[str]:
    """Steps of one generation end before those of the next begin; all clocks here are one."""
    spans: dict[int, tuple[int, int]] = {}
    for row in progress:
        first, last = spans.get(row.generation, (row.first_at_us, row.last_at_us))
        spans[row.generation] = (min(first, row.first_at_us), max(last, row.last_at_us))
    return [
        f"generation {new} trained {(spans[old][1] - spans[new][0]) / 1e6:.3f} s before {old} ended"
        for old, new in itertools.pairwise(sorted(spans))
        if spans[new][0] < spans[old][1]
    ]


def head(versions: Sequence[Head], nodes: Sequence[Node]) -> list[str]:
    """HEAD goes forward only, and whoever moves it is the node of its generation."""
    wrong = []
    commits = zombie_commits(versions)
    if commits:
        wrong.append(f"HEAD took over {commits} checkpoints of a generation that was replaced")
    owners = {(node.generation, node.token) for node in nodes if node.chosen}
    for old, new in itertools.pairwise(versions):
        steps = [head.current.step if head.current else 0 for head in (old, new)]
        if (new.seq, new.generation) < (old.seq, old.generation) or steps[1] < steps[0]:
            wrong.append(f"HEAD went back from {old} to {new}")
    wrong += [
        f"HEAD of generation {head.generation} was moved by {head.owner}"
        for head in versions
        if (head.generation, head.owner) not in owners
    ]
    if not versions or not versions[-1].final:
        wrong.append("HEAD is not final")
    return wrong
