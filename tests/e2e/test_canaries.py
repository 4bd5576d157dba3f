"""Secrets planted in every place where one goes in, and looked for in every place where words come
out: logs, the database, the journal, stored output, the process table, and what spotctl prints."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from spotd.cli.app import run
from spotd.demo.box import Box
from spotd.security.master_key import NEXT_KEY_NAME
from tests.fixtures import slack
from tests.fixtures.processes import below
from tests.fixtures.search import contents_below
from tests.fixtures.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("daemon")]

# What each looks like says nothing of where it came from; only the text is the secret.
GIVEN, KEPT, ANEW = "cnry1-given-with-job", "cnry2-kept-by-spotd", "cnry3-set-anew"
STORE_KEY = "cnry4-secret-access-key"
CANARY = re.compile(r"cnry[1-4]-|T0/B0/canary")
JOB = """\
name: leaky
resources: {cpus: 1+}
secrets: {GIVEN: , KEPT: }
run: |
  test ${#GIVEN} = 20 -a ${#KEPT} = 19 && echo both are here
  echo "given $GIVEN kept $KEPT"
  echo "on stderr $KEPT" >&2
  while [ ! -e FOLDER/finish ]; do sleep 0.05; done
  echo "no such thing as $GIVEN" >&2
  exit 3
spotd:
  checkpoint: {engine: none}
  max_restarts_on_errors: 0
"""


def settings(folder: Path, hook: slack.Slack) -> str:
    """A webhook from a file, and a store whose key comes from the environment."""
    (folder / "hook").write_text(hook.url)
    return f"""
[alerts.routes.default]
kind = "slack"
url_file = "{folder / "hook"}"
allow_hosts = ["{hook.host}"]
[stores.away]
url = "s3://nowhere"
options = {{ endpoint = "http://127.0.0.1:9", secret_access_key_env = "CANARY_KEY" }}
[timing]
offers_every_s = 0.5
survey_every_s = 1.0
[log]
level = "debug"
"""


class Told:
    """Everything that spotctl printed."""

    def __init__(
        self, box: Box, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.box = box
        self.text = ""
        self._capfd = capfd
        self._monkeypatch = monkeypatch

    def run(self, *words: str, stdin: str = "", codes: tuple[int, ...] = (0,)) -> str:
        """The output of one command line."""
        given = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        self._monkeypatch.setattr(sys, "stdin", given)
        self._capfd.readouterr()
        code = run(["--socket", str(self.box.socket_path), *words])
        said = self._capfd.readouterr()
        assert code in codes, said.out + said.err
        self.text += said.out + said.err
        return said.out


def found_in(text: str) -> list[str]:
    return CANARY.findall(text)


def dump(database: Path) -> str:
    """All of it as text, blobs as the bytes that they are."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        rows = [
            row
            for (name,) in named.fetchall()
            for row in connection.execute(f'SELECT * FROM "{name}"')
        ]
    finally:
        connection.close()
    return "\n".join(_text(value) for row in rows for value in row)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def test_a_canary_in_a_blob_is_found(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "d.db")
    connection.execute("CREATE TABLE sealed (value BLOB)")
    connection.execute("INSERT INTO sealed VALUES (?)", (b"\x00\xff" + KEPT.encode(),))
    connection.commit()
    connection.close()
    assert found_in(dump(tmp_path / "d.db")) == found_in(KEPT) != []


def arguments_of(root: int) -> str:
    """The command lines below a process: what every user of a machine can read."""
    found = []
    for pid in below(root):
        path = Path(f"/proc/{pid}/cmdline")
        found.append(path.read_text(errors="replace") if path.exists() else "")
    return "\n".join(found)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", STORE_KEY)
    monkeypatch.setenv("GIVEN", GIVEN)


def text_below(folder: Path) -> str:
    return b"".join(contents_below(folder).values()).decode(errors="replace")


def test_no_canary_gets_out(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with slack.serving() as hook, Box(folder, settings=settings(folder, hook)) as box:
        box.start()
        told = Told(box, capfd, monkeypatch)
        told.run("secret", "set", "KEPT", stdin=KEPT)
        (folder / "job.yaml").write_text(JOB.replace("FOLDER", str(folder)))
        told.run("run", str(folder / "job.yaml"), "--secret", "GIVEN", "-d")
        wait_until("both secrets", lambda: "both are here" in told.run("logs", "leaky"), LIMIT_S)
        visible = arguments_of(box.daemon.pid if box.daemon else 0)
        visible += arguments_of(box.cloud.pid if box.cloud else 0)
        disks = text_below(folder / "cloud")
        # While it runs: another value, another master key, a login, a restart.
        told.run("secret", "set", "KEPT", stdin=f"{ANEW}\n")
        (folder / "state" / NEXT_KEY_NAME).write_bytes(os.urandom(32))
        (folder / "state" / NEXT_KEY_NAME).chmod(0o600)
        told.run("secret", "rotate")
        assert "inside" in told.run("ssh", "leaky", "--", "echo", "inside")
        assert box.daemon
        box.daemon.terminate()
        assert box.daemon.wait(LIMIT_S) == 0
        box.start_daemon()
        assert told.run("ssh", "leaky", "--", "echo", "again").strip() == "again"
        told.run("alerts", "test")
        (folder / "finish").touch()
        box.wait_phase("leaky", {"failed"}, LIMIT_S)
        wait_until("the alert", lambda: len(hook.messages) > 1, LIMIT_S)
        for line in ("ps --all", "show leaky", "show leaky --file", "events", "why leaky",
                     "nodes leaky", "logs leaky", "cost leaky", "doctor", "secret ls", "user ls",
                     "audit", "audit -o json", "events -o json", "show leaky -o json"):  # fmt: skip
            told.run(*line.split(), codes=(0, 1))
        items = json.loads(told.run("audit", "-o", "json"))["items"]
        actions = {item["action"] for item in items if item["outcome"] == "done"}
        assert {"secret set", "run", "key rotate", "ssh", "secrets read"} <= actions
        box.stop()
        said = told.text
        stored = text_below(folder / "state" / "store")
        logs = "".join((folder / f"{name}.log").read_text() for name in ("daemon", "cloud"))
        places = {
            "spotctl": said,
            "the daemon's and the cloud's log": logs,
            "the database": dump(folder / "state" / "spotd.db"),
            "stored output": stored,
            "the process table": visible,
            "the machine's disk": disks,
            "messages to Slack": json.dumps(hook.messages),
        }
        assert all(places.values()), "each has something in it"
        leaks = {place: found_in(text) for place, text in places.items() if found_in(text)}
        assert leaks == {}
        assert "given" in stored
        assert "kept" in stored
