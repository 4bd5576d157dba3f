"""Budgets: a job that may cost more than a budget has left is refused without an override."""

from __future__ import annotations

import pytest

from spotd.api.http import auth_middleware
from spotd.api.http.permissions import Peer
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.api_routes.person import Person
from spotd.base.errors import UserError
from spotd.domain.job import Desired
from spotd.money.approval import ADMINS, SECOND_PERSON, Approval
from spotd.money.budget import Budget
from spotd.money.focus import month_of
from spotd.store.logins import UserToken
from spotd.store.storage_costs import StorageCost
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl


@pytest.mark.req("BUD-03")
def test_launch_beyond_the_budget_is_refused_and_an_override_is_audited(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.budgets = [Budget("lab", 15_000_000)]
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    arguments = ["run", str(rig.folder / "job.yaml"), "-d"]
    assert spotctl(rig, *arguments) == 4
    error = capsys.readouterr().err
    assert "the budget lab has $15.00 this month" in error
    assert "gpt may cost $19.93" in error
    assert rig.store.jobs.rows() == []
    assert spotctl(rig, *arguments, "--override-budget") == 0
    (job,) = rig.store.jobs.rows()
    (event,) = rig.store.events.of_kinds(job.id, ["budget_override"])
    assert f"lets {job.name} exceed a budget" in event.event.text
    assert not event.event.alert, "a person's own decision is on record, and no alert"
    refused, done = (row for row in rig.store.audit.rows(0) if "the budget lab" in row.text)
    assert [refused.outcome.value, done.outcome.value] == ["refused", "done"]
    assert done.user in event.event.text


def test_expected_checkpoint_costs_count_against_the_budget(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Egress of 1 GB from AWS at $0.09, twelve times an hour, plus requests and storage."""
    rig.checkpoint_store, rig.places = "gs://runs/team", {"gs://runs": ("gcp", "us-central1")}
    rig.offer_them(SPOT)
    saves = "{engine: spotd, every: 5m, size: 1GB, keep: 3}"
    text = JOB_FILE.replace("{engine: spotd, every_steps: 100}", saves)
    (rig.folder / "job.yaml").write_text(text)
    arguments = ["run", str(rig.folder / "job.yaml"), "-d"]
    rig.budgets = [Budget("lab", 21_000_000)]
    assert spotctl(rig, *arguments) == 4
    assert "gpt may cost $21.01" in capsys.readouterr().err
    rig.budgets = [Budget("lab", 21_020_000)]
    assert spotctl(rig, *arguments) == 0


def test_paid_checkpoint_costs_count_as_spent(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted against the budget, and against what a job may still spend of its own limit."""
    client = Client(rig.socket)
    now_us = rig.clock.now_us()
    month_us, _ = month_of(now_us)
    job_id = rig.submit(text=JOB_FILE + "  budget: {max_cost_usd: 50}\n")
    rig.store.storage_costs.record(StorageCost(job_id, month_us, 40_000_000, 2_000_000, now_us))
    rig.budgets = [Budget("lab", 60_000_000)]
    [lab] = client.call(routes.LIST_BUDGETS())["items"]
    assert (lab["spent_usd"], lab["usd_per_hour"]) == (40.0, 2.0)
    (rig.folder / "job.yaml").write_text(JOB_FILE.replace("gpt", "other"))
    assert spotctl(rig, "run", str(rig.folder / "job.yaml"), "-d") == 4
    message = "$40.00 spent, $10.00 committed to unfinished jobs, and other may cost $19.93"
    assert message in capsys.readouterr().err


def test_launch_within_the_budget_is_accepted(rig: Rig, spotctl: Spotctl) -> None:
    rig.budgets = [Budget("lab", 10**12), Budget("bob", 1, user="somebody else")]
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    assert spotctl(rig, "run", str(rig.folder / "job.yaml"), "-d") == 0


def test_paused_job_is_not_resumed_beyond_the_budget(rig: Rig, spotctl: Spotctl) -> None:
    job_id = rig.submit(ago_s=2000)
    rig.launch(job_id, SPOT, ago_s=1800)
    rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.ago(10))
    rig.budgets = [Budget("lab", 1)]
    assert spotctl(rig, "resume", "gpt") == 4
    assert spotctl(rig, "resume", "gpt", "--override-budget") == 0
    assert rig.store.events.of_kinds(job_id, ["budget_override"])
    refused, done = (row for row in rig.store.audit.rows(0) if "the budget lab" in row.text)
    assert (refused.action, done.action) == ("resume", "resume")
    assert [refused.outcome.value, done.outcome.value] == ["refused", "done"]


def test_budget_table(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(rig.socket)
    assert spotctl(rig, "cost", "budget") == 0
    assert "no budget is configured" in capsys.readouterr().err
    rig.launch(rig.submit(ago_s=2000), SPOT, ago_s=1)
    rig.budgets = [Budget("lab", 10**10, user="ada")]
    (budget,) = client.call(routes.LIST_BUDGETS())["items"]
    assert budget["usd_per_hour"] == 19.93
    assert budget["forecast_low_usd"] <= budget["forecast_usd"] <= budget["forecast_high_usd"]
    assert spotctl(rig, "cost", "budget") == 0
    assert "lab     within  ada  $10,000.00" in capsys.readouterr().out


def test_a_forecast_beyond_the_budget_is_not_within(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.launch(rig.submit(ago_s=2000), SPOT, ago_s=1)
    rig.budgets = [Budget("lab", 10**6)]
    assert spotctl(rig, "budget") == 0
    assert "lab     will exceed" in capsys.readouterr().out
    assert [item["state"] for item in Client(rig.socket).call(routes.LIST_BUDGETS())["items"]] == [
        "will exceed"
    ]
    rig.budgets = [Budget("lab", 1)]
    assert spotctl(rig, "budget") == 0
    assert "lab     used up" in capsys.readouterr().out


class People:
    """The user at the other end of the socket, who may be another one at each command."""

    def __init__(self) -> None:
        self.name = "ada"

    def peer(self, uid: int) -> Peer:
        return Peer(uid, self.name)


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> People:
    people = People()
    monkeypatch.setattr(auth_middleware, "find_peer", people.peer)
    return people


def beyond(rig: Rig) -> list[str]:
    """Return the command that submits a job beyond the budget of a box with two-person rule."""
    rig.overrides = SECOND_PERSON
    rig.budgets = [Budget("lab", 15_000_000)]
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    return ["run", str(rig.folder / "job.yaml"), "--override-budget"]


def test_an_override_by_nobody_is_refused(
    rig: Rig, spotctl: Spotctl, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would wait for nobody else, and run."""
    people.name = ""
    assert spotctl(rig, *beyond(rig)) == 5
    assert "the user who asks to exceed a budget is unknown" in capsys.readouterr().err
    assert rig.store.jobs.rows() == []


def test_an_override_waits_for_a_second_person(
    rig: Rig, spotctl: Spotctl, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, *beyond(rig)) == 0  # it is not followed: a person comes next
    assert "gpt waits until another admin approves" in capsys.readouterr().err
    (job,) = rig.store.jobs.rows()
    assert (job.desired, job.approval.approval_asked_by) == (Desired.PAUSE, "ada")
    assert not rig.store.events.of_kinds(job.id, ["budget_override"])
    (asked,) = rig.store.events.of_kinds(job.id, ["budget_approval"])
    assert asked.event.alert
    assert asked.event.text.startswith("ada asks to let gpt exceed a budget: the budget lab has")

    assert spotctl(rig, "ps") == 0
    assert "paused, needs approval" in capsys.readouterr().out
    for command in ("show", "why"):
        assert spotctl(rig, command, "gpt", "-o", "wide") == 0
        printed = capsys.readouterr().out
        assert "spotctl budget approve gpt" in printed
        assert "an admin other than ada" in printed
        assert "the budget lab has $15.00" in printed

    assert spotctl(rig, "budget", "approve", "gpt") == 5
    assert "ada asked to let gpt exceed a budget, and cannot approve it" in capsys.readouterr().err
    people.name = "bob"
    assert spotctl(rig, "budget", "approve", "gpt") == 0
    assert "gpt runs, beyond a budget: the budget lab" in capsys.readouterr().err
    job = rig.store.jobs.rows()[0]
    assert (job.desired, job.approval.approval_asked_by, job.approval.approval_text) == (
        Desired.RUN,
        "",
        "",
    )
    (event,) = rig.store.events.of_kinds(job.id, ["budget_override"])
    assert event.event.text.startswith("bob lets gpt exceed a budget: ada asked for it; ")
    refused, done = (
        row
        for row in rig.store.audit.rows(0)
        if row.action == "budget approve" and row.outcome.value != "asked"
    )
    assert (refused.user, refused.outcome.value) == ("ada", "refused")
    assert (done.user, done.outcome.value) == ("bob", "done")
    assert "asked_by=ada" in done.text
    assert spotctl(rig, "budget", "approve", "gpt") != 0
    assert "gpt waits for no approval" in capsys.readouterr().err


def test_a_token_of_the_one_who_asked_is_no_second_person(
    rig: Rig, spotctl: Spotctl, people: People
) -> None:
    assert spotctl(rig, *beyond(rig)) == 0
    now_us, ends_us = rig.clock.now_us(), rig.clock.now_us() + 10**12
    for token_id, maker in (("t1", "ada"), ("t2", "root")):
        token = UserToken(token_id, "bob@x", False, "admin", "d", now_us, maker, ends_us)
        rig.store.logins.add_token(token)

    def approve(token_id: str) -> None:
        bob = Person("bob@x", role="admin", token_id=token_id)
        Client(rig.socket, person=bob).call(routes.APPROVE_BUDGET(job="gpt"))

    for token_id, maker in (("t1", "ada"), ("revoked", "somebody unknown")):
        with pytest.raises(UserError, match=f"logged in with a token of {maker}"):
            approve(token_id)
    assert rig.store.jobs.rows()[0].desired is Desired.PAUSE
    approve("t2")
    assert rig.store.jobs.rows()[0].desired is Desired.RUN


def test_a_resumed_job_waits_for_a_second_person(
    rig: Rig, spotctl: Spotctl, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = rig.submit(ago_s=2000)
    rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.ago(10))
    beyond(rig)
    assert spotctl(rig, "resume", "gpt", "--override-budget") == 0
    assert "another admin approves" in capsys.readouterr().err
    job = rig.store.jobs.rows()[0]
    assert (job.desired, job.approval.approval_asked_by) == (Desired.PAUSE, "ada")
    people.name = "bob"
    assert spotctl(rig, "budget", "approve", "gpt") == 0
    assert rig.store.jobs.rows()[0].desired is Desired.RUN


def test_a_waiting_job_runs_without_approval_once_the_budget_has_room(
    rig: Rig, spotctl: Spotctl, people: People
) -> None:
    assert people.name == "ada"
    assert spotctl(rig, *beyond(rig)) == 0
    assert spotctl(rig, "resume", "gpt") == 4
    rig.budgets = [Budget("lab", 10**12)]
    assert spotctl(rig, "resume", "gpt") == 0
    job = rig.store.jobs.rows()[0]
    assert (job.desired, job.approval.approval_asked_by) == (Desired.RUN, "")


def test_an_override_needs_the_admin_group(
    rig: Rig, spotctl: Spotctl, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    command = beyond(rig)
    rig.overrides = ADMINS
    rig.authority.trusted, rig.authority.is_member = frozenset(), lambda *_: False
    assert spotctl(rig, *command) == 5
    assert f"{people.name} may read but not change anything: not in the group" in (
        capsys.readouterr().err
    )
    assert rig.store.jobs.rows() == []


APPROVED = frozenset({"llm-research", "production-model-training", "approved-experiment"})


@pytest.mark.req("CST-14")
@pytest.mark.parametrize(
    ("policy", "project", "code", "told"),
    [
        ("warn", "llm-research", 0, ""),
        ("warn", "mine", 0, "the project 'mine' is not approved (approved: approved-experiment, "),
        (
            "warn",
            "",
            0,
            'with unapproved_projects = "refuse" in [policies] the job would be refused',
        ),
        ("allow", "mine", 0, ""),
        ("refuse", "mine", 4, "or add [projects.mine] to config.toml"),
        ("refuse", "", 4, "it names no project"),
        ("refuse", "approved-experiment", 0, ""),
    ],
)
def test_job_of_an_unapproved_project_is_refused(
    rig: Rig,
    spotctl: Spotctl,
    capsys: pytest.CaptureFixture[str],
    policy: str,
    project: str,
    code: int,
    told: str,
) -> None:
    rig.approval = Approval(policy, APPROVED)
    named = JOB_FILE + f"  project: {project}\n" if project else JOB_FILE
    (rig.folder / "job.yaml").write_text(named)
    assert spotctl(rig, "run", str(rig.folder / "job.yaml"), "-d") == code
    assert told in capsys.readouterr().err
    assert len(rig.store.jobs.rows()) == (code == 0)


def test_without_an_approval_list_every_project_is_approved() -> None:
    assert Approval("refuse").lacks("mine") == ""
