"""Apply journal entries: each kind becomes columns, rows and events.

Everything that a node reports is checked here. A missing field, or one of another type, raises
WireError before anything of the entry is applied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from providers.base import NoticeKind
from spotd import wire
from spotd.base.log import redactor
from spotd.base.text import size as format_size
from spotd.domain.evaluation import EvaluationError, read_evaluation
from spotd.domain.events import Event, Severity
from spotd.domain.failure import PART_FAILED
from spotd.domain.units import S
from spotd.money.focus import month_of
from spotd.store import diagnosis
from spotd.store.evaluations import EvaluationRow
from spotd.store.journal_fields import (
    read_code,
    read_flag,
    read_float,
    read_int,
    read_items,
    read_losses,
    read_rest,
    read_text,
    read_words,
)
from spotd.store.journal_projection import NodeProjection
from spotd.store.notice_forecasts import event_of
from spotd.store.notices import NoticeObservation as HeardNotice
from spotd.store.outputs import StoredOutput
from spotd.store.rows import printed_steps_of
from spotd.store.transfers import DataTransfer
from spotd.wire import FailedPart, JournalEntry, WireError, shown
from spotd.wire.failure_cause import find_cause
from spotd.wire.printed_steps import continue_series, parse_printed_steps, printed_steps_data

IMAGE_FOUND = "image_found"  # the kind of the event whose digest later attempts keep to
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_STORE = re.compile(r"(file|s3|gs|az)://[!-~]{1,1000}")
MAX_AGE_S = 30 * 86_400.0  # no notice or duration is longer


# --- one function a kind


def _hello(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    if entry.wire not in wire.SPOKEN:
        text = f"the node speaks version {entry.wire} of the wire, this spotd {wire.WIRE_VERSION}"
        node.say(Event("wire", text, severity=Severity.WARNING), at_us)
    node.columns["wire"] = entry.wire
    node.first("hello_at_us", at_us)


def _prepared(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    status = read_text(entry.data, "status")
    if status not in ("begin", "ok"):
        raise WireError(f"field 'status' is {shown(status)}")
    seconds = read_float(entry.data, "seconds", 0.0)
    text = f"the machine is prepared, {seconds:.1f} s after its agent began"
    text = "the machine prepares itself: disks, clock, GPUs" if status == "begin" else text
    node.say(Event("prepared", text), at_us)


def _image(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    data, status = entry.data, read_text(entry.data, "status")
    image = read_words(data, "image", "")
    if status == "begin":
        node.say(Event("image", f"the container image {image} is pulled to the machine"), at_us)
    elif status == "pulling":
        node.say(Event("image", f"pulling: {read_words(data, 'text')}"), at_us)
    elif status == "failed":
        cause = read_words(data, "text")
        text = f"no container: {cause}"
        node.say(Event("image", text, severity=Severity.ERROR, data={"cause": cause}), at_us)
    elif status == "ok":
        digest = read_text(data, "digest")
        if not _DIGEST.fullmatch(digest):
            raise WireError(f"field 'digest' is {shown(digest)}")
        how = "pulled" if read_flag(data, "pulled") else "was there"
        text = f"{image} {how} in {read_float(data, 'seconds', 0.0):.1f} s, for"
        text = f"{text} {read_words(data, 'engine', '')}: {digest}"
        node.say(Event(IMAGE_FOUND, text, data={"digest": digest}), at_us)
    else:
        raise WireError(f"field 'status' is {shown(status)}")


def _setup(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    status = read_text(entry.data, "status")
    if status not in ("begin", "ok", "failed"):
        raise WireError(f"field 'status' is {shown(status)}")
    if status == "begin":
        node.say(Event("setup", "setup has begun"), at_us)
        return
    seconds = read_float(entry.data, "seconds", 0.0)
    if status == "ok":
        node.say(Event("setup", f"setup done in {seconds:.1f} s"), at_us)
        return
    code, tail = read_code(entry.data, "code"), read_words(entry.data, "tail", "")
    part = _failed_part(entry.data, FailedPart.SETUP)
    cause = read_words(entry.data, "cause", "")
    node.columns |= {"setup_failed": True, "exit_tail": tail}
    node.columns |= {"exit_cause": cause, "failed_part": part.value}
    node.due = True
    text = f"setup failed with code {code} after {seconds:.1f} s"
    if part is not FailedPart.SETUP:
        text = f"{PART_FAILED[part]}, {seconds:.1f} s after it began"
    data = {"tail": tail, "cause": cause or find_cause(tail, code).line}
    node.say(Event("setup", text, severity=Severity.ERROR, data=data), at_us)


def _started(node: NodeProjection, _entry: JournalEntry, at_us: int) -> None:
    node.say(Event("started", "the program was started"), at_us)
    if node.job.spec.checkpoint.engine == "none":
        # A script that reports no steps trains as soon as it runs.
        node.stepped(at_us)


def _ready(node: NodeProjection, _entry: JournalEntry, at_us: int) -> None:
    node.first("ready_at_us", at_us)
    node.say(Event("ready", "prepared, and waiting for the job to be handed over"), at_us)


def _claimed(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    step, manifest = read_int(entry.data, "step", 0), read_text(entry.data, "manifest", "")
    restore_s = read_float(entry.data, "restore_s", 0.0)
    # It is reported when the checkpoint has been read: that was not a wait for HEAD.
    before_us = max(node.columns["hello_at_us"], node.columns["ready_at_us"], 1)
    node.first("claimed_at_us", min(at_us, max(before_us, at_us - round(restore_s * S))))
    node.columns["resumed_step"] = step
    node.columns["last_step"] = max(node.columns["last_step"], step)
    node.head(step, manifest, at_us, released=False)
    text = f"the job was handed over; it resumes at step {step}"
    data = {"step": step, "restore_s": restore_s}
    node.say(Event("claimed", text, data=data), at_us)


def _progress(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    data = entry.data
    row = {
        "job_id": node.job.id,
        "generation": node.row.generation,
        "at_us": at_us,
        "from_step": read_int(data, "from_step"),
        "to_step": read_int(data, "to_step"),
        "losses": read_losses(data),
        "first_at_us": read_int(data, "first_at_us", entry.at_us),
        "last_at_us": read_int(data, "last_at_us", entry.at_us),
        "tokens": read_int(data, "tokens", 0),
        "busy_s": read_float(data, "busy_s", 0.0),
    }
    diagnosis.usage(node, data, at_us)
    node.progress.append(row)
    node.columns["last_step"] = max(node.columns["last_step"], row["to_step"])
    if total := read_int(data, "total_steps", 0):
        node.columns["total_steps"] = -total if read_flag(data, "at_least") else total
    # Throughput is looked at by timer: a report of steps alone makes nobody decide anything.
    node.stepped(at_us)


def _printed_steps(node: NodeProjection, entry: JournalEntry, _at_us: int) -> None:
    """Record the numbers of steps that a program printed, which reports none itself."""
    known = printed_steps_of(node.columns["printed_steps"])
    printed = continue_series(known, parse_printed_steps(entry.data.get("series")))
    node.columns["printed_steps"] = json.dumps(printed_steps_data(printed)) if printed else ""


def _checkpoint(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    data = entry.data
    size = read_int(data, "bytes", 0)
    new = min(read_int(data, "new_bytes", size), size)
    row: dict[str, Any] = {
        "job_id": node.job.id,
        "manifest": read_text(data, "manifest"),
        "generation": node.row.generation,
        "step": read_int(data, "step"),
        "bytes": size,
        "trigger": read_text(data, "trigger", ""),
        "released": read_flag(data, "released"),
        "final": read_flag(data, "final"),
        "committed_at_us": at_us,
        "stage_s": read_float(data, "stage_s", 0.0),
        "write_s": read_float(data, "write_s", 0.0),
        "near_bytes": min(read_int(data, "near_bytes", 0), new),
        "shared_bytes": size - new,
    }
    if not row["manifest"]:
        raise WireError("field 'manifest' is empty")
    node.checkpoints.append(row)
    node.head(row["step"], row["manifest"], at_us, released=row["released"])


def _checkpoint_failed(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    step, error = read_int(entry.data, "step", 0), read_words(entry.data, "error", "")
    text = f"saving step {step} failed: {error}"
    event = Event(
        "checkpoint_failed", text, severity=Severity.ERROR, alert=True, data={"cause": error}
    )
    node.say(event, at_us)


def _checkpoint_skipped(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    data = entry.data
    text = f"the checkpoint of step {read_int(data, 'step', 0)} is damaged and was passed over"
    cause = read_words(data, "error", "")
    event = Event(
        "checkpoint_skipped",
        f"{text}: {cause}",
        severity=Severity.WARNING,
        alert=True,
        data={"manifest": read_text(data, "manifest", ""), "cause": cause},
    )
    node.say(event, at_us)


def _notice(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    data = entry.data
    try:
        kind = NoticeKind(read_text(data, "kind"))
    except ValueError:
        raise WireError(f"field 'kind' is {shown(data.get('kind'))}") from None
    known = data.get("remaining_s") is not None
    # A deadline that has passed may come as a negative rest.
    left_s = max(read_rest(data, "remaining_s"), 0.0) if known else 0.0
    if left_s > MAX_AGE_S:
        raise WireError(f"field 'remaining_s' is {left_s}")
    deadline_us = at_us + int(left_s * S) if known else None
    texts = (read_words(data, "source", ""), read_words(data, "text", ""))
    ids = (node.row.id, node.job.id, read_text(data, "notice_id"))
    again = ids[2] in node.withdrawn
    node.notices.append(HeardNotice(*ids, kind, at_us, deadline_us, *texts, again))
    # Withdrawn and repeated within one batch: the last entry counts.
    node.withdrawn = [notice_id for notice_id in node.withdrawn if notice_id != ids[2]]
    node.due = True


def _notice_withdrawn(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    notice_id = read_text(entry.data, "notice_id")
    node.withdrawn.append(notice_id)
    node.due = True
    text = "the notice was withdrawn"
    node.say(Event("notice_withdrawn", text, data={"notice_id": notice_id}), at_us)


def _metadata(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    if read_flag(entry.data, "up"):
        node.say(Event("metadata", "the metadata service answers again"), at_us)
        return
    error = read_words(entry.data, "error", "")
    text = f"the metadata service does not answer: notices may be missed ({error})"
    node.say(Event("metadata", text, severity=Severity.WARNING), at_us)


def _draining(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    reason, plan = read_words(entry.data, "reason", ""), read_words(entry.data, "plan", "")
    data = {"stops": True} if entry.data.get("stops") is True else {}
    node.say(Event("node_draining", f"the node drains ({reason}): {plan}", data=data), at_us)


def _released(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    step, manifest = read_int(entry.data, "step", 0), read_text(entry.data, "manifest", "")
    node.first("released_at_us", at_us)
    node.head(step, manifest, at_us, released=True)
    saved = f"at step {step}" if manifest else "without a checkpoint: nothing has been saved"
    node.say(Event("released", f"handed the job over {saved}"), at_us)


_ENDS = {
    wire.EXIT_HUNG: "the program was ended",
    wire.EXIT_UNFIT: "the machine was given up",
    wire.EXIT_DIVERGED: "training diverged permanently",
}


def _failed_part(data: Mapping[str, Any], default: FailedPart) -> FailedPart:
    """Return the part of the attempt that failed; a newer agent may name one unknown here."""
    name = read_text(data, "part", "")
    return FailedPart(name) if name in set(FailedPart) else default


def _exited(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    code = read_code(entry.data, "code")
    if code is None:
        raise WireError("field 'code' is missing")
    part = _failed_part(entry.data, FailedPart.PROGRAM)
    node.columns |= {
        "exit_code": code,
        "exited_at_us": at_us,
        "exit_tail": read_words(entry.data, "tail", ""),
        "exit_cause": read_words(entry.data, "cause", ""),
        "failed_part": part.value,
    }
    node.due = True
    obeyed = code == wire.EXIT_RELEASED and part is FailedPart.NOTHING
    text = _ENDS.get(code, f"the program ended with code {code}")
    text = PART_FAILED.get(part, text)
    text = "the program stopped as requested" if obeyed else text
    node.say(Event("exited", text), at_us)


def _disk(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    full, text = read_flag(entry.data, "full"), read_words(entry.data, "text")
    node.columns["disk_full_at_us"] = at_us if full else 0
    node.due = True
    severity = Severity.WARNING if full else Severity.INFO
    text = f"the disk {'stays full' if full else 'has room again'}: {text}"
    node.say(Event("disk", text, severity=severity, alert=full), at_us)


def _cache(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    status, path = read_text(entry.data, "status"), read_words(entry.data, "path")[:200]
    if status == "failed":
        text = f"cache {path}: {read_words(entry.data, 'text')[:400]}"
        node.say(Event("cache", text, severity=Severity.WARNING), at_us)
        return
    files, size = read_int(entry.data, "files"), read_int(entry.data, "bytes")
    seconds = read_float(entry.data, "seconds", 0.0)
    outcome = {"restored": "restored", "kept": "changed, and is stored"}.get(status)
    if outcome is None:
        raise WireError(f"field 'status' is {shown(status)}")
    text = f"cache {path} {outcome}: {files} files, {size / 1e6:,.3g} MB in {seconds:.1f} s"
    node.say(Event("cache", text), at_us)


def _outputs(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    data, status = entry.data, read_text(entry.data, "status")
    if status == "begin":
        node.columns["outputs_since_us"] = at_us
        total = format_size(read_int(data, "bytes"))
        node.say(Event("outputs", f"uploading {read_int(data, 'files')} files, {total}"), at_us)
        return
    node.columns["outputs_since_us"] = 0
    text = read_words(data, "text", "")
    if status == "failed":
        text, cause = f"the outputs of {node.job.name} are not stored: {text}", text
        event = Event("outputs", text, severity=Severity.ERROR, alert=True, data={"cause": cause})
        node.say(event, at_us)
        return
    if status != "stored":
        raise WireError(f"field 'status' is {shown(status)}")
    files, size = read_int(data, "files"), read_int(data, "bytes")
    summary = f"{node.job.name} has stored {files} of its files, {format_size(size)}"
    summary += f" in {read_float(data, 'seconds', 0.0):.1f} s" if files else ""
    severity = Severity.WARNING if text else Severity.INFO
    full = f"{summary}; {text}" if text else summary
    node.say(Event("outputs", full, severity=severity, alert=bool(text)), at_us)
    if not files:
        return
    node.outputs.append(
        StoredOutput(
            job_id=node.job.id,
            manifest=read_text(data, "manifest"),
            digest=read_text(data, "digest"),
            generation=node.row.generation,
            rank=node.row.rank,
            node_id=node.row.id,
            stored_at_us=at_us,
            files=files,
            bytes=size,
            new_bytes=min(read_int(data, "new_bytes"), size),
            text=text,
        )
    )
    node.facts.outputs_at_us = max(node.facts.outputs_at_us, at_us)


def _mount_read(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    target, size = read_text(entry.data, "target"), read_int(entry.data, "bytes")
    url = next(
        (bucket.url for bucket in node.job.spec.files.buckets if bucket.target == target), ""
    )
    if not url:
        raise WireError(f"field 'target' is {shown(target)}, which is not a mount of the job")
    if url.startswith("dataset://") and "url" in entry.data:
        url = read_text(entry.data, "url")  # where it is declared, which the job does not say
        if not _STORE.fullmatch(url):
            raise WireError(f"field 'url' is {shown(url)}")
    month_us, _ = month_of(at_us)
    node.read.append(DataTransfer(node.job.id, url, node.row.id, month_us, size, began_at_us=at_us))


def _results(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    try:
        evaluation = read_evaluation(entry.data)
    except EvaluationError as error:
        raise WireError(str(error)) from None
    evaluation = replace(
        evaluation, failed=tuple(redactor.clean(name) for name in evaluation.failed)
    )
    node.evaluations.append(EvaluationRow(node.job.id, at_us, node.row.id, evaluation))


def _wiped(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    what = [redactor.clean(str(name))[:40] for name in read_items(entry.data, "what")]
    left = len(read_items(entry.data, "left_mounts")) + (read_code(entry.data, "failed") or 0)
    text = f"{', '.join(what[:8])} {read_words(entry.data, 'how', 'removed')[:40]}"
    text += f", {left} left" if left else ""
    node.columns |= {"wiped_at_us": at_us, "wiped_text": text}


APPLY: dict[str, Callable[[NodeProjection, JournalEntry, int], None]] = {
    wire.HELLO: _hello,
    wire.PREPARED: _prepared,
    wire.IMAGE: _image,
    wire.SETUP: _setup,
    wire.STARTED: _started,
    wire.READY: _ready,
    wire.CLAIMED: _claimed,
    wire.PROGRESS: _progress,
    wire.PRINTED_STEPS: _printed_steps,
    wire.CHECKPOINT: _checkpoint,
    wire.CHECKPOINT_FAILED: _checkpoint_failed,
    wire.CHECKPOINT_SKIPPED: _checkpoint_skipped,
    wire.NOTICE: _notice,
    wire.NOTICE_WITHDRAWN: _notice_withdrawn,
    wire.METADATA: _metadata,
    wire.DRAINING: _draining,
    wire.RELEASED: _released,
    wire.EXITED: _exited,
    wire.DISK: _disk,
    wire.CACHE: _cache,
    wire.OUTPUTS: _outputs,
    wire.MOUNT_READ: _mount_read,
    wire.RESULTS: _results,
    wire.WIPED: _wiped,
    wire.PLAN: lambda node, entry, at_us: node.say(event_of(entry.data), at_us),
    wire.ROLLED_BACK: diagnosis.rolled_back,
    wire.UNWELL: diagnosis.unwell,
    wire.WARNING: diagnosis.warning,
}
