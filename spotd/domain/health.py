"""Diagnoses of training by name, with spotd's reaction to each and advice for the user.

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
UNFIT = "unfit"  # the machine is not fit to train on
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
    """Return the verdict that an `unwell` entry of the journal names."""
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

    `title` names it, `does` is spotd's reaction, `attempt` is advice for the user. `alert`: the
    user is notified at once. `stops`: the job stops until the user acts.
    """

    title: str
    does: str
    attempt: str
    alert: bool = True
    stops: bool = False


_HERE = "the program is restarted on this machine, once, from its last checkpoint"
_CHARGED = "the second time is charged to max_restarts_on_errors, and another machine continues"
_GANG = "with several machines it is charged to max_restarts_on_errors, and all restart"
_OTHER = (
    "another machine takes over from the last checkpoint, uncharged; this offer gets a cooldown"
)
ADVICE: Mapping[str, Advice] = {
    HUNG: Advice(
        "training hangs",
        f"{_HERE}; {_CHARGED}; {_GANG}",
        "see the stacks below: if one rank is outside of the collective in which the others wait, "
        "examine that rank; if a data loader waits, give it a timeout",
    ),
    HUNG_HERE: Advice(
        "training hangs, detected on a machine without rank 0",
        "nothing: the agent of rank 0 detects it itself and ends the program",
        "compare the stacks below with those of rank 0",
        alert=False,
    ),
    PEERS: Advice(
        "ranks wait for ranks of other machines, and soon give up",
        "nothing by itself: when torch gives up, the program ends, which is charged to "
        "max_restarts_on_errors, and the gang restarts",
        "check the missing machines (`spotctl show`, `spotctl logs`): their setup may take long, "
        "or the network between them may block traffic; if a step takes that long, set a longer "
        "spotd.peer_timeout",
    ),
    GPU: Advice(
        "a GPU has failed",
        f"{_OTHER}; after a memory error that was contained, {_HERE}",
        "nothing; if it happens on every machine, check the program's own use of memory",
    ),
    GPU_NOTED: Advice(
        "a GPU reports a problem",
        "nothing: training continues",
        "Xid 13, 31 and 43 are usually the program's own: run it with CUDA_LAUNCH_BLOCKING=1 or "
        "compute-sanitizer; heat and power depend on the cloud: if the machine is slow, move "
        "the job",
        alert=False,
    ),
    UNFIT: Advice(
        "the machine is not fit to train on",
        _OTHER,
        "nothing; if it happens on each machine, use another image",
    ),
    MOUNT_LOST: Advice(
        "the mount of a bucket was lost",
        "it is mounted again at once, up to three times on a machine; a program that fails "
        f"meanwhile is not charged: {_HERE}, or another machine takes over",
        "see the end of mount-0.log (`spotctl logs --stream mount-0`); if the data fits the disk, "
        "use mode: COPY",
    ),
    MOUNT_FAILING: Advice(
        "a mounted bucket cannot be read",
        "nothing by itself: rclone tries again, and then the program's read fails; if the program "
        "ends because of it, that is charged to max_restarts_on_errors, as for any missing data",
        "check that the bucket answers (`spotctl doctor`), and the keys in its [stores]; "
        "MOUNT_CACHED and COPY read less over the network",
    ),
    NOT_RESUMED: Advice(
        "the program has not resumed from its checkpoint",
        "nothing by itself: the program keeps training, and the restored checkpoint stays",
        "let the program load the newest checkpoint, whose path is in SPOTD_RESUME: for "
        "transformers trainer.train(resume_from_checkpoint=...), for Lightning ckpt_path; "
        "docs/any-script.md has whole examples",
    ),
    NAN: Advice(
        "the losses are not finite",
        "the job saves as much as possible and stops, because another machine would not help",
        "use an earlier checkpoint (`spotctl show` lists them), a lower learning rate, gradient "
        "clipping, or bf16 instead of fp16; then submit it again",
        stops=True,
    ),
    NAN_AFTER_RESUME: Advice(
        "the losses have not been finite since the resume",
        "unless the program itself rolls back, the next machine resumes from the "
        "checkpoint before that one, once, charged to max_restarts_on_errors",
        "if it continues: resume from a much older checkpoint",
    ),
    STEPPED_BACK: Advice(
        "a checkpoint is skipped",
        "the next machines resume from the one before it; it is retained, as a pin suspect-STEP; "
        "if that fails too, the failure is charged to max_restarts_on_errors",
        "read what the program printed when it crashed: `spotctl logs`; if you do not need the "
        "checkpoint, run spotctl ckpt unpin",
    ),
    LOSS_SPIKE: Advice(
        "the loss has jumped",
        "nothing: most losses recover by themselves",
        "if it stays: resume from the checkpoint before it and skip those batches, or use a lower "
        "learning rate",
        alert=False,
    ),
    STRAGGLER: Advice(
        "one rank holds up the others",
        "saves at once; when it is reported again, the job moves to another machine and continues "
        "until that is ready, at most once in two hours",
        "if the problem follows the machine, the machine is slow; if it follows the rank, check "
        "that rank's share of the data",
    ),
    SLOW: Advice(
        "training is slow",
        "saves at once; if it stays slow, the job moves to another machine and keeps training "
        "until that is ready, at most once in two hours",
        "see the utilization below; check for other work on the same store or disk",
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
        """Return the likely cause of idle GPUs: the larger wait, if it is a large part of the idle
        time."""
        if self.gpu is None or self.gpu >= IDLE_BELOW:
            return ""
        waits = {
            "it waits for data: use more loader workers, or a nearer or cached data set": self.data,
            "it waits for checkpoints: use a longer interval, or a nearer store": self.save,
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
    """Return spotd's reaction to this diagnosis, if its data decide between several."""
    if kind in (HUNG, GPU, MOUNT_LOST) and "again" in data:
        if data["again"]:
            return _HERE
        if kind != HUNG:
            return _OTHER
        return _GANG if num_nodes > 1 else _CHARGED
    return ADVICE[kind].does
