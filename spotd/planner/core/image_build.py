"""Build an image: run `setup` on a machine, clean its disk, and let the cloud make an image of it.

This is a job without `run`: its agent ends when `setup` is done. Then one call after the other
cleans the disk, starts the image, and polls its progress. Cleaning removes the machine's keys: if
its answer is lost, it cannot be requested again, and no image is made of a disk that may have
secrets.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable

from providers.base import Offer
from spotd.domain.events import Severity
from spotd.domain.images import BakedImage, baked_of, image_for
from spotd.domain.job import JobSpec
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, Outcome
from spotd.domain.units import S
from spotd.planner.core.plan_builder import PlanBuilder, place
from spotd.wire import EXIT_FINISHED

HEAR_OUT_S = 5.0  # after its agent's last word: the end of what `setup` printed is read meanwhile
ASK_S = 15.0  # between questions how far an image is
CLEAN_TRIES = 12  # in a row; about two minutes, the machine's refusals among them
SILENT_S = 900.0  # without an answer of the cloud
MAKING_S = 3 * 3600.0  # a machine is not paid for longer than this while its image is created


def setup_digest(spec: JobSpec) -> str:
    """Return 32 hex digits of what `setup` depends on: text, environment, workdir, mounts."""
    parts = [
        spec.program.setup,
        dict(spec.program.envs),
        [(package.digest, package.target) for package in spec.files.packages],
    ]
    buckets = [(bucket.target, bucket.url) for bucket in spec.files.buckets]
    parts += [buckets] if buckets else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def vendor_name(spec: JobSpec, node: Node) -> str:
    """Return the image's name at the cloud.

    It differs for every machine, so that no half-made image of another one is mistaken for it (see
    `providers.images.check_name`).
    """
    mark = base64.b32encode(hashlib.sha256(node.token.encode()).digest())[:12].decode().lower()
    return f"spotd-{spec.program.bake}-{mark}"


def chosen_image(spec: JobSpec, offer: Offer, images: Iterable[BakedImage]) -> BakedImage | None:
    """Return the baked image that a machine of this offer starts from, or None."""
    name = baked_of(spec.resources.image_id)
    return image_for(name, offer, images) if name else None


def image_told(spec: JobSpec, node: Node) -> str:
    """Describe a new node's baked image, for its event."""
    name = baked_of(spec.resources.image_id)
    if not name:
        return ""
    return (
        f", from image {name}" if node.startup.image_id else f"; no image {name} there: setup runs"
    )


def needs_setup(spec: JobSpec, node: Node) -> bool:
    """Return whether `setup` has to run: not if the machine's image contains it."""
    return (
        bool(spec.program.bake)
        or not node.startup.image_setup
        or node.startup.image_setup != setup_digest(spec)
    )


def setup_done(node: Node) -> bool:
    """Return whether the agent of an image build has ended with nothing left to do."""
    return node.training.exit_code == EXIT_FINISHED


def need_baked(node: Node, now_us: int) -> EffectKind | None:
    """Return the next call of a machine whose `setup` is done, or None."""
    over = node.bake.imaged_at_us or node.bake.image_error
    if over or now_us < _next_us(node):
        return None
    return EffectKind.IMAGE


def _next_us(node: Node) -> int:
    if node.bake.image_asked_at_us:
        return node.bake.image_asked_at_us + int(ASK_S * S)
    # After the cleaning, and not in its very microsecond: that would be done when it is armed.
    return max(node.training.exited_at_us + int(HEAR_OUT_S * S), node.bake.cleaned_at_us + 1)


def bake(d: PlanBuilder, node: Node) -> None:
    """Clean a machine whose `setup` is done, and wait for its image."""
    why = node.bake.image_error or _overdue(d, node)
    if not why:
        what = "its image is created" if node.bake.cleaned_at_us else "its disk is cleaned"
        d.add_reason(f"setup is done on {place(node)}: {what}")
        d.wake_at(max(_next_us(node), d.now_us + S))
        return
    d.set_job(stop_text=d.job.end.stop_text or f"bake failed: {why}")
    d.event("bake_failed", f"no image of {place(node)}: {why}", node, severity=Severity.ERROR)
    d.terminate(node, LeaveReason.FAILED, why)


def _overdue(d: PlanBuilder, node: Node) -> str:
    """Return why the build is given up, or "".

    Only failures count, not the time while no daemon was running.
    """
    failing = node.call.effect is EffectKind.IMAGE and node.call.effect_failures
    if not node.bake.cleaned_at_us:
        if failing and node.call.effect_failures >= CLEAN_TRIES:
            return (
                "it is not known whether its disk was cleaned, because a cleaned machine accepts "
                f"no login ({node.call.effect_error}); bake it again"
            )
        return ""
    if d.now_us - node.bake.cleaned_at_us > MAKING_S * S:
        return f"the image was not available after {MAKING_S / 3600:.0f} h"
    since_us = max(
        node.bake.image_asked_at_us, node.bake.cleaned_at_us, d.market.uptime.listening_since_us
    )
    if failing and d.now_us - since_us > SILENT_S * S:
        return f"{node.offer.provider} did not report its progress: {node.call.effect_error}"
    return ""


def finish_bake(d: PlanBuilder) -> None:
    """Finish the job successfully when its image exists, whatever became of the machine."""
    node = next((node for node in d.nodes if node.bake.imaged_at_us), None)
    if d.ended or node is None:
        return
    name = d.job.spec.program.bake
    message = f"image {name} is available in {node.offer.provider}/{node.offer.region}"
    d.set_job(outcome=Outcome.SUCCEEDED, outcome_text=message, finished_at_us=d.now_us)
    d.event("succeeded", f"{d.job.name}: {message}", node, alert=True)
