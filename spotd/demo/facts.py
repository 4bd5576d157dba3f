"""What the demo shows, from what is on record: the daemon's rows and the cloud's own books."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.interface import ProgressRow


@dataclass(frozen=True)
class Recovery:
    """One machine lost and the next one training. Seconds from `struck_us`: the moment that the
    notice was published at the metadata service, or that the machine died. `request_s` is when the
    next machine's cloud had the request by its own clock, not when we decided to ask."""

    generation: int
    cloud: str
    to_cloud: str
    kind: str  # "notice" or "death"
    notice_s: float
    struck_us: int
    request_s: float
    instance_s: float
    ssh_s: float
    ready_s: float
    first_step_s: float
    gap_s: float  # without training: last step of the old one to the first of the new one
    steps_lost: int


def losses_by_generation(progress: Sequence[ProgressRow]) -> dict[int, list[tuple[int, float]]]:
    """generation -> (step, loss) in order."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in sorted(progress, key=lambda row: (row.generation, row.from_step)):
        pairs = enumerate(row.losses, start=row.from_step)
        found.setdefault(row.generation, []).extend(pairs)
    return found


def lineage(progress: Sequence[ProgressRow]) -> dict[int, float]:
    """step -> loss as it counts in the end: a newer generation's word replaces an older one's."""
    steps: dict[int, float] = {}
    for pairs in losses_by_generation(progress).values():
        steps |= dict(pairs)
    return steps


def recoveries(
    nodes: Sequence[Node],
    progress: Sequence[ProgressRow],
    takings: Sequence[Mapping[str, Any]],
    meter: Sequence[Mapping[str, Any]],
) -> list[Recovery]:
    """Every hand-over from a generation whose machine was taken away to the next that trained.
    `takings` and `meter` are the cloud's own records."""
    asked_us = {str(row["token"]): int(row["launched_at_us"]) for row in meter}
    trained = [node for node in nodes if node.first_step_at_us and node.rank == 0]
    trained.sort(key=lambda node: node.generation)
    taken = {str(taking["instance_id"]) for taking in takings}
    pairs = itertools.pairwise(trained)
    return [
        _recovery(old, new, progress, takings, asked_us[new.token])
        for old, new in pairs
        if old.instance_id in taken
    ]


def _recovery(
    old: Node,
    new: Node,
    progress: Sequence[ProgressRow],
    takings: Sequence[Mapping[str, Any]],
    asked_us: int,
) -> Recovery:
    taking = next(t for t in takings if t["instance_id"] == old.instance_id)
    with_notice = taking["mode"] == "notice"
    struck_us = int(taking["published_at_us"] if with_notice else taking["reclaimed_at_us"])
    before = [row for row in progress if row.generation == old.generation]
    after = [row for row in progress if row.generation == new.generation]
    last_step, last_us = max((row.to_step, row.last_at_us) for row in before)
    first_step, first_us = min((row.from_step, row.first_at_us) for row in after)

    def since(at_us: int) -> float:
        return round((at_us - struck_us) / S, 3)

    return Recovery(
        generation=old.generation,
        cloud=old.offer.cloud,
        to_cloud=new.offer.cloud,
        kind="notice" if with_notice else "death",
        notice_s=float(taking["notice_s"]) if with_notice else 0.0,
        struck_us=struck_us,
        request_s=since(asked_us),
        instance_s=since(new.launched_at_us),
        ssh_s=since(new.hello_at_us),
        ready_s=since(new.ready_at_us),
        first_step_s=since(first_us),
        gap_s=round((first_us - last_us) / S, 3),
        steps_lost=max(0, last_step + unreported_steps(before, struck_us) - (first_step - 1)),
    )


def unreported_steps(progress: Sequence[ProgressRow], struck_us: int) -> int:
    """Steps that a machine trained between its last report and the moment it was struck, at its
    own pace: they were trained, and nobody heard of them. 0 when it went on after that moment."""
    first_us = min(row.first_at_us for row in progress)
    last_us = max(row.last_at_us for row in progress)
    steps = max(row.to_step for row in progress) - min(row.from_step for row in progress)
    if steps <= 0 or last_us <= first_us:
        return 0
    return max(0, (struck_us - last_us) * steps // (last_us - first_us))


def orphan_seconds(
    nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], now_us: int, slack_s: float = 1.0
) -> float:
    """Machine-seconds on the cloud's own meter that nobody knew of: of an unknown token, of a
    second machine for one token, or after we believed the node gone (beyond `slack_s`, in which a
    listing may be on its way). What we knew of and were slow to end is `giving_back`."""
    by_token = {node.token: node for node in nodes}
    total = 0.0
    for row in meter:
        node = by_token.pop(str(row["token"]), None)
        end_us = int(row["ended_at_us"] or now_us)
        if node is None:
            total += float(row["seconds"])
        elif node.gone_at_us:
            total += max(0.0, (end_us - node.gone_at_us) / S - slack_s)
        elif not row["ended_at_us"]:
            total += float(row["seconds"])
    return round(total, 3)


def giving_back(
    nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], now_us: int
) -> dict[str, float]:
    """Node id -> seconds that its machine cost, by the cloud's own meter, after we had no more use
    for it; a machine that the cloud took away before is 0."""
    by_token = {node.token: node for node in nodes}
    found: dict[str, float] = {}
    for row in meter:
        node = by_token.get(str(row["token"]))
        unwanted_us = _unwanted_us(node) if node is not None else 0
        if node is not None and unwanted_us:
            end_us = int(row["ended_at_us"] or now_us)
            seconds = round(max(0, end_us - unwanted_us) / S, 3)
            found[node.id] = max(seconds, found.get(node.id, 0.0))
    return found


def _unwanted_us(node: Node) -> int:
    """When its program had ended; else when it was decided that it leaves, or, if it was left to
    save first, when the time for that was over. 0 while it is wanted."""
    if node.exited_at_us:
        return node.exited_at_us
    deadlines = [notice.deadline_us or 0 for notice in node.notices if notice.takes_away]
    return max(node.left_at_us, *deadlines, 0) if node.drained_at_us else node.left_at_us
