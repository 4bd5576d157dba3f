"""What every run must show in the end, by three witnesses: the daemon's rows, the cloud's own meter
and HEAD as it was seen from the outside."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Sequence

from spotd.demo.facts import losses_by_generation, orphan_seconds
from spotd.model import Node
from spotd.store.base import ProgressRow, Store
from spotd.wire import Head
from tests.e2e.rig import Reference, Run, checkpoints_url, open_records


def judge(run: Run, reference: Reference, versions: Sequence[Head]) -> list[str]:
    """What is wrong, one sentence each; nothing when all is well."""
    wrong: list[str] = []
    records = open_records(run.box)
    try:
        nodes, progress = records.job_nodes(run.job_id), records.progress(run.job_id)
        wrong += _segments(records, run.job_id)
    finally:
        records.close()
    wrong += _state(run, reference)
    wrong += _losses(progress, reference)
    wrong += _machines(run, nodes)
    wrong += _one_at_a_time(progress)
    wrong += _head(versions, nodes)
    return wrong


def _segments(records: Store, job_id: str) -> list[str]:
    states = Counter(segment.state for segment in records.segments(job_id))
    unfinished = {state: n for state, n in states.items() if state not in ("closed", "void")}
    return [f"ledger segments not closed: {unfinished}"] if unfinished or not states else []


def _state(run: Run, reference: Reference) -> list[str]:
    ours = [checkpoints_url(run.box), run.job_id]
    theirs = [reference.store, reference.job_id]
    command = [str(run.box.python), "-m", "trainer.checkpoint", "compare", *ours, *theirs]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=run.box.folder, timeout=60
    )
    said = (done.stdout + done.stderr).strip()
    return [] if done.returncode == 0 else [f"the final state is not the reference's: {said}"]


def _losses(progress: Sequence[ProgressRow], reference: Reference) -> list[str]:
    wrong = []
    for generation, pairs in losses_by_generation(progress).items():
        for step, loss in pairs:
            if loss != reference.losses[step]:
                wrong.append(
                    f"generation {generation}, step {step}: loss {loss!r}, "
                    f"not {reference.losses[step]!r}"
                )
    if not progress:
        wrong.append("no step was ever reported")
    return wrong


def _machines(run: Run, nodes: Sequence[Node]) -> list[str]:
    """The cloud's meter knows no machine but ours, one a token, and none that still runs."""
    meter = run.box.meter()
    wrong = []
    tokens = Counter(str(row["token"]) for row in meter)
    wrong += [f"token {token} got {n} machines" for token, n in tokens.items() if n > 1]
    known = Counter(node.token for node in nodes)
    wrong += [f"token {token} is on {n} nodes" for token, n in known.items() if n > 1]
    running = [row["instance_id"] for row in meter if not row["ended_at_us"]]
    if running:
        wrong.append(f"machines left running: {running}")
    orphan_s = orphan_seconds(nodes, meter, time.time_ns() // 1000)
    if orphan_s:
        wrong.append(f"{orphan_s} s of machines that belong to no node")
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


def _head(versions: Sequence[Head], nodes: Sequence[Node]) -> list[str]:
    """HEAD goes forward only, and whoever moves it is the node of its generation."""
    wrong = []
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
