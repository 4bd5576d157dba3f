"""What metrics say, from a real record; promtool judges their form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from providers.base import CapacityError, CapacityType
from spotd.api.metrics.exposition import FRESH_S, ExpositionPage, Metrics
from spotd.api.metrics.metric_table import METRICS
from spotd.api.views.resources import node_data
from spotd.api_routes import routes
from spotd.base.process_metrics import ProcessMetrics
from spotd.domain.events import Event
from spotd.domain.health import USAGE
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.money.budget import Budget
from spotd.store.errors import StoreUnavailableError
from spotd.store.journal import JournalBatch
from spotd.wire import JournalEntry
from tests.fixtures.path_client import PathClient
from tests.fixtures.prometheus import promtool
from tests.spotd.api.rig import SPOT, Rig, crash, story

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]
POOL = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a", "capacity_type": "spot"}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def scrape(rig: Rig) -> Found:
    """Of a daemon that has just begun."""
    return read(Metrics(rig.context()).text())


def read(text: bytes) -> Found:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found: Found, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def warned(rig: Rig, ago_s: float, notice_s: float, save_s: float, number: int = 1) -> Node:
    """A machine that got a notice `ago_s` ago, had saved and given back `save_s` later, and was
    taken away at the deadline."""
    job_id = rig.submit(f"warned{number}", ago_s=ago_s + 500)
    node = rig.launch(job_id, SPOT, ago_s=ago_s + 400)
    rig.train(node, ago_s=ago_s + 300, until_s=ago_s + 20, first=0, last=9)
    told = {"notice_id": "n", "kind": "preempt", "source": "imds", "remaining_s": notice_s}
    for seq, at_s, kind, data in (
        (1000, ago_s, "notice", told),
        (1001, ago_s - save_s, "released", {"generation": node.generation, "step": 9}),
    ):
        entry = JournalEntry(seq, rig.ago(at_s), node.generation, kind, data)
        rig.store.journal.record([JournalBatch(node.id, (entry,), rig.ago(at_s))])
    rig.leave(node, ago_s - notice_s, LeaveReason.PREEMPTED, "preempt notice")
    return rig.store.nodes.of_job(job_id)[0]


@pytest.mark.req("MON-05")
def test_promtool_takes_what_is_exposed(rig: Rig) -> None:
    """Lifecycle, checkpoint write time and the frequency of interruptions are in it."""
    rig.clock.stand_in_mid_month()
    job_id = story(rig)
    crash(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    saved = {"step": 1800, "manifest": "m", "bytes": 9, "write_s": 4.0, "stage_s": 0.02}
    rig.say(node, 60, "checkpoint", **saved, trigger="cadence")
    rig.budgets = [Budget("lab", 100_000_000)]
    text = Metrics(rig.context()).text()
    code, said = promtool("check", "metrics", stdin=text.decode())
    assert code == 0, said
    assert said == ""
    found = read(text)
    assert value(found, "spotd_jobs", phase="running", project="") == 1
    assert value(found, "spotd_jobs_finished_total", outcome="failed") == 1
    assert value(found, "spotd_checkpoint_write_seconds_sum", trigger="cadence") == 4.0
    assert value(found, "spotd_checkpoint_write_seconds_bucket", trigger="cadence", le="5.0") == 1
    assert value(found, "spotd_checkpoint_write_seconds_bucket", trigger="cadence", le="2.0") == 0
    assert value(found, "spotd_checkpoint_stall_seconds_count", trigger="cadence") == 1
    taken = {**POOL, "kind": "preempted", "notice": "no"}
    assert value(found, "spotd_interruptions_total", **taken) == 1
    assert value(found, "spotd_interruptions_total", **{**taken, "kind": "lost"}) == 0
    # 3,600 s of the one that was taken, 640 s of the one whose program crashed.
    assert value(found, "spotd_node_seconds_total", **POOL) == 3600 + 640
    assert value(found, "spotd_launch_requests_total", **POOL, outcome="launched") == 2
    assert value(found, "spotd_budget_used_ratio", budget="lab") == pytest.approx(0.43, abs=0.02)
    assert value(found, "spotd_burn_usd_per_hour", project="", provider="toy-gcp",
                 capacity_type="spot") == 25.5  # fmt: skip


def test_promtool_finds_what_breaks_the_conventions() -> None:
    bad = "# TYPE spotd_jobs_total gauge\nspotd_jobs_total 1\n"
    assert promtool("check", "metrics", stdin=bad)[0] != 0


@pytest.mark.req("PRE-07")
def test_the_margin_of_a_notice_is_a_metric_and_a_column(rig: Rig) -> None:
    """A notice of 30 s and a save of 10 s leave 20 s."""
    node = warned(rig, 1000, 30, 10)
    assert node_data(node)["margin_s"] == 20
    found = scrape(rig)
    assert value(found, "spotd_notice_margin_seconds_bucket", provider="aws", le="20.0") == 1
    assert value(found, "spotd_notice_margin_seconds_bucket", provider="aws", le="10.0") == 0
    assert value(found, "spotd_notice_seconds_sum", provider="aws") == 30
    late = warned(rig, 900, 30, 45, number=2)
    assert node_data(late)["margin_s"] == -15
    found = scrape(rig)
    assert value(found, "spotd_notice_margin_seconds_bucket", provider="aws", le="0.0") == 1


def test_a_machine_without_a_notice_has_no_margin(rig: Rig) -> None:
    first, second = rig.store.nodes.of_job(story(rig))
    assert node_data(first)["margin_s"] is None
    assert node_data(second)["margin_s"] is None
    assert value(scrape(rig), "spotd_notice_margin_seconds_bucket", provider="aws", le="+Inf") == 0


@pytest.mark.req("RPV-02")
def test_the_time_to_a_machine_has_the_bounds_that_guides_promise(rig: Rig) -> None:
    """From the request to the first word of the agent: 2 to 8 min."""
    for number, took_s in enumerate((110, 130, 470, 500)):
        node = rig.launch(rig.submit(f"j{number}", ago_s=4000), SPOT, ago_s=3000)
        rig.train(node, ago_s=3000 - took_s, until_s=10, first=0, last=9)
    found, few = scrape(rig), {"provider": "aws", "capacity_type": "spot"}
    within = {
        le: value(found, "spotd_provision_seconds_bucket", **few, le=le)
        for le in ("120.0", "480.0", "900.0", "+Inf")
    }
    assert within == {"120.0": 1, "480.0": 3, "900.0": 4, "+Inf": 4}
    assert value(found, "spotd_provision_seconds_sum", **few) == 110 + 130 + 470 + 500


@pytest.mark.req("MON-11", "HLT-12")
def test_gpus_that_do_nothing_are_dollars(rig: Rig) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    for ago_s, gpu in ((1000, 0.0), (400, 0.5), (100, 0.7)):  # the first is older than 15 min
        data = {"window_s": 300.0, "gpu": gpu, "data_s": 90.0, "save_s": 3.0}
        rig.store.events.add(job_id, Event(USAGE, "", node.id, data=data), rig.ago(ago_s))
    found, who = scrape(rig), {"job_name": "gpt", "project": ""}
    assert value(found, "spotd_job_gpu_busy_ratio", **who) == pytest.approx(0.6)
    assert value(found, "spotd_job_idle_usd_per_hour", **who) == pytest.approx(0.4 * 25.5)
    assert value(found, "spotd_job_wait_ratio", **who, wait="data") == pytest.approx(0.3)
    assert value(found, "spotd_job_wait_ratio", **who, wait="save") == pytest.approx(0.01)


def test_reports_grow_old_while_the_daemon_lives(rig: Rig) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    metrics, who = Metrics(rig.context()), {"job_name": "gpt", "project": ""}

    def said(gpu: float) -> None:
        used = Event(USAGE, "", node.id, data={"window_s": 300.0, "gpu": gpu})
        rig.store.events.add(job_id, used, rig.clock.now_us())

    for gpu in (0.2, 0.4, 0.9):
        said(gpu)
        metrics._read_at_s = float("-inf")
        found = read(metrics.text())
        assert value(found, "spotd_job_gpu_busy_ratio", **who) == pytest.approx(gpu)
        rig.clock.go_on(1000)


def test_a_recovery_by_its_parts(rig: Rig) -> None:
    """Silent 2,750 s ago with nothing saved of its last 40 steps, asked for 60 s later."""
    job_id = rig.submit(ago_s=6330)
    first = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(first, ago_s=6270, until_s=2900, first=0, last=1190)
    rig._report(first, (1191, 1230), 2890, 2750)
    rig.leave(first, 2720, LeaveReason.LOST, "silent")
    second = rig.launch(job_id, SPOT, ago_s=2690)
    rig.train(second, ago_s=2600, until_s=930, first=1190, last=1790)
    found = scrape(rig)
    parts = {
        stage: value(found, "spotd_recovery_seconds_sum", stage=stage)
        for stage in ("detect", "capacity", "boot", "restore", "total")
    }
    assert parts == {"detect": 60, "capacity": 0, "boot": 90, "restore": 0, "total": 150}
    assert value(found, "spotd_steps_replayed_total", provider="aws", notice="no") == 40


def test_counts_of_the_record_outlive_the_daemon_and_never_fall(rig: Rig) -> None:
    """A notice that is withdrawn never counted, and what counts goes on in the next daemon."""

    def counts() -> Found:
        rises = {f"{metric.name}" for metric in METRICS if metric.kind == "counter"}
        ends = ("_bucket", "_count", "_total")
        found = scrape(rig)
        return {
            key: number
            for key, number in found.items()
            if (key[0] in rises or key[0].endswith(ends)) and "reconcile" not in key[0]
        }

    seen: list[Found] = [counts()]
    job_id = rig.submit("other", ago_s=6000)
    node = rig.launch(job_id, SPOT, ago_s=5900)
    seen.append(counts())
    rig.train(node, ago_s=5800, until_s=900, first=0, last=90)
    told = {"notice_id": "w", "kind": "preempt", "source": "imds", "remaining_s": 100.0}
    entry = JournalEntry(1000, rig.ago(800), node.generation, "notice", told)
    rig.store.journal.record([JournalBatch(node.id, (entry,), rig.ago(800))])
    rig.change(node, 790, state=NodeState.DRAINING, leave_reason=LeaveReason.PREEMPTED)
    seen.append(counts())
    gone = JournalEntry(1001, rig.ago(780), node.generation, "notice_withdrawn", {"notice_id": "w"})
    rig.store.journal.record([JournalBatch(node.id, (gone,), rig.ago(780))])
    rig.change(node, 770, state=NodeState.RUNNING, leave_reason=None)
    seen.append(counts())
    rig.leave(node, 700, LeaveReason.LOST, "silent")
    warned(rig, 600, 30, 10)
    seen.append(counts())
    story(rig)
    seen.append(counts())
    for before, after in itertools.pairwise(seen):
        assert before.keys() <= after.keys()
        assert {key: after[key] for key in before if after[key] < before[key]} == {}
    told_of = {**POOL, "kind": "preempted", "notice": "yes"}
    assert value(seen[3], "spotd_interruptions_total", **told_of) == 0
    assert value(seen[5], "spotd_interruptions_total", **told_of) == 1
    untold = {**POOL, "kind": "lost", "notice": "no"}  # the notice that it had was withdrawn
    assert value(seen[5], "spotd_interruptions_total", **untold) == 1


def test_no_label_has_an_id_or_the_name_of_a_job_that_ended(rig: Rig) -> None:
    job_id = story(rig)
    crash(rig)
    said = {text for _, labels in scrape(rig) for _, text in labels}
    assert not said & {job_id, "crashed", *(node.id for node in rig.store.nodes.of_job(job_id))}
    assert "gpt" in said


def test_a_look_is_shared_and_an_old_one_is_not(rig: Rig) -> None:
    metrics, asked = Metrics(rig.context()), 0
    look = metrics._read

    def counted() -> ExpositionPage:
        nonlocal asked
        asked += 1
        return look()

    metrics._read = counted  # type: ignore[method-assign]
    for _ in range(3):
        metrics.text()
    assert asked == 1
    metrics._read_at_s -= FRESH_S + 0.1
    metrics._read_s = 0.5  # which allows one each 25 s
    metrics.text()
    assert asked == 1
    metrics._read_at_s -= 25
    metrics.text()
    assert asked == 2


def test_a_database_that_is_away_is_said_and_nothing_old_is_told(rig: Rig) -> None:
    story(rig)
    metrics = Metrics(rig.context())
    assert value(read(metrics.text()), "spotd_store_up") == 1

    def away(_now_us: int) -> Any:
        raise StoreUnavailableError("away")

    object.__setattr__(metrics._context, "metric_records", away)
    metrics._read_at_s = float("-inf")
    found = read(metrics.text())
    assert value(found, "spotd_store_up") == 0
    assert not any(name.startswith(("spotd_jobs", "spotd_spent")) for name, _ in found)
    assert value(found, "spotd_safe_mode") == 0
    # It took its time to fail; that it is back is known with the next look, and not minutes later.
    metrics._read_s = 10.0
    object.__setattr__(metrics._context, "metric_records", rig.store.metrics.read)
    metrics._read_at_s -= FRESH_S + 0.1
    assert value(read(metrics.text()), "spotd_store_up") == 1


def test_calls_to_clouds_are_counted_by_how_they_end() -> None:
    class Cloud:
        name = "toy"

        def __init__(self) -> None:
            self.full = False

        def list(self) -> list[str]:
            return ["one"]

        def launch(self, _: object) -> None:
            raise CapacityError("none")

        def offers(self, _: object) -> None:
            raise ZeroDivisionError

        terminate = notices = list

    meters = ProcessMetrics()
    cloud: Any = Cloud()
    assert meters.watch(cloud) is cloud
    assert cloud.list() == ["one"]
    with pytest.raises(CapacityError):
        cloud.launch(None)
    with pytest.raises(ZeroDivisionError):
        cloud.offers(None)
    sample = meters.registry.get_sample_value
    for verb, outcome in (("list", "ok"), ("launch", "CapacityError"), ("offers", "bug")):
        labels = {"provider": "toy", "verb": verb, "outcome": outcome}
        assert sample("spotd_provider_calls_total", labels) == 1
    ok = {"provider": "toy", "verb": "launch", "outcome": "ok"}
    assert sample("spotd_provider_calls_total", ok) == 0
    assert sample("spotd_provider_call_seconds_count", {"provider": "toy", "verb": "list"}) == 1


def test_the_socket_has_it_for_whoever_may_look(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    with (tmp_path / "said").open("w+b") as file:
        headers = PathClient(rig.socket).fetch(routes.METRICS(), file)
        file.seek(0)
        found = read(file.read())
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert value(found, "spotd_duties", holder="this") == 0
    assert value(found, "spotd_provider_up", provider="aws") == 1


def test_a_cloud_that_is_silent_and_machines_that_nobody_wants(rig: Rig) -> None:
    rig.silent_providers = {"aws": "no answer for 90 s"}
    rig.unlisted_providers = ["toy-gcp"]
    rig.store.leases.take("survey:aws", "this-daemon", rig.clock.now_us, 10**9)
    rig.store.leases.take("prune", "that-daemon", rig.clock.now_us, 10**9)
    found = scrape(rig)
    assert value(found, "spotd_provider_up", provider="aws") == 0
    assert value(found, "spotd_provider_up", provider="toy-gcp") == 1
    assert value(found, "spotd_orphans", provider="aws") == 0
    assert ("spotd_orphans", frozenset({("provider", "toy-gcp")})) not in found  # nobody looked
    assert value(found, "spotd_duties", holder="this") == 1
    assert value(found, "spotd_duties", holder="another") == 1


def test_the_page_has_the_table_of_the_code() -> None:
    page = Path("docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(spotd_\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [
        (one.name, one.kind, ", ".join(one.labels) or "-", one.since, one.text) for one in METRICS
    ]
    assert CapacityType.SPOT.value == POOL["capacity_type"]


def test_nothing_is_exposed_that_the_table_has_not(rig: Rig) -> None:
    story(rig)
    families = text_string_to_metric_families(Metrics(rig.context()).text().decode())
    kinds = {one.name: one.type for one in families}
    known = {one.name.removesuffix("_total"): one.kind for one in METRICS}
    assert kinds.items() <= known.items()
    with pytest.raises(ValueError, match="divided by"):
        ExpositionPage().add("spotd_jobs", 1, "running")
