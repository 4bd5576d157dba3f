"""A daemon that runs reads its configuration anew: all of it takes effect, or nothing does."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.demo.box import Box, wait_for
from tests.fixtures import slack as receiver
from tests.fixtures.forked import ForkedBox
from tests.fixtures.manager import Manager
from tests.fixtures.pair import machines
from tests.fixtures.processes import alive
from tests.fixtures.slack import Slack
from tests.fixtures.waiting import LIMIT_S

SETTINGS = """\
[timing]
offers_every_s = 0.5
survey_every_s = 1.0
[limits]
max_nodes = 1
"""

pytestmark = pytest.mark.xdist_group("daemon")


@pytest.fixture(scope="module")
def cloud() -> Iterator[Box]:
    """One local cloud for all daemons; each has a deployment of its own."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name, Box(Path(name)) as box:
        box.start_cloud()
        yield box


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def manager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    listening = Manager(folder / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(listening.path))
    yield listening
    listening.close()


@pytest.fixture
def box(cloud: Box, folder: Path, manager: Manager) -> Iterator[Box]:
    """A daemon at work, which systemd listens to."""
    with ForkedBox(folder, settings=SETTINGS) as made:
        made.cloud_url, made.token_file = cloud.cloud_url, cloud.token_file
        made.start_daemon()
        wait_for("READY", lambda: manager.hears(b"READY=1"), LIMIT_S)
        yield made
        assert "Traceback" not in made.tail("daemon", 5000)


def edit(box: Box, old: str, new: str) -> None:
    """Change the configuration's file."""
    text = box.config_path.read_text()
    assert text.count(old) == 1
    box.config_path.write_text(text.replace(old, new))


def reload(box: Box, manager: Manager) -> str:
    """What the daemon says of the configuration when it has read it anew."""
    assert box.daemon is not None
    manager.said.clear()
    box.daemon.send_signal(signal.SIGHUP)

    def done() -> list[str]:
        words = [word.decode() for word in manager.said if not word.startswith(b"WATCHDOG")]
        return words if words and words[-1].startswith("READY=1") else []

    begun, ready = wait_for("the end of the reload", done, LIMIT_S)
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", begun)
    [status] = re.findall(r"^READY=1\nSTATUS=(.*)$", ready)
    return str(status)


def submit(box: Box, name: str, infra: str = "") -> str:
    """A job that runs until it is told to finish; its program's process id is in a file."""
    where = f", infra: {infra}" if infra else ""
    text = f"""\
name: {name}
resources: {{cpus: 1+{where}}}
run: |
  echo $$ > {box.folder}/{name}.pid
  while [ ! -e {box.folder}/finish ]; do sleep 0.05; done
spotd: {{checkpoint: {{engine: none}}}}
"""
    return box.submit(text, name)


def program(box: Box, name: str) -> int:
    """The process id of a job's program, once it runs."""
    path = box.folder / f"{name}.pid"
    return int(wait_for(f"{name} to run", lambda: path.exists() and path.read_text(), LIMIT_S))


def decided(box: Box, job_id: str) -> str:
    """What the last decision about a job was, and why."""
    passes = [event["text"] for event in box.events(job_id) if event["kind"] == "pass"]
    return str(passes[-1]) if passes else ""


def told(box: Box) -> list[dict[str, Any]]:
    """The events about the configuration."""
    return [e for e in box.client.call(routes.READ_EVENTS())["items"] if e["kind"] == "config"]


def test_a_changed_budget_is_taken_over_through_the_api(box: Box, manager: Manager) -> None:
    """As by `spotctl reload`, for whoever may not send signals to the daemon."""
    assert box.client.call(routes.LIST_BUDGETS())["items"] == []
    with box.config_path.open("a") as file:
        file.write("\n[budgets.lab]\nusd_per_month = 100\n")
    manager.said.clear()
    answer = box.client.call(routes.RELOAD_CONFIG())
    assert answer["changed"] == ["budgets.lab"]
    (budget,) = box.client.call(routes.LIST_BUDGETS())["items"]
    assert (budget["name"], budget["budget_usd"], budget["state"]) == ("lab", 100.0, "within")
    ready = b"READY=1\nSTATUS=the configuration was read again: budgets.lab"
    wait_for("READY", lambda: ready in manager.said, LIMIT_S)

    edit(box, "usd_per_month = 100", "usd_per_month = 100\nsurprise = 1")
    with pytest.raises(UserError, match="was not taken over") as refusal:
        box.client.call(routes.RELOAD_CONFIG())
    assert "surprise" in refusal.value.try_
    assert told(box)
    (budget,) = box.client.call(routes.LIST_BUDGETS())["items"]
    assert budget["budget_usd"] == 100.0


def test_limits_take_effect_and_a_lower_one_ends_nothing(box: Box, manager: Manager) -> None:
    first, second = submit(box, "first"), submit(box, "second")
    running = program(box, "first")
    wait_for("the limit", lambda: "limits.max_nodes is 1" in decided(box, second), LIMIT_S)
    edit(box, "max_nodes = 1", "max_nodes = 2")
    assert reload(box, manager) == "the configuration was read again: limits.max_nodes"
    also_running = program(box, "second")

    edit(box, "max_nodes = 2", "max_nodes = 1\nunattended_h = 2")
    assert reload(box, manager).endswith("limits.max_nodes, limits.unattended_h")
    third = submit(box, "third")
    wait_for("the limit", lambda: "max_nodes is 1 and 2 are in use" in decided(box, third), LIMIT_S)
    assert alive(running)
    assert alive(also_running)
    assert reload(box, manager).endswith("nothing changed")
    (box.folder / "finish").touch()
    for job_id in (first, second, third):
        box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
        assert box.job(job_id)["generation"] == 1
        assert len(machines(box, job_id)) == 1


def test_who_may_do_what_by_another_file_is_on_record(box: Box, manager: Manager) -> None:
    edit(box, "[limits]", '[access]\nadmins = "others"\n[limits]')
    assert reload(box, manager).endswith("access.admins")
    lines = box.client.call(routes.READ_AUDIT())["items"]
    assert [(line["user"], line["action"], line["outcome"], line["text"]) for line in lines] == [
        ("root/systemd", "config reload", "asked", "access.admins"),
        ("root/systemd", "config reload", "done", "access.admins"),
    ]


WRONG = [
    ("max_nodes = 1", "max_nodes = many", "not TOML"),
    ("max_nodes = 1", "max_nodes = 0", "limits.max_nodes"),
    ('personality = "gcp"', 'personality = "aws"', "is the same account as providers.local"),
    ("[limits]", '[database]\nurl = "postgresql:///x"\n[limits]', "database.url: cannot change"),
    ("/state", "/other", "state_dir: cannot change while spotd runs"),
    (
        "[limits]",
        '[deployment]\nstore = "file:///tmp"\n[limits]',  # where whoever runs the tests may write
        "deployment.store: cannot",
    ),
]


def test_a_wrong_file_changes_nothing_and_is_told(box: Box, manager: Manager) -> None:
    """Nor does what is right in it; and what a restart alone can change is named."""
    right = box.config_path.read_text()
    for old, new, words in WRONG:
        edit(box, old, new)
        if "unattended_h" not in box.config_path.read_text():
            edit(box, "[limits]", "[limits]\nunattended_h = 2")
        status = reload(box, manager)
        assert status.startswith("the configuration was not applied, the one before stays in")
        assert words in status
        assert ("systemctl restart spotd" in status) == ("cannot change" in status)
        event = told(box)[-1]
        assert (event["text"], event["severity"]) == (status, "error")
        assert status in box.tail("daemon", 1000).replace('\\"', '"')
        box.config_path.write_text(right)
    first, second = submit(box, "first"), submit(box, "second")
    program(box, "first")
    wait_for("the limit", lambda: "limits.max_nodes is 1" in decided(box, second), LIMIT_S)
    assert reload(box, manager).endswith("nothing changed")
    assert len(told(box)) == len(WRONG)
    for job_id in (first, second):
        box.client.call(routes.CANCEL_JOB(job=job_id))
        box.wait_phase(job_id, {"cancelled"}, LIMIT_S)


def test_alerts_take_another_way(box: Box, manager: Manager, folder: Path) -> None:
    """Also one whose address alone changed, in a file that the configuration names."""
    url = folder / "url"
    with receiver.serving() as slack, receiver.serving() as other:
        url.write_text(slack.url)
        hosts = f'["{slack.host}", "{other.host}"]'
        route = f'kind = "slack"\nurl_file = "{url}"\nallow_hosts = {hosts}\n'
        edit(box, "[limits]", f"[alerts.routes.team]\n{route}[limits]")
        assert reload(box, manager).endswith("alerts.routes.team")
        assert delivered(box, slack, other) == (1, 0)
        url.write_text(other.url)
        assert reload(box, manager).endswith("nothing changed")
        assert delivered(box, slack, other) == (1, 1)
        assert receiver.SECRET not in box.tail("daemon", 5000)
        edit(box, "[limits]", '[log]\nlevel = "error"\n[limits]')
        reload(box, manager)
        edit(box, "max_nodes = 1", "max_nodes = 3")
        assert reload(box, manager).endswith("limits.max_nodes")
        assert "limits.max_nodes" not in box.tail("daemon", 1000), "it is not so loud any more"


def delivered(box: Box, *receivers: Slack) -> tuple[int, ...]:
    """Messages that each got, after a test of all routes."""
    box.client.call(routes.TEST_ALERT(), {"route": ""})
    return tuple(len(each.messages) for each in receivers)


def test_clouds_come_and_go(box: Box, manager: Manager) -> None:
    """One that goes while it has a machine is told; that one's training goes on, and it is given
    back when the cloud is there again."""
    entry = box.config_path.read_text()
    [gcp] = re.findall(r"\[providers\.local-gcp\]\n(?:[a-z_]+ = .*\n)+", entry)
    job_id = submit(box, "first", "gcp")
    running = program(box, "first")
    edit(box, gcp, "")
    assert reload(box, manager).endswith("providers.local-gcp")
    wait_for("its machine to be told", partial(stranded, box), LIMIT_S)
    with pytest.raises(UserError, match="gcp"):
        submit(box, "second", "gcp")
    assert alive(running)
    (box.folder / "finish").touch()
    box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
    edit(box, "[limits]", f"{gcp}[limits]")
    assert reload(box, manager).endswith("providers.local-gcp")
    wait_for("its machine's end", lambda: machines(box, job_id)[0]["ended_at_us"], LIMIT_S)
    submit(box, "second", "gcp")
    program(box, "second")


def stranded(box: Box) -> bool:
    kinds = [event["kind"] for event in box.client.call(routes.READ_EVENTS())["items"]]
    return "stranded" in kinds
