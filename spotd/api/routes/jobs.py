"""Routes about jobs: submit, list, show, cancel, pause, resume."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from providers.stores.base import StoreConfigError, StoreDeniedError
from spotd.act.imports import is_imported
from spotd.api.request.request import (
    ApiError,
    ApiRequest,
    bad_input,
    conflict,
    unknown_job,
    user_disabled,
)
from spotd.api.routes.budgets import (
    check_budgets,
    check_project,
    needs_second_person,
    record_override,
    record_request,
)
from spotd.api.routes.drills import newest_drill
from spotd.api.routes.packages import check_digest, has_package
from spotd.api.routes.results import newest, result_data
from spotd.api.routes.resume_from_checkpoint import head_of_lost_job, record_continuation
from spotd.api.routes.secrets import with_current_key
from spotd.api.views.baked_image import check_baked
from spotd.api.views.bucket_costs import egress_warnings
from spotd.api.views.diagnosis import diagnoses
from spotd.api.views.evictions import KINDS, asked_to_stop, evictions
from spotd.api.views.failures import job_failure
from spotd.api.views.gang_network import refuse_slow
from spotd.api.views.lost_work import losses, lost_in_all, unsaved_work_warnings
from spotd.api.views.placement import check_deadline, refuse_misplaced
from spotd.api.views.prefetch import prefetch_warnings
from spotd.api.views.recoveries import hand_overs, restore_times, saves
from spotd.api.views.resources import JobFacts, iso, job_data, job_detail, node_data
from spotd.api.views.store_capacity import check_capacity, mount_warnings
from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired, HeadSnapshot, Job, JobSpec
from spotd.domain.states import NodeState, Outcome
from spotd.planner.core.shard_stores import near_store, place_among
from spotd.planner.placement.rank import rank
from spotd.planner.rules.spot_policy_rule import of_spec
from spotd.security.secrets import JobKeys, seal_job_keys, seal_secrets
from spotd.spec import ParsedJobFile, SpecError, load
from spotd.store.errors import DisabledUserError, DuplicateIdError, DuplicateNameError
from spotd.store.jobs import JOB_SORTS, JOB_STATES, JobPage, Submission
from spotd.store.outputs import OUTPUTS_SKIPPED
from spotd.wire import Mount

_PAGE = 100
_MOST_NODES = 1000
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # as in a job file


def list_jobs(call: ApiRequest) -> dict[str, Any]:
    """Unfinished jobs, newest first; with `all=1` finished ones as well; with `ended=1` those
    alone, the last that ended first; at most `limit`. With `offset` one page of all jobs, or of
    those of a `state` or `name`."""
    finished, ended = (call.query.get(name, "") == "1" for name in ("all", "ended"))
    limit, store = call.number("limit", _PAGE, 1, 10_000), call.context.store
    if "offset" in call.query:
        jobs, total = store.jobs.page(_page(call, limit))
        items = [_summary(call, job) for job in jobs]
        return {"kind": "JobList", "items": items, "total": total}
    jobs, total = store.jobs.ended(limit) if ended else store.jobs.newest(limit, finished)
    items = [_summary(call, job) for job in jobs]
    return {"kind": "JobList", "items": items, "total": total}


def _page(call: ApiRequest, limit: int) -> JobPage:
    """Return the page that the query wants. Raises ApiError (bad input)."""
    state, sort = call.query.get("state", ""), call.query.get("sort") or "newest"
    for field, value, known in (("state", state, JOB_STATES), ("sort", sort, JOB_SORTS)):
        if value not in known:
            words = ", ".join(filter(None, known))
            raise bad_input(f"{field} must be one of {words}, not {value[:40]!r}", "leave it out")
    offset = call.number("offset", 0, 0, 10_000_000)
    return JobPage(limit, offset, state, call.query.get("name", "")[:100], sort)


def _summary(call: ApiRequest, job: Job) -> dict[str, Any]:
    facts = JobFacts.load(call.context.store, job, call.now_us)
    failure = job_failure(job, facts.nodes)
    cause = failure["label"] if failure and not failure["over"] else ""
    return {**job_data(facts, call.now_us), "cause": cause}


def show_job(call: ApiRequest) -> dict[str, Any]:
    """One job with its settings, all its nodes, the durations of the hand-overs between them, and
    the times of each notice."""
    job, store = call.job(), call.context.store
    facts = JobFacts.load(store, job, call.now_us)
    lost = losses(job, facts.nodes, facts.checkpoints)
    restore_s = restore_times(store.events.of_kinds(job.id, ["claimed"]))
    recoveries = hand_overs(facts.nodes, lost, restore_s)
    details = {
        "results": [result_data(row) for row in newest(store.evaluations.rows(job.id))],
        "hand_overs": recoveries,
        "evictions": evictions(facts.nodes, asked_to_stop(store.events.of_kinds(job.id, KINDS))),
        **lost_in_all(lost.values()),
        "saves": saves(facts.checkpoints, recoveries),
        "drill": newest_drill(store, job),
        "verdicts": diagnoses(store, job, call.now_us),
        "failure": job_failure(job, facts.nodes),
    }
    return {"kind": "Job", **job_detail(facts, call.now_us), **details}


def job_spec(call: ApiRequest) -> dict[str, Any]:
    """The job file as it was submitted."""
    job = call.job()
    return {"kind": "JobFile", "job": job.name, "yaml": call.context.store.jobs.spec_yaml(job.id)}


def list_nodes(call: ApiRequest) -> dict[str, Any]:
    """Machines that may cost money now; of one job (`job=`), all that it ever had; of one
    `provider`, the newest `limit`, gone ones too; or the one of that `id`."""
    store = call.context.store
    name, node_id = call.query.get("job", ""), call.query.get("id", "")
    provider = call.query.get("provider", "")
    if name:
        job = replace(call, path={"job": name}).job()
        nodes, names = store.nodes.of_job(job.id), {job.id: job.name}
    else:
        if node_id:
            nodes = store.nodes.find([node_id])
        elif provider:
            limit = call.number("limit", _PAGE, 1, _MOST_NODES)
            nodes = store.nodes.of_provider(provider, limit)
        else:
            nodes = store.nodes.active()
        names = store.jobs.names({node.job_id for node in nodes})
    items = [node_data(node) | {"job": names.get(node.job_id, "")} for node in nodes]
    return {"kind": "NodeList", "items": items}


def parse_job(call: ApiRequest, secrets: Mapping[str, str], *, bake: bool = False) -> ParsedJobFile:
    """Return the checked job file of the body.

    Raises ApiError (bad input) with every problem at once.
    """
    context = call.context
    secret_rows = context.store.secrets.rows()
    try:
        parsed = load(
            call.text("yaml"),
            now_us=call.now_us,
            env=call.texts("env"),
            secrets=secrets,
            defaults=context.settings.defaults(),
            fallback_name=call.text("fallback_name"),
            known=replace(context.settings.known(), secrets=[row.name for row in secret_rows]),
            bake=bake,
        )
    except SpecError as error:
        raise bad_input(error.text, error.try_) from None
    name = call.text("name")
    if not name:
        return parsed
    if not _NAME.fullmatch(name):
        raise bad_input(
            f"{name!r} is not a valid name for a job",
            "up to 63 letters, digits, '.', '_' and '-', a letter or digit at both ends",
        )
    return replace(parsed, spec=replace(parsed.spec, name=name))


def submit_job(call: ApiRequest) -> dict[str, Any]:
    """Store a job. A repeated `request_id` returns the first job and stores nothing. With
    `continue` it is the job of that id from a lost database, and continues from its HEAD."""
    return submit_parsed(call, parse_job(call, call.texts("secrets")))


def submit_parsed(call: ApiRequest, parsed: ParsedJobFile) -> dict[str, Any]:
    """Store the job of a parsed job file; see `submit_job`."""
    context = call.context
    lost_id, head = call.text("continue"), None
    if not parsed.spec.program.bake:
        _check_imported(parsed, lost_id)
        _check_store(call, parsed.spec.checkpoint.store)
        _check_folder(call, parsed.spec)
        _check_shards(call, parsed.spec)
        check_capacity(context, parsed.spec, parsed.text)
    spec = changed(parsed.spec, packages=_packages(call, parsed))
    if (
        lost_id and context.store.jobs.names([lost_id]) == {}
    ):  # else the store refuses the id, or already has the request
        head = head_of_lost_job(call, lost_id, spec.checkpoint)
    # A job of a lost database had machines, so the job before it had succeeded; it is lost as well.
    had_machines = lost_id and not (head and is_imported(head.manifest))
    predecessor = "" if had_machines else call.text("after") or spec.queue.after
    spec = changed(spec, after=_predecessor_id(call, predecessor))
    market = context.market(call.now_us)
    refuse_slow(spec, market)
    refuse_misplaced(rank(spec, market, call.now_us))
    policy_warnings = [*check_deadline(call, spec, market), *check_project(call, spec)]
    override = check_budgets(call, call.actor, spec)
    warnings = [
        *parsed.warnings,
        *policy_warnings,
        *check_baked(call, spec),
        *_warnings(call, spec),
    ]
    request_id = call.text("request_id") or context.ids.token()

    def submit() -> Job:
        submission = _submission(
            call, parsed, spec, request_id, lost_id or context.ids.job_id(), head
        )
        submission = _with_approval(call, submission, override)
        return context.store.jobs.submit(submission, call.now_us)

    try:
        job = with_current_key(context.vault, submit)
    except DisabledUserError:
        raise user_disabled(call.actor) from None
    except DuplicateIdError:
        raise conflict(
            f"job {lost_id} is already in this database: --continue is for a job that it lacks",
            f"spotctl show {lost_id}; leave --continue out to submit a new job",
        ) from None
    except DuplicateNameError as error:
        raise conflict(
            f"a job named {spec.name!r} is not finished yet ({error.job_id})",
            f"spotctl run --name {spec.name}-2 ..., or spotctl cancel {spec.name} first",
        ) from None
    if head is not None and job.id == lost_id:
        warnings += record_continuation(call, job, head)
    warnings += _record_budget(call, job, override)
    override_field = {"override": override} if override else {}
    return {"kind": "Job", **_summary(call, job), **override_field, "warnings": warnings}


def _with_approval(call: ApiRequest, submission: Submission, override: str) -> Submission:
    """Return the submission, which waits for a second person where an override needs one."""
    if override and needs_second_person(call):
        return replace(submission, approval_asked_by=call.actor, approval_text=override)
    return submission


def _record_budget(call: ApiRequest, job: Job, override: str) -> list[str]:
    """Record the override of a new job, or that it waits for one. Returns warnings."""
    if job.approval.approval_asked_by:
        return record_request(call, job)
    if not needs_second_person(call):
        record_override(call, job, override)
    return []


def _predecessor_id(call: ApiRequest, name: str) -> str:
    """Return the id of the job that has to succeed first; "" for none.

    A repeated request gets the id that its first submission resolved. Raises ApiError.
    """
    if not name:
        return ""
    first_job = call.context.store.jobs.find_by_request(call.text("request_id"))
    if first_job is not None:
        return first_job.spec.queue.after
    predecessor = call.context.store.jobs.find(name)
    if predecessor is None:
        message = f"spotd.after: {unknown_job(call.context.store, name[:80])}"
        raise bad_input(message, "submit that one first, or leave spotd.after out")
    if predecessor.outcome not in (None, Outcome.SUCCEEDED):
        message = (
            f"spotd.after: {predecessor.name} ({predecessor.id}) {predecessor.outcome.value}: "
            "no job can follow it"
        )
        raise bad_input(message, "submit that one again first, or leave spotd.after out")
    if predecessor.spec.program.bake:
        raise bad_input(f"spotd.after: {predecessor.name} bakes an image", "name a job that trains")
    return predecessor.id


def _submission(
    call: ApiRequest,
    parsed: ParsedJobFile,
    spec: JobSpec,
    request_id: str,
    job_id: str,
    head: HeadSnapshot | None,
) -> Submission:
    ids, vault = call.context.ids, call.context.vault
    epoch = vault.epoch
    return Submission(
        job_id=job_id,
        spec=spec,
        spec_yaml=parsed.text,
        user=call.actor,
        request_id=request_id,
        job_key=seal_job_keys(vault, job_id, JobKeys.create(ids.random_bytes)),
        secrets=seal_secrets(vault, job_id, parsed.secrets),
        key_epoch=epoch,
        head=head,
    )


def _check_imported(parsed: ParsedJobFile, lost_id: str) -> None:
    """Raise ApiError (bad input) for `checkpoint.from` without an import.

    The daemon cannot read the user's files.
    """
    if parsed.origin is not None and not lost_id:
        message = "checkpoint.from was not imported, so the job would start without weights"
        raise bad_input(message, "submit with spotctl run, which imports it first")


def _check_store(call: ApiRequest, url: str, key: str = "checkpoint.store") -> None:
    """Raise ApiError (bad input) for a store that the daemon cannot open.

    The daemon reads HEAD there: without access it would never notice the end of the job.
    """
    try:
        call.context.storage.open_store(url)
    except (StoreConfigError, StoreDeniedError) as error:
        message = f"the daemon cannot open {key} {url}: {error}"
        fix = "fix [stores] in the daemon's config.toml, or name another store"
        raise bad_input(message, fix) from None


def _check_shards(call: ApiRequest, spec: JobSpec) -> None:
    """Raise ApiError (bad input) for a shard store whose region is not known.

    No machine would use it.
    """
    places = call.context.market(call.now_us).stores.places
    for url in spec.checkpoint.shards:
        if url == spec.checkpoint.store:
            continue
        _check_store(call, url, "checkpoint.shards")
        if not all(place_among(url, places)[:2]):
            raise bad_input(
                f"checkpoint.shards: the region of {url} is unknown, so no machine "
                "would save there",
                "add a [stores.NAME] section with its url and region (and cloud, where the URL "
                "does not say that) to config.toml",
            )


def _check_folder(call: ApiRequest, spec: JobSpec) -> None:
    """Raise ApiError (bad input) where rented machines would save into a folder of their own.

    The folder is lost with the machine.
    """
    url = spec.checkpoint.store
    if not url.startswith("file:") or call.context.storage.is_shared(url):
        return
    rented = [info for info in call.context.clouds.providers() if not info.local]
    clouds = [want.cloud for want in spec.resources.alternatives]
    providers = [
        info.name for info in rented if any(want in ("", info.name, info.kind) for want in clouds)
    ]
    if not providers:
        return
    raise bad_input(
        f"checkpoint.store {url} is a folder, and the job may run on rented machines "
        f"({', '.join(providers)}), which do not have it: "
        "their checkpoints would be lost with them",
        "name a bucket as checkpoint.store (s3://, gs:// or az://); or name a local cloud in "
        "resources; or, if each of these machines mounts that folder, set shared = true in "
        "a [stores.NAME] section of config.toml with its url",
    )


def _warnings(call: ApiRequest, spec: JobSpec) -> list[str]:
    """Return warnings about what blocks the job now and will not end soon by itself.

    The job is stored anyway: new offers appear, and prices change.
    """
    market = call.context.market(call.now_us)
    ranked = rank(spec, market, call.now_us)
    if not ranked:
        prefix = f"none of the {len(market.offers)} offers known now"
        return [f"{prefix} fits: the job waits for one that does; see `spotctl plan`"]
    if all(row.excluded and not row.until_us for row in ranked):
        reason = ranked[0].excluded
        return [
            f"none of the {len(ranked)} matching offers is available now ({reason}): the job waits"
        ]
    checkpoint = spec.checkpoint
    cloud = call.context.storage.store_cloud(checkpoint.store)
    # With a shard store near the machine, its saves cause no egress.
    remote_offers = (
        row.offer
        for row in ranked
        if not near_store(row.offer, spec, market.stores.places, market.stores.shards)[0]
    )
    mounts = mount_warnings(spec, market, [row.offer for row in ranked])
    now_us = call.now_us
    prefetches = prefetch_warnings(of_spec(spec, now_us), market, now_us, call.context.store)
    accepted = call.body.get("no_checkpoints") is True
    unsaved = [] if accepted else unsaved_work_warnings(call, spec, ranked)
    return [*egress_warnings(checkpoint, remote_offers, cloud), *mounts, *prefetches, *unsaved]


def _packages(call: ApiRequest, parsed: ParsedJobFile) -> tuple[Mount, ...]:
    """Return the uploaded packages, exactly those that the job file names. Raises ApiError."""
    sent = call.body.get("packages") or []
    if not isinstance(sent, list) or not all(isinstance(item, dict) for item in sent):
        raise bad_input("packages must be a list of objects", "use the daemon's own spotctl")
    by_target = {str(item.get("target", "")): item for item in sent}
    wanted = ([""] if parsed.workdir else []) + [target for _, target in parsed.mounts]
    mismatched = sorted(set(by_target) ^ set(wanted))
    if mismatched:
        names = ", ".join(target or "the workdir" for target in mismatched)
        raise bad_input(
            f"the uploaded packages do not match the job file: {names}",
            "submit with spotctl run, which packs and uploads what the file names",
        )
    return tuple(_package(call, target, by_target[target]) for target in wanted)


def _package(call: ApiRequest, target: str, item: Mapping[str, Any]) -> Mount:
    digest = str(item.get("digest", ""))
    check_digest(digest)
    if not has_package(call.context.storage.objects, digest):
        raise ApiError(
            409, "missing_package", f"package {digest[:12]} was not uploaded", "run it again"
        )
    if item.get("is_file"):
        # The archive of a single file is unpacked into the folder of its target.
        target = str(PurePosixPath(target).parent)
    return Mount(digest=digest, target=target)


def cancel_job(call: ApiRequest) -> dict[str, Any]:
    """Save, terminate the machines, and end as cancelled. With `no_outputs` its files are not
    stored."""
    job, store = call.job(), call.context.store
    if call.body.get("no_outputs") is not True or job.outcome is not None:
        return _set_desired(call, Desired.CANCEL)
    text = f"its files are not stored when it is cancelled, as {call.actor or 'a user'} requested"
    store.events.add(job.id, Event(OUTPUTS_SKIPPED, text), call.now_us)
    reply = _set_desired(call, Desired.CANCEL)
    asked = [node for node in store.nodes.of_job(job.id) if node.agent.told_drain_at_us]
    if any(node.state is not NodeState.GONE for node in asked):
        reply["warnings"] = ["a machine was asked to stop before: it may store its files"]
    return reply


def pause_job(call: ApiRequest) -> dict[str, Any]:
    """Save and terminate the machines until resumed."""
    return _set_desired(call, Desired.PAUSE)


def resume_job(call: ApiRequest) -> dict[str, Any]:
    """Run again from the last checkpoint."""
    return _set_desired(call, Desired.RUN)


def _set_desired(call: ApiRequest, desired: Desired) -> dict[str, Any]:
    """Set the desired state of the job. Raises ApiError (conflict) where it cannot be set."""
    job = call.job()
    verb = {Desired.CANCEL: "cancel", Desired.PAUSE: "pause", Desired.RUN: "resume"}[desired]
    if job.outcome is not None and not (desired is Desired.CANCEL and job.desired is desired):
        ended = (iso(job.end.finished_at_us) or "earlier")[:19]
        raise conflict(
            f"job {job.name} has already {_ENDED[job.outcome.value]} ({ended}); "
            f"there is nothing to {verb}",
            "spotctl run its job file again",
        )
    if job.desired is Desired.CANCEL and desired is not Desired.CANCEL:
        raise conflict(
            f"job {job.name} is being cancelled; it cannot be {verb}d any more",
            "spotctl run its job file again",
        )
    override = ""
    if desired is Desired.RUN and job.desired is not desired:
        owner = call.context.store.jobs.users([job.id]).get(job.id, "")
        override = check_budgets(call, owner, job.spec, job)
        if override and needs_second_person(call):
            return _ask_approval(call, job, override)
        record_override(call, job, override)
    if job.desired is not desired:
        store, now_us = call.context.store, call.now_us
        job = store.jobs.set_desired(job.id, desired, now_us)
        message = f"{verb} requested by {call.actor or 'a user'}"
        store.events.add(job.id, Event(kind=verb, text=message), now_us)
    return {"kind": "Job", **_summary(call, job), **({"override": override} if override else {})}


def _ask_approval(call: ApiRequest, job: Job, override: str) -> dict[str, Any]:
    """Leave a paused job paused until another admin approves that it exceeds a budget."""
    store = call.context.store
    job = store.jobs.ask_approval(job.id, call.actor, override, call.now_us)
    warnings = record_request(call, job)
    return {"kind": "Job", **_summary(call, job), "override": override, "warnings": warnings}


_ENDED = {"succeeded": "succeeded", "failed": "failed", "cancelled": "been cancelled"}
