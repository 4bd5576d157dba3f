"""`spotd`: every way not to start says what and what to try, with an exit code."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spotd.daemon.command import main
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import NOW

CONFIG = """\
state_dir = "{folder}/state"
socket = "{folder}/s"
[checkpoint]
store = "file://{folder}/checkpoints"
[providers.here]
kind = "local"
url = "http://127.0.0.1:9"
personality = "aws"
token_file = "{folder}/token"
"""
# All of what one start can lack, but the configuration's own grammar.
LACKING = """\
state_dir = "{folder}/token/state"
[database]
url = "mysql://root:topsecret@localhost/spotd"
[deployment]
store = "file://{folder}/token/store"
[checkpoint]
store = "s3://bucket/checkpoints"
[providers.here]
kind = "local"
url = "http://127.0.0.1:9"
personality = "aws"
token_file = "{folder}/no-token"
end_token_file = "{folder}/no-token-either"
[providers.there]
kind = "local"
url = "http://127.0.0.1:9"
personality = "gcp"
[providers.aws]
kind = "aws"
regions = ["us-east-1"]
[limits]
max_nodes = 1
max_usd_per_hour = 1
"""
# The program as it will be one day: with one more revision of the schema.
OF_TOMORROW = """\
from spotd.store import schema, version
schema.REVISIONS = (*schema.REVISIONS, "9999_tomorrow")
version.HEAD = schema.REVISIONS[-1]
"""
# Imports once and forks for each line: most of a start is imports.
STARTER = """\
import json, os, sys
from pathlib import Path
from spotd.daemon.command import main
for line in sys.stdin:
    case = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(case["errors"], os.O_WRONLY | os.O_CREAT), 2)
        os.environ.update(case["environ"])
        exec(case["program"])
        sys.exit(main(["run", "--config", case["config"]]))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Refusal:
    """How a daemon did not start."""

    code: int
    text: str


class Starter:
    """Starts daemons, each a process of its own, and waits for their end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, folder: Path, config: str, program: str = "", environ: dict[str, str] | None = None
    ) -> Refusal:
        """`spotd run` with this configuration, to its end."""
        path, errors = folder / "config.toml", folder / "errors"
        (folder / "token").write_text("t")
        if config:
            path.write_text(config.format(folder=folder))
        case = {
            "config": str(path),
            "errors": str(errors),
            "program": program,
            "environ": environ or {},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return Refusal(int(self._process.stdout.readline()), errors.read_text())

    def close(self) -> None:
        self._process.communicate(timeout=LIMIT_S)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- each case: a folder is prepared, a daemon started; what it must say, and with which code


def no_config(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(folder, "")


def unknown_key(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(folder, CONFIG.replace("[checkpoint]", "[checkpiont]"))


def unknown_kind(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(
        folder,
        CONFIG
        + '[providers.aws]\nkind = "ovh"\nregions = ["us-east-1"]\n'
        + "[limits]\nmax_nodes = 1\nmax_usd_per_hour = 1\n",
    )


def no_port(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(folder, CONFIG.replace("127.0.0.1:9", "127.0.0.1"))


def database_in_a_missing_folder(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(folder, CONFIG + '[database]\nurl = "sqlite:///{folder}/no/such/spotd.db"\n')


def database_of_another_kind(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(folder, CONFIG + '[database]\nurl = "mysql://root@localhost/spotd"\n')


def database_that_refuses(spotd: Starter, folder: Path) -> Refusal:
    url = f"postgresql://spotd:topsecret@127.0.0.1:{closed_port()}/spotd"
    return spotd.run(folder, CONFIG + f'[database]\nurl = "{url}"\n')


def database_of_somebody_else(spotd: Starter, folder: Path) -> Refusal:
    (folder / "state").mkdir()
    with sqlite3.connect(folder / "state" / "spotd.db") as database:
        database.execute("CREATE TABLE invoices (id INTEGER)")
    database.close()
    return spotd.run(folder, CONFIG)


def older_schema(spotd: Starter, folder: Path) -> Refusal:
    path = make_database(folder)
    before = revision(path)
    refusal = spotd.run(folder, CONFIG, OF_TOMORROW)
    assert revision(path) == before, "left as it was"
    return refusal


def newer_schema(spotd: Starter, folder: Path) -> Refusal:
    path = make_database(folder)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999_tomorrow'")
    database.close()
    refusal = spotd.run(folder, CONFIG)
    assert revision(path) == "9999_tomorrow", "left as it was"
    return refusal


def revision(path: Path) -> str:
    with sqlite3.connect(path) as database:
        (found,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    database.close()
    return str(found)


def make_database(folder: Path) -> Path:
    from spotd.store.sql_store import open_store

    (folder / "state").mkdir()
    path = folder / "state" / "spotd.db"
    url = f"sqlite:///{path}"
    open_store(url, now=lambda: NOW, notify=lambda: None, deployment_factory=lambda: "d0").close()
    return path


def state_dir_in_the_way(spotd: Starter, folder: Path) -> Refusal:
    (folder / "state").write_text("a file")
    return spotd.run(folder, CONFIG)


def state_dir_for_others(spotd: Starter, folder: Path) -> Refusal:
    (folder / "state").mkdir()
    (folder / "state" / "spotd-key").write_bytes(b"k" * 32)
    (folder / "state" / "spotd-key").chmod(0o644)
    return spotd.run(folder, CONFIG)


def damaged_key(spotd: Starter, folder: Path) -> Refusal:
    (folder / "credentials").mkdir()
    (folder / "credentials" / "spotd-key").write_text("too short\n")
    return spotd.run(folder, CONFIG, environ={"CREDENTIALS_DIRECTORY": str(folder / "credentials")})


def strange_store(spotd: Starter, folder: Path) -> Refusal:
    options = '[stores.here]\nurl = "file:///{folder}/objects"\noptions = {{region = "moon"}}\n'
    deployment = '[deployment]\nstore = "file:///{folder}/objects"\n'
    return spotd.run(folder, CONFIG + deployment + options)


def busy_socket(spotd: Starter, folder: Path) -> Refusal:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "s"))
        other.listen()
        return spotd.run(folder, CONFIG)


def long_socket(spotd: Starter, folder: Path) -> Refusal:
    return spotd.run(folder, CONFIG.replace("{folder}/s", "{folder}/" + "s" * 120))


CASES: dict[Callable[[Starter, Path], Refusal], tuple[int, list[str]]] = {
    no_config: (2, ["cannot read the configuration", "the smallest is"]),
    unknown_key: (2, ["checkpiont", "did you mean 'checkpoint'?"]),
    unknown_kind: (2, ["providers.aws", "'ovh'", "'local'"]),
    no_port: (2, ["providers.here", "http://127.0.0.1:PORT"]),
    database_in_a_missing_folder: (2, ["no/such of the database does not exist", "create it"]),
    database_of_another_kind: (2, ["mysql", "sqlite:///"]),
    database_that_refuses: (1, ["does not answer", "is the server up?"]),
    database_of_somebody_else: (1, ["not spotd's", "a database that only spotd uses"]),
    older_schema: (1, ["this spotd needs 9999_tomorrow", "spotd db upgrade"]),
    newer_schema: (1, ["9999_tomorrow", "install the newer spotd"]),
    state_dir_in_the_way: (2, ["state folder", "state_dir"]),
    state_dir_for_others: (1, ["can be read by others", "chmod 600"]),
    damaged_key: (1, ["holds no master key", "openssl rand -hex 32"]),
    strange_store: (2, ["deployment.store", "a file:// store has no options"]),
    busy_socket: (1, ["another process serves", "systemctl stop spotd"]),
    long_socket: (1, ["longer than 107 bytes", "set a shorter `socket`"]),
}


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        running = Starter(Path(name))
        yield running
        running.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_it_does_not_start_with(
    starter: Starter, case: Callable[[Starter, Path], Refusal]
) -> None:
    folder = starter.home / case.__name__
    folder.mkdir()
    refusal = case(starter, folder)
    code, texts = CASES[case]
    assert refusal.code == code, refusal.text
    for text in texts:
        assert text in refusal.text
    assert refusal.text.startswith("error: ")
    assert "Traceback" not in refusal.text
    assert "topsecret" not in refusal.text


# --- the command line


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("frobnicate", 2, "No such command 'frobnicate'"),
        ("run --nope", 2, "No such option: --nope"),
        ("db", 2, "Missing command"),
        ("check --config /nowhere/config.toml", 2, "cannot read the configuration"),
    ],
)
def test_a_wrong_command_line_is_told_in_words(
    capsys: pytest.CaptureFixture[str], line: str, code: int, text: str
) -> None:
    assert main(line.split()) == code
    error = capsys.readouterr().err
    assert text in error
    assert "try: " in error


@pytest.mark.parametrize(("line", "text"), [("", "Commands:"), ("--version", "spotd 0.")])
def test_what_it_can_do(capsys: pytest.CaptureFixture[str], line: str, text: str) -> None:
    assert main(line.split()) == 0
    assert text in capsys.readouterr().out


def written(folder: Path, config: str) -> Path:
    (folder / "token").write_text("t")
    path = folder / "config.toml"
    path.write_text(config.format(folder=folder))
    return path


def test_check_says_where_everything_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, CONFIG)
    assert main(["check", "--config", str(path)]) == 0
    assert f"state in {tmp_path}/state" in capsys.readouterr().out
    assert not (tmp_path / "state").exists(), "nothing is started and nothing made"


def test_check_tries_the_folder_of_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, CONFIG)
    (tmp_path / "checkpoints").write_text("a file is in the way")
    assert main(["check", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"checkpoint.store: file://{tmp_path}/checkpoints cannot be written" in error
    assert "try: " in error


@pytest.mark.parametrize("command", ["check", "run"])
def test_what_a_start_would_lack_is_told_at_once_and_nothing_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setitem(sys.modules, "botocore", None)
    path = written(tmp_path, LACKING)
    assert main([command, "--config", str(path)]) == 2
    error = capsys.readouterr().err
    told = [line.strip() for line in error.splitlines() if line.startswith("  ")]
    assert [line.split(": ")[0] for line in told] == [
        "providers.aws.kind",
        "providers.here.token_file",
        "providers.here.end_token_file",
        "providers.there.token_file",
        "state_dir",
        "database.url",
        "deployment.store",
        "checkpoint.store",
    ]
    for line, text in zip(
        told,
        [
            "botocore is not installed (fix: pip install 'boto3>=",
            "no-token cannot be read by",
            "no-token-either cannot be read by",
            "is missing, and the cloud accepts no requests without it (fix: `spotctl cloud up`",
            "token/state cannot be written by",
            "names mysql; spotd knows sqlite and postgresql: try sqlite:///",
            "token/store cannot be written by",
            "needs the package obstore: pip install",
        ],
        strict=True,
    ):
        assert text in line
    assert "topsecret" not in error
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "token"]


def test_a_start_asks_no_more_of_the_database_than_that_it_can_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"postgresql://spotd@127.0.0.1:{closed_port()}/spotd"
    path = written(tmp_path, CONFIG + f'[database]\nurl = "{url}"\n')
    assert main(["check", "--config", str(path)]) == 0
    path = written(tmp_path, CONFIG + '[database]\nurl = "sqlite:///{folder}/other.db"\n')
    assert main(["check", "--config", str(path)]) == 0
    assert not (tmp_path / "other.db").exists()
    (tmp_path / "state").mkdir()
    path = written(tmp_path, CONFIG)
    (tmp_path / "state" / "spotd.db").mkdir()
    assert main(["check", "--config", str(path)]) == 2
    assert "database.url: " in capsys.readouterr().err


# --- how it ends, which is how spotctl ends, too


def test_a_reader_that_has_enough_is_no_failure() -> None:
    program = f"{sys.executable} -m spotd --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_what_others_wrote_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", str(tmp_path / "\x1b[31m.toml")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_the_daemon_s_exit_code_is_the_program_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.daemon.command.run_daemon", lambda _config: 1)
    assert main(["run", "--config", str(written(tmp_path, CONFIG))]) == 1


def test_upgrade_brings_a_database_to_our_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "state").mkdir()
    for _ in range(2):
        assert main(["db", "upgrade", "--config", str(path)]) == 0
        assert "up to date" in capsys.readouterr().out
    with sqlite3.connect(tmp_path / "state" / "spotd.db") as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    database.close()
