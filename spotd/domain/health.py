"""Diagnoses of training by name: what spotd does about each, and what a person can try.

`spotctl why` prints them. The rules are planner/rules/apply_observations.py, slow_training.py and
finish_job.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STRAGGLER, NAN = "straggler", "nan"  # those that are decided upon
HUNG = "hung"  # ended, with stacks
HUNG_HERE = "hung_here"  # seen on a machine without rank 0, and only reported
GPU = "gpu"  # a GPU has failed, and what ran was ended
GPU_NOTED = "gpu_noted"
UNFIT = "unfit"  # the machine came up unwell
MOUNT_LOST = "mount_lost"  # of a bucket: who serves it has died
MOUNT_FAILING = "mount_failing"
NAN_AFTER_RESUME = "nan_after_resume"
LOSS_SPIKE = "loss_spike"
NOT_RESUMED = "not_resumed"  # the program does not go on from what was restored for it
PEERS = "peers"  # ranks that wait for others are about to give up
SLOW = "slow"
ROLLED_BACK = "rolled_back"  # by the program itself, from lost numbers
CRASHED = "crashed"  # no verdict either: the program ended by itself, and was charged
STEPPED_BACK = "stepped_back"  # the job's own, not of a machine
USAGE = "usage"  # no verdict: how well the machine was used in a window
IDLE_BELOW = 0.7  # of the GPUs' time; HLT-11
_UNWELL = {"hung": HUNG, "machine": UNFIT, "mount": MOUNT_LOST}


def of_unwell(what: str) -> str:
    """The verdict's name for what the journal calls unwell."""
    return _UNWELL.get(what, GPU)


@dataclass(frozen=True)
class HealthSpec:
    """When slow training requests a checkpoint (the numbers of the source documents)."""

    ratio: float = 0.6
    checks: int = 4
    check_every_s: float = 30.0


@dataclass(frozen=True)
class Diagnosis:
    """A problem that an agent found with the training on its node."""

    kind: str
    at_us: int
    node_id: str


@dataclass(frozen=True)
class Setbacks:
    """Resumes of a job that failed.

    `crashed_from` is the manifest from which the last crashed program had resumed, if it crashed in
    its first steps without a save; otherwise "". `suspect`, of step `suspect_step`, is the manifest
    that was given up last: no attempt resumes from it if there is another.
    """

    crashed_from: str = ""
    suspect: str = ""
    suspect_step: int = -1


@dataclass(frozen=True)
class Advice:
    """The texts about a diagnosis.

    `title` names it, `does` is what spotd does, `attempt` what a person can try. `alert`: its user
    is notified at once. `stops`: the job stops for a person.
    """

    title: str
    does: str
    attempt: str
    alert: bool = True
    stops: bool = False


_HERE = "the program begins again on this machine, once, from its last checkpoint"
_CHARGED = "the second time is charged to max_restarts_on_errors, and another machine goes on"
_GANG = "with several machines it is charged to max_restarts_on_errors, and all begin anew"
_OTHER = "another machine takes over from the last checkpoint, uncharged; this offer is left alone"
ADVICE: Mapping[str, Advice] = {
    HUNG: Advice(
        "training hangs",
        f"{_HERE}; {_CHARGED}; {_GANG}",
        "the stacks below: a rank outside of the collective that the others wait in is the one to "
        "look at; a data loader that waits needs a timeout of its own",
    ),
    HUNG_HERE: Advice(
        "training hangs, seen on a machine without rank 0",
        "nothing by itself: the agent of rank 0 ends it, by its own look",
        "the stacks below, beside those of rank 0",
        alert=False,
    ),
    PEERS: Advice(
        "ranks wait for those of other machines, and soon give up",
        "nothing by itself: when torch gives up, the program ends, which is charged to "
        "max_restarts_on_errors, and the gang begins anew",
        "what the machines that are missing do (`spotctl show`, `spotctl logs`): a setup that "
        "takes long, or a network between them that lets nothing through; a longer "
        "spotd.peer_timeout, where it is the step that takes so long",
    ),
    GPU: Advice(
        "a GPU has failed",
        f"{_OTHER}; after a memory error that was contained, {_HERE}",
        "nothing, unless it comes on every machine: then the program's own use of memory",
    ),
    GPU_NOTED: Advice(
        "a GPU reports something",
        "nothing: training goes on",
        "Xid 13, 31 and 43 are usually the program's own: run it with CUDA_LAUNCH_BLOCKING=1 or "
        "compute-sanitizer; heat and power are the cloud's: another machine, if it is slow",
        alert=False,
    ),
    UNFIT: Advice(
        "the machine came up unwell", _OTHER, "nothing; another image, if it comes on each"
    ),
    MOUNT_LOST: Advice(
        "the mount of a bucket was lost",
        "it is made anew at once, up to three times on a machine; a program that fails meanwhile "
        f"has not failed by itself: {_HERE}, or another machine takes over, uncharged",
        "the end of mount-0.log (`spotctl logs --stream mount-0`); mode: COPY, where the data fits "
        "the disk",
    ),
    MOUNT_FAILING: Advice(
        "a mounted bucket cannot be read",
        "nothing by itself: rclone tries again, and then the program's read fails; a program that "
        "ends of it is charged to max_restarts_on_errors, as for any data that is not there",
        "whether the bucket answers (`spotctl doctor`), and the keys in its [stores]; MOUNT_CACHED "
        "or COPY read less over the line",
    ),
    NOT_RESUMED: Advice(
        "the program has not resumed from its checkpoint",
        "nothing by itself: the program trains on, and the restored checkpoint stays",
        "let the program load the newest checkpoint, whose path is in SPOTD_RESUME: for "
        "transformers trainer.train(resume_from_checkpoint=...), for Lightning ckpt_path; "
        "docs/any-script.md has whole examples",
    ),
    NAN: Advice(
        "the losses are not numbers",
        "the job saves what it can and stops for you: another machine would come to the same end",
        "a checkpoint from before it (`spotctl show` lists them), a lower learning rate, gradient "
        "clipping, bf16 instead of fp16; then submit it again",
        stops=True,
    ),
    NAN_AFTER_RESUME: Advice(
        "the losses are not numbers since the resume",
        "where the program does not go back by itself, the next machine resumes from the "
        "checkpoint before that one, once, charged to max_restarts_on_errors",
        "if it goes on: a checkpoint from long before it",
    ),
    STEPPED_BACK: Advice(
        "a checkpoint is stepped back from",
        "the next machines resume from the one before it; it is retained, as a pin suspect-STEP; "
        "if that ends alike, the job goes down by max_restarts_on_errors",
        "what the program printed when it crashed: `spotctl logs`; if you do not need the "
        "checkpoint: spotctl ckpt unpin",
    ),
    LOSS_SPIKE: Advice(
        "the loss has jumped",
        "nothing: most come back by themselves",
        "if it stays: the checkpoint before it, past those batches, or a lower learning rate",
        alert=False,
    ),
    STRAGGLER: Advice(
        "one rank holds up the others",
        "saves at once; when it is reported again, the job moves to another machine and continues "
        "until that is ready, at most once in two hours",
        "its machine, if it stays with one; its share of the data, if it stays with one rank",
    ),
    SLOW: Advice(
        "training is slow",
        "saves at once; if it stays slow, the job moves to another machine and trains on until "
        "that is ready, at most once in two hours",
        "the figures of use below; other work on the same store or disk",
    ),
}


@dataclass(frozen=True)
class Utilization:
    """The measured use of machines.

    `gpu` is the mean share of the GPUs' time, `data` and `save` the shares of training time spent
    waiting for these. None if not measured.
    """

    seconds: float
    gpu: float | None
    data: float | None
    save: float | None

    @property
    def cause(self) -> str:
        """Why GPUs that are not busy are likely not: the larger wait, where one is a large part of
        what is missing."""
        if self.gpu is None or self.gpu >= IDLE_BELOW:
            return ""
        waits = {
            "it waits for data: more loader workers, a nearer or a cached data set": self.data,
            "it waits for checkpoints: a longer cadence, or a nearer store": self.save,
        }
        known = {text: share for text, share in waits.items() if share is not None}
        if not known:
            return "not known: the program reports neither its wait for data nor for checkpoints"
        text, share = max(known.items(), key=lambda pair: pair[1])
        if share >= (1 - self.gpu) / 3:
            return text
        if self.data is None:
            return "not checkpoints; how long it waits for data is not measured (docs/library.md)"
        return "neither data nor checkpoints: communication, small batches, or work on the CPU"


def use_of(windows: list[Mapping[str, Any]]) -> Utilization | None:
    """The windows of usage events together, weighted by their time; None for none."""
    seconds = sum(float(w["window_s"]) for w in windows)
    if not seconds:
        return None

    def share(name: str, *, is_share: bool) -> float | None:
        known = [w for w in windows if name in w]
        over_s = sum(float(w["window_s"]) for w in known)
        if not over_s:
            return None
        weights = ((float(w["window_s"]) if is_share else 1.0) for w in known)
        total = sum(float(w[name]) * weight for w, weight in zip(known, weights, strict=True))
        return min(total / over_s, 1.0)

    return Utilization(
        seconds,
        gpu=share("gpu", is_share=True),
        data=share("data_s", is_share=False),
        save=share("save_s", is_share=False),
    )


def follows(kind: str, data: Mapping[str, Any], num_nodes: int) -> str:
    """Return what spotd does about this one, if its data decide between several reactions."""
    if kind in (HUNG, GPU, MOUNT_LOST) and "again" in data:
        if data["again"]:
            return _HERE
        if kind != HUNG:
            return _OTHER
        return _GANG if num_nodes > 1 else _CHARGED
    return ADVICE[kind].does
