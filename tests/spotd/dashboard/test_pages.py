"""Pages tell what the API tells, of the real daemon's app over a real store."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from spotd.api.routes import log_search
from spotd.api_client.client import Client, Target
from spotd.api_client.wording import result_text
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.base.text import money, percent
from spotd.dashboard import spending
from spotd.dashboard.api_cache import ApiCache
from spotd.dashboard.overview import MOST_LOOKED_AT
from spotd.dashboard.server import start_server
from spotd.domain.events import Event, Severity
from spotd.domain.fault_drill import DrillEnd, DrillKind, FaultDrill
from spotd.domain.states import LeaveReason, Outcome
from spotd.money.budget import Budget
from tests.spotd.api.rig import OFFERS, SPOT, Rig, crash, story
from tests.spotd.dashboard.reading import Json, ask, numbers, read

HOSTILE = "</h1><img src=x onerror=alert(1)>\"'<script>alert(2)</script>\u202e\x1b[2J"
JOBS = "Unfinished jobs"


def lost(rig: Rig) -> str:
    """A job that lost 30 steps, and trains again elsewhere."""
    job_id = rig.submit("lost", ago_s=4000)
    first = rig.launch(job_id, SPOT, ago_s=3900)
    rig.train(first, ago_s=3800, until_s=1000, first=0, last=100)
    rig.say(first, 950, "progress", from_step=101, to_step=130, losses=[],
            first_at_us=rig.ago(1000), last_at_us=rig.ago(950), tokens=1, busy_s=1.0)  # fmt: skip
    rig.leave(first, 940, LeaveReason.LOST, "the cloud no longer has it")
    second = rig.launch(job_id, OFFERS[2], ago_s=930)
    rig.train(second, ago_s=900, until_s=60, first=100, last=300)
    return job_id


def test_an_empty_box_says_what_to_type_next(url: str) -> None:
    page = read(url)
    assert "No job is unfinished. Submit one: spotctl --socket" in page.text
    assert "run examples/minimal.yaml" in page.text
    assert "No machine costs money now." in page.text
    assert "[budgets.NAME]" in page.text
    assert "Nothing needs attention" in page.text
    assert JOBS not in page.tables
    assert "Nothing has happened yet." in read(url, "events").text


def test_jobs_are_those_of_the_api(rig: Rig, client: Client, url: str) -> None:
    lost(rig), story(rig), crash(rig)
    rig.submit("waiting-for-b200", 90, "name: w\nresources: {accelerators: B200:8}\nrun: x\n")
    rows = {row["Job"]: row for row in read(url).tables[JOBS]}
    jobs: list[Json] = client.call(routes.LIST_JOBS())["items"]
    assert set(rows) == {job["name"] for job in jobs} == {"lost", "gpt", "waiting-for-b200"}
    for job in jobs:
        row, detail = rows[job["name"]], client.call(routes.SHOW_JOB(job=job["id"]))
        report = client.call(routes.JOB_COST_REPORT(job=job["id"]))
        assert row["Phase"].split() == [row["Phase"].split()[0], job["phase"]]
        assert row["Step"] == f"{job['step']:,}"
        assert (row["Attempt"], row["Recoveries"]) == (
            str(job["generation"]),
            str(job["recoveries"]),
        )
        assert row["Steps lost"] == str(detail["steps_lost"])
        assert row["Cost"] == money(job["cost_usd"])
        assert row["$ per useful GPU-hour"] == money(report["usd_per_useful_gpu_hour"])
    assert rows["lost"]["Steps lost"] == "30"
    why = client.call(routes.EXPLAIN_JOB(job="waiting-for-b200"))["reason"]
    assert why in rows["waiting-for-b200"]["Where"]
    ended = read(url).tables["Jobs that ended, the last first"]
    assert [(row["Job"], row["Ended as"]) for row in ended] == [("crashed", "✕ failed")]


def test_the_fleet_adds_up(rig: Rig, client: Client, url: str) -> None:
    lost(rig), story(rig)
    rig.launch(rig.submit("third", 50), SPOT, 40)
    page, nodes = read(url), client.call(routes.LIST_NODES())["items"]
    whole = sum(one["price_usd_per_h"] for one in nodes)
    assert len(nodes) == 3
    by_provider = page.tables["Machines by provider"]
    assert sum(numbers(by_provider, "$/h")) == pytest.approx(whole)
    assert sum(int(row["Machines"]) for row in by_provider) == len(nodes)
    assert sum(numbers(page.tables["Machines that cost money now"], "$/h")) == pytest.approx(whole)
    assert f"Machines 3 {money(whole)}/h" in page.text


def test_money_is_that_of_reports_and_budgets(rig: Rig, client: Client, url: str) -> None:
    rig.clock.stand_in_mid_month()
    rig.budgets = [Budget("lab", 40_000_000), Budget("tiny", 1_000_000, user="ada")]
    story(rig)
    page, found = read(url), client.call(routes.LIST_BUDGETS())["items"]
    rows = {row["Budget"]: row for row in page.tables["Budgets of this month"]}
    for one in found:
        row = rows[one["name"]]
        assert row["Spent"] == money(one["spent_usd"])
        assert row["State"].endswith(one["state"])
        assert row["Share"].startswith(percent(one["spent_usd"] / one["budget_usd"]))
        assert row["At the end"] == money(one["forecast_usd"])
    assert rows["lab"]["State"] == "! will exceed"
    assert f"Budget tiny: {rows['tiny']['Spent']} of $1.00" in page.text
    whole = client.call(routes.COST_REPORT(), query={"by": "day"})
    days = page.tables["Cost by day, the last 14 of this month"]
    month = [one for one in whole["days"] if one["day"][:7] == whole["now"][:7]]
    assert {row["Day (UTC)"]: row["Cost"] for row in days} == {
        one["day"]: money(one["total_usd"]) for one in month
    }
    assert "provisional: by prices and times" in page.text


def test_what_leaks_is_told_loudly(rig: Rig, client: Client, url: str) -> None:
    story(rig)
    assert "Leaks 0 all belongs to a job" in read(url).text
    rig.hold("i-0a1", 7230, "job jold is not on record")
    rig.hold_disk("vol-0b2", 7230, "job jold is not on record")
    page, told = read(url), client.call(routes.LIST_ORPHANS())
    assert f"Leaks 2 {money(told['usd_per_h'])}/h in no job's bill" in page.text
    assert {row["Id"] for row in page.tables["Resources that no job uses"]} == {"i-0a1", "vol-0b2"}
    assert "orphans end" in page.text
    rig.held.clear()
    rig.held_leftovers.clear()
    rig.unlisted_providers.append("gcp")
    assert "Leaks ? not known of gcp" in read(url).text


def test_what_holds_the_daemon_back_and_what_is_grave_is_on_top(rig: Rig, url: str) -> None:
    rig.store.deployment.set_quarantine("the database was restored", rig.clock.now_us())
    error = Event("credentials", "aws refuses our key", severity=Severity.ERROR)
    rig.store.events.add("", error, rig.ago(60))
    rig.store.events.add("", replace(error, text="long ago"), rig.ago(90_000))
    rig.store.events.add("", Event("note", "all is well"), rig.ago(60))
    crash(rig)
    rig.contested = "another spotd has this deployment"
    text = read(url).text.split("Jobs No job")[0]
    assert "It makes no changes: another spotd has this deployment" in text
    assert "In quarantine: the database was restored" in text
    assert "✕ error 1m ago aws refuses our key" in text
    assert "crashed: the program crashed with exit code 1" in text
    assert "long ago" not in text
    assert "all is well" not in text


def test_a_job_s_page_adds_up(rig: Rig, client: Client, url: str) -> None:
    job_id = lost(rig)
    page, report = read(url, f"job/{job_id}"), client.call(routes.JOB_COST_REPORT(job=job_id))
    items, uses = page.tables["Line items"], page.tables["Use of the hours"]
    assert page.sums["Line items"]["Cost"] == money(report["total_usd"])
    assert [row["Cost"] for row in items] == [money(one["cost_usd"]) for one in report["items"]]
    assert sum(one["cost_usd"] for one in report["items"]) == pytest.approx(report["total_usd"])
    machines_usd = report["compute_usd"]
    assert page.sums["Use of the hours"]["Cost"] == money(machines_usd)
    assert [row["Cost"] for row in uses] == [money(one["cost_usd"]) for one in report["hours"]]
    assert sum(one["cost_usd"] for one in report["hours"]) == pytest.approx(machines_usd)
    assert {row["Machine-hours of"] for row in uses} == {one["use"] for one in report["hours"]}
    assert f"per useful GPU-hour {money(report['usd_per_useful_gpu_hour'])}" in page.text


def test_a_job_s_page_tells_its_hand_overs_and_machines(rig: Rig, client: Client, url: str) -> None:
    job_id = lost(rig)
    page, job = read(url, f"job/{job_id}"), client.call(routes.SHOW_JOB(job=job_id))
    (row,) = page.tables["Duration of each hand-over, part by part"]
    (told,) = job["hand_overs"]
    assert row["Generations"] == "1 → 2"
    assert row["Old one"] == "lost"
    assert row["In all"] == f"{told['total_s']:.1f} s"
    assert row["Notice"] == f"{told['parts']['detect_s']:.1f} s"
    assert row["Steps lost"] == "30"
    machines = page.tables["Machines of all generations, the newest first"]
    assert [one["Generation"] for one in machines] == ["2", "1"]
    assert machines[1]["Left because"] == "the cloud no longer has it"
    assert "30 steps lost" in page.text  # of the ribbon
    assert "death without notice" in page.text
    assert re.search(r"Lost 30 steps [0-9.a-z ]+ of work, \$", page.text)


@pytest.mark.req("DRL-02")
def test_a_job_s_page_has_its_last_drill(rig: Rig, url: str) -> None:
    job_id = lost(rig)
    assert re.search(r"Last drill none", read(url, f"job/{job_id}").text)
    for number, end in enumerate((DrillEnd.PASSED, DrillEnd.FAILED)):
        drill = FaultDrill(f"d{number}", job_id, DrillKind.KILL, "ada", rig.ago(600 - number))
        rig.store.drills.add(drill)
        rig.store.drills.update(replace(drill, ended_at_us=rig.ago(300), end=end))
        page = read(url, f"job/{job_id}")
        assert re.search(rf"Last drill \S+ {end.value} kill ", page.text), page.text


def test_a_job_s_page_says_why(rig: Rig, client: Client, url: str) -> None:
    text = "name: d\nresources: {accelerators: H100:8}\nrun: x\nspotd: {deadline: 60h, work: 40h}\n"
    job_id = rig.submit("due", 60, text)
    page, why = read(url, f"job/{job_id}"), client.call(routes.EXPLAIN_JOB(job=job_id))
    assert why["reason"] in page.text
    costs = why["placement"]["costs"]
    rows = page.tables["Expected cost until it is done, by place and term"]
    assert len(rows) == len(costs) > 1
    for row, one in zip(rows, costs, strict=True):
        assert row["In all $"] == money(one["usd"]["total"])
        assert row["Training $"] == money(one["usd"]["train"])
    assert "No machine was requested yet" in page.text
    assert "Nothing is saved yet." in page.text


def test_what_is_compared_by_a_day_of_work_does_not_say_until_it_is_done(
    rig: Rig, client: Client, url: str
) -> None:
    text = "name: d\nresources: {accelerators: H100:8}\nrun: x\n"
    text += "spotd: {checkpoint: {engine: spotd, every_steps: 100}}\n"
    job_id = rig.submit("endless", 60, text)
    page, why = read(url, f"job/{job_id}"), client.call(routes.EXPLAIN_JOB(job=job_id))
    assert why["placement"]["assumed_h"] == 24
    named = "Expected cost of 24 h of work by place and term: the amount of work is not known"
    assert len(page.tables[named]) == len(why["placement"]["costs"])
    assert "until it is done" not in page.text


def test_the_last_words_of_a_job_that_failed(rig: Rig, url: str) -> None:
    page = read(url, f"job/{crash(rig)}")
    assert "Last output of generation 1, exit 1" in page.text
    assert "ValueError: no· more data" in page.text
    assert "\x1b" not in page.markup
    assert "[31m" not in page.text
    assert "Why it is where it is" not in page.text  # it is nowhere any more


def test_output_and_checkpoints(rig: Rig, url: str) -> None:
    page = read(url, f"job/{story(rig)}")
    assert "generation 2, machine 0, rank0" in page.text
    assert "step 1191 loss 1.9" in page.text
    assert page.text.index("step 1191") < page.text.index("step 1190 loss")


def test_missing_output_is_marked(rig: Rig, url: str) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    rig.log(node, "rank0", 25, b"fter the gap\n")
    text = read(url, f"job/{job_id}").text
    assert "--- spotd: 6 bytes of output are missing here ---" in text
    assert "6 B of it were never fetched" in read(url, f"job/{job_id}?search=gap").text


def test_results_and_margins_are_those_of_show(rig: Rig, client: Client, url: str) -> None:
    job_id = story(rig)
    body = {"suite": "helpdesk", "cases": 50, "passed": 47, "failed": ["q7"]}
    client.call(routes.IMPORT_RESULTS(job=job_id), body)
    page, job = read(url, f"job/{job_id}"), client.call(routes.SHOW_JOB(job=job_id))
    assert f"helpdesk {result_text(job['results'][0])}" in page.text
    margins = {str(node["generation"]): node["margin_s"] for node in job["nodes"]}
    for row in page.tables["Machines of all generations, the newest first"]:
        told = margins[row["Generation"]]
        assert row["Time left"] == ("-" if told is None else f"{told:.1f} s")


def test_a_job_that_there_is_not(url: str) -> None:
    page = read(url, "job/%3Cscript%3E")
    assert "there is no job" in page.text
    assert "<script>" not in page.markup.split("</head>")[1]


def test_nothing_that_users_machines_and_clouds_say_is_markup(rig: Rig, url: str) -> None:
    job_id = lost(rig)
    evil = rig.submit(HOSTILE, ago_s=4000)
    node = rig.launch(evil, replace(SPOT, zone=HOSTILE, region=HOSTILE), ago_s=3600)
    rig.train(node, ago_s=3500, until_s=100, first=0, last=10)
    rig.log(node, "rank0", 0, HOSTILE.encode() + b"\n")
    rig.say(node, 90, "exited", code=1, ranks={"0": 1}, tail=HOSTILE)
    rig.leave(node, 80, LeaveReason.LOST, HOSTILE)
    rig.store.events.add(evil, Event("note", HOSTILE, severity=Severity.ERROR), rig.ago(60))
    rig.hold("i-1", 100, HOSTILE)
    rig.offer_them(replace(SPOT, zone=HOSTILE, instance_type=HOSTILE))
    clean = {tag for tag, _ in read(url, f"job/{job_id}").tags}
    failed = rig.submit(f"{HOSTILE}2", ago_s=300)
    rig.finish(failed, 200, Outcome.FAILED, HOSTILE)
    for path in ("", "prices", "events", f"job/{evil}", f"job/{failed}", "prices?gpus=%3Cimg%3E"):
        page = read(url, path)
        seen = {tag for tag, _ in page.tags}
        assert "img" not in seen, path
        assert [given for tag, given in page.tags if tag == "script" and "src" not in given] == []
        assert seen <= clean | {
            "form",
            "label",
            "input",
            "select",
            "option",
            "small",
            "strong",
            "pre",
        }
        assert not [given for _, given in page.tags if any(n.startswith("on") for n in given)]
        assert "\u202e" not in page.markup
        assert "\x1b" not in page.markup
    assert "onerror=alert(1)" in read(url).text, "as a text it is there"


def test_what_is_not_known_is_no_good_news(rig: Rig) -> None:
    """A daemon that went away before this page asked it for anything."""
    cache = ApiCache(Target(socket=str(rig.socket)), age_factor=0.0)
    server = start_server(cache)
    rig.stop()
    text = read(server.url).text
    server.stop()
    cache.close()
    assert "Nothing needs attention" not in text
    assert "Not known, there was no answer: failed jobs, events, leaks, budgets" in text


def test_of_many_jobs_those_that_ended_last_are_looked_at(rig: Rig, url: str) -> None:
    """One that was submitted long before all others failed just now; more run than are shown."""
    old = rig.submit("oldest", ago_s=90_000)
    for number in range(MOST_LOOKED_AT + 2):
        rig.submit(f"j{number}", ago_s=3000)
    rig.finish(old, 60, Outcome.FAILED, "it broke")
    page = read(url)
    assert "oldest: it broke" in page.text.split("Unfinished jobs")[0]
    ended = page.tables["Jobs that ended, the last first"]
    assert [row["Job"] for row in ended] == ["oldest"]
    assert "Jobs running 0 or more 40 waiting, 12 older ones not looked at" in page.text


def test_a_daemon_that_is_away_is_told_and_what_was_known_stays(rig: Rig, url: str) -> None:
    story(rig)
    before = read(url).tables[JOBS]
    rig.stop()
    page = read(url)
    assert "spotd does not answer" in page.text
    assert re.search(r"The figures are \d+s old", page.text)
    assert "systemctl start spotd" in page.text
    assert [row["Job"] for row in page.tables[JOBS]] == [row["Job"] for row in before]
    fresh = read(url, "prices")  # of which nothing was known
    assert "does not answer" in fresh.text
    assert "not known: there was no answer" in fresh.text
    rig.start()
    assert "does not answer" not in read(url).text
    assert "Offers by pool" in read(url, "prices").tables


def test_prices_are_those_on_sale(rig: Rig, client: Client, url: str) -> None:
    rows = read(url, "prices").tables["Offers by pool"]
    told = client.call(routes.LIST_OFFERS(), query={"sort": "gpu"})["items"]
    assert [row["$/h"] for row in rows] == [f"{money(one['price_usd_per_h'])}/h" for one in told]
    assert rows[0]["$ per GPU-hour"] == money(told[0]["price_usd_per_h"] / 8)
    rig.clock.go_on(3600)
    rig.offer_them(replace(SPOT, price_microusd_per_h=25_000_000))
    (moved,) = read(url, "prices?capacity=spot&gpus=H100%3A8").tables["Offers by pool"]
    assert "$19.93 to $25.00 an hour" in moved["The last 24 h"]
    assert "capacity must be one of" in read(url, "prices?capacity=x").text


def test_events_come_once_and_go_on(rig: Rig, url: str) -> None:
    job_id = story(rig)
    first = read(url, "events").tables["Events, the newest first"]
    rig.store.events.add(job_id, Event("note", "and one more"), rig.ago(0))
    again = read(url, "events").tables["Events, the newest first"]
    assert len(again) == len(first) + 1
    assert again[0]["What"] == "and one more"


def test_every_page_is_a_document(rig: Rig, url: str) -> None:
    """What everybody needs who does not see it: a language, one first heading, named tables."""
    job_id = lost(rig)
    for path in ("", "prices", "events", f"job/{job_id}"):
        page = read(url, path)
        tags = [tag for tag, _ in page.tags]
        assert page.tags[0] == ("html", {"lang": "en"})
        assert (tags.count("h1"), tags.count("main")) == (1, 1)
        assert tags.index("title") < tags.index("body")
        assert tags.count("table") == tags.count("caption") == tags.count("thead")
        assert all("scope" in given for tag, given in page.tags if tag == "th")
        ids = [given["id"] for _, given in page.tags if "id" in given]
        assert len(ids) == len(set(ids))
        links = [given for tag, given in page.tags if tag == "a" and given.get("aria-current")]
        assert len(links) == (0 if path.startswith("job") else 1)
    assert ask(url).headers["content-type"] == "text/html; charset=utf-8"


def test_curves_and_cost_over_time_are_those_of_the_api(rig: Rig, client: Client, url: str) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    rig.say(node, 30, "progress", from_step=1791, to_step=1794,
            losses=[2.0, 9.0, float("nan"), 1.0], tokens=4096, busy_s=2.0,
            first_at_us=rig.ago(900), last_at_us=rig.ago(30),
            total_steps=3588)  # fmt: skip
    curves = client.call(routes.JOB_CURVES(job=job_id))
    assert [item["generation"] for item in curves["items"]] == [1, 2]
    assert [1792, 9.0] in curves["items"][1]["loss"]
    cost = client.call(routes.JOB_COST(job=job_id))
    assert curves["cost"][-1]["cost_usd"] == pytest.approx(cost["spend_usd"], abs=1e-4)
    paid = [point["cost_usd"] for point in curves["cost"]]
    assert paid == sorted(paid)
    assert paid[0] == 0
    page = read(url, f"job/{job_id}")
    assert "Loss and speed" in page.text
    assert (
        f"{money(curves['cost'][-1]['cost_usd'])} paid; the same useful work on demand" in page.text
    )
    assert "50.0 % of 3,588" in page.text
    assert "at the rate of the last 24 h" in page.text


def test_all_jobs_are_paged_filtered_and_ordered(rig: Rig, client: Client, url: str) -> None:
    crash(rig)
    for number in range(60):
        rig.submit(f"sweep-{number:02}", ago_s=1000 - number)
    first, second = read(url, "jobs"), read(url, "jobs?page=2")
    assert [len(page.tables["Jobs"]) for page in (first, second)] == [50, 11]
    assert first.tables["Jobs"][0]["Job"] == "sweep-59"
    assert "61 jobs" in first.text
    assert "Page 1 of 2" in first.text
    failed = read(url, "jobs?state=failed").tables["Jobs"]
    assert [(row["Job"], row["Phase"]) for row in failed] == [("crashed", "✕ failed")]
    named = read(url, "jobs?name=p-1&sort=name").tables["Jobs"]
    assert [row["Job"] for row in named] == [f"sweep-1{number}" for number in range(10)]
    assert "No job matches." in read(url, "jobs?name=%25").text
    assert read(url, "jobs?page=x&state=odd&sort=odd").tables["Jobs"] == first.tables["Jobs"]
    with pytest.raises(UserError, match="state must be one of unfinished"):
        client.call(routes.LIST_JOBS(), query={"offset": 0, "state": "odd"})


def test_a_machine_has_a_page(rig: Rig, client: Client, url: str) -> None:
    job_id = story(rig)
    first = client.call(routes.LIST_NODES(), query={"job": job_id})["items"][0]
    page = read(url, f"machine/{first['id']}")
    cost = client.call(routes.JOB_COST(job=job_id))["nodes"][0]
    assert f"{money(cost['spend_usd'])} {money(first['price_usd_per_h'])}/h" in page.text
    assert "preempt notice" in page.text
    assert "first step" in page.text
    links = [given.get("href") or "" for tag, given in page.tags if tag == "a"]
    assert any(link.endswith(f"/job/{job_id}") for link in links)
    assert any(link.endswith(f"/provider/{first['provider']}") for link in links)
    assert "This machine is not on record." in read(url, "machine/i-none").text


def test_a_provider_has_a_page_with_its_prices(rig: Rig, client: Client, url: str) -> None:
    rig.clock.stand_in_mid_month()
    story(rig)
    page = read(url, "provider/aws")
    nodes = client.call(routes.LIST_NODES(), query={"provider": "aws"})["items"]
    rows = page.tables["Machines, the newest first"]
    assert [row["State"] for row in rows] == [f"- {node['state']}" for node in nodes] == ["- gone"]
    report = client.call(routes.COST_REPORT(), query={"since_us": 0})
    paid = {row["provider"]: row["total_usd"] for row in report["providers"]}
    assert f"Paid this month {money(paid['aws'])}" in page.text
    assert "Taken away 1 of the newest 1 machines" in page.text
    regions = page.tables["Prices by region"]
    assert all(row["Region"].startswith("aws/") for row in regions)
    assert "No machine of this provider" in read(url, "provider/nobody").text


def test_prices_by_region_are_the_cheapest_with_their_history(
    rig: Rig, client: Client, url: str
) -> None:
    rig.offer_them(*(replace(o, price_microusd_per_h=o.price_microusd_per_h * 2) for o in OFFERS))
    rig.clock.go_on(3600)
    rig.offer_them()
    rows = read(url, "prices").tables["Prices by region"]
    history = client.call(routes.PRICE_HISTORY(), query={"since_s": 7 * 86_400})["items"]
    for row in rows:
        same = [
            offer
            for offer in history
            if row["Region"] == f"{offer['provider']}/{offer['region']}"
            and row["GPUs"] == (offer["accelerator"] or "no GPU")
            and row["As"] == offer["capacity_type"].replace("_", " ")
        ]
        each = [offer["price_usd_per_h"] / max(1, offer["accelerator_count"]) for offer in same]
        assert row["Now"] == f"{money(min(each))}/h"
        assert row["Pools"] == str(len(same)) != "0"
        assert row["Lowest, 7 days"] == money(min(each))
    assert any(row["Highest, 7 days"] != row["Lowest, 7 days"] for row in rows)


def test_the_output_can_be_searched(rig: Rig, url: str) -> None:
    job_id = story(rig)
    page = read(url, f"job/{job_id}?search=LOSS+1.9")
    assert "step 1190 loss 1.9" in page.text
    assert "step 1191 loss 1.9" in page.text
    assert "installing" not in page.text
    assert "step 1 loss 3.2" not in page.text
    assert "--grep" in page.text
    none = read(url, f"job/{job_id}?search=Traceback").text
    assert "No line in it has that." in none
    assert "nothing older is left" in none


def test_a_search_of_the_output_goes_on_to_its_beginning(
    rig: Rig, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line in the first bytes of a long stream, which no page reads in one request."""
    monkeypatch.setattr(log_search, "SEARCH_BYTES", 128 << 10)
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[-1]
    rig.log(node, "long", 0, b"the needle\n" + b"hay\n" * 60_000)
    address, pages = f"job/{job_id}?search=NEEDLE", 0
    while "the needle" not in (text := read(url, address).text):
        assert "No line in it has that." in text
        assert "of older output are not searched yet" in text
        (link,) = re.findall(r'href="([^"]*before=[^"]*)"', ask(url, address).text)
        address, pages = html.unescape(link).partition("/job/")[2], pages + 1
        address = f"job/{address.partition('#')[0]}"
    assert pages == 1


def test_the_month_is_added_up_beside_its_budget() -> None:
    days = [{"day": f"2026-11-{day:02}", "total_usd": 2.0} for day in range(1, 6)]
    budgets = {"items": [{"name": "<lab>", "user": "", "project": "", "budget_usd": 40.0}]}
    drawn = str(spending._so_far(days, budgets))
    assert drawn.count("<polyline") == 2
    assert "budget &lt;lab&gt;" in drawn
    assert ">$40.00<" in drawn
    assert spending._so_far(days[:1], budgets) is None


def _days(*on_demand: float | None) -> list[Json]:
    return [
        {"day": f"2026-11-{number:02}", "total_usd": 2.0, "on_demand_so_far_usd": value,
         "on_demand_unknown_jobs": int(value is None)}
        for number, value in enumerate(on_demand, 1)
    ]  # fmt: skip


def test_the_month_has_the_same_work_on_demand_as_far_as_it_is_known() -> None:
    drawn = str(spending._so_far(_days(5.0, 10.0, 15.0), None))
    assert drawn.count("<polyline") == 2
    assert "same work on demand" in drawn
    assert "The same work on demand: $15.00 so far." in drawn
    drawn = str(spending._so_far(_days(5.0, 10.0, None, None), None))
    assert drawn.count("<polyline") == 2
    assert (
        "The same work on demand is not known on 2 days, because the useful work of 1 job is not "
        "known." in drawn
    )
    drawn = str(spending._so_far(_days(None, None), None))
    assert drawn.count("<polyline") == 1
    assert "is not known on 2 days" in drawn
