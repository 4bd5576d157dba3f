"""Commands in scripts: exit codes, errors, following, and a daemon that goes away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from spotd import wire
from spotd.api_client.client import _UnixConnection
from spotd.base.errors import ExitCode
from spotd.cli.follow import follow_job
from spotd.domain.events import Event
from spotd.domain.job import Desired
from spotd.domain.states import LeaveReason, Outcome
from spotd.wire import Head, HeadRef, head_key
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig, crash, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
SPOTCTL = [sys.executable, "-c", "from spotd.cli import main; main()"]


def error_of(capsys: Captured) -> str:
    """Return stderr, which must end in a suggested fix."""
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("try: ")
    return error


def later(action: Callable[[], Any], after_s: float = 0.3) -> threading.Timer:
    timer = threading.Timer(after_s, action)
    timer.start()
    return timer


@pytest.mark.req("UX-01")
@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("show none", 3, "there is no job 'none'"),
        ("wait none", 3, "there is no job 'none'"),
        ("logs none", 3, "there is no job 'none'"),
        ("events none", 3, "there is no job 'none'"),
        ("cancel none", 3, "there is no job 'none'"),
        ("cost none", 3, "there is no job 'none'"),
        ("ssh none", 3, "there is no job 'none'"),
        ("alerts test none", 3, "there is no alert route"),
        ("cancel crashed", 1, "already failed"),
        ("wait gpt --timeout soon", 2, "--timeout: 'soon' is not a duration; write it with a unit"),
        ("wait gpt --timeout 90", 2, "like 90s, 5m or 2h\ntry: --timeout 90s, 15m, 1h30m"),
        ("wait gpt --timeout 9999999999d", 2, "is longer than ten years"),
        ("cloud preempt i-1 --notice soon", 2, "is not a duration"),
        ("cloud preempt i-1 --notice 99999w", 2, "--notice: '99999w' is longer than ten years"),
        ("audit --since soon", 2, "is not a duration; write it with a unit"),
        ("demo --steps -4", 2, "Invalid value for '--steps'"),
        ("logs crashed --gen 9", 3, "has no generation 9"),
        ("logs crashed --rank 7", 3, "has no machine of rank 7"),
        ("logs crashed --stream foo", 3, "there is no stream 'foo'"),
        ("psst", 2, "no such command 'psst'"),
        ("cancle", 2, "did you mean 'cancel'?"),
        ("show crashd", 3, "there is no job 'crashd'; did you mean 'crashed'?"),
        ("logs crash", 3, "there is no job 'crash'; did you mean 'crashed'?"),
        ("drill ls --job crahsed", 3, "job 'crahsed'; did you mean 'crashed'?"),
        ("ckpt lss gpt", 2, "no such command 'lss'; did you mean 'ls'?\ntry: spotctl ckpt --help"),
        ("ps --ouput json", 2, "No such option: --ouput; did you mean '--output'?"),
        ("ps --nope", 2, "No such option: --nope\n"),
        ("ps -o yaml", 2, "'yaml'"),
        ("show", 2, "Missing argument"),
        ("run none.yaml", 2, "cannot read none.yaml"),
        ("plan none.yaml", 2, "cannot read none.yaml"),
        ("run /dev/null", 2, "the job file"),
        ("--host -evil ps", 2, "is not a host"),
    ],
)
def test_errors_have_an_exit_code_and_a_fix(
    rig: Rig, spotctl: Spotctl, capsys: Captured, line: str, code: int, text: str
) -> None:
    crash(rig)
    assert spotctl(rig, *line.split()) == code
    assert text in error_of(capsys)


@pytest.mark.parametrize("line", ["ps", "show gpt", "doctor", "wait gpt", "alerts test"])
def test_missing_daemon_is_unreachable(
    spotctl: Spotctl,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    line: str,
) -> None:
    monkeypatch.setattr("spotd.cli.follow._AWAY_S", 0.1)
    assert spotctl(None, "--socket", str(folder / "none.sock"), *line.split()) == 6
    captured = capsys.readouterr()
    assert f"no daemon answers on {folder}/none.sock" in captured.err + captured.out
    assert "systemctl start spotd" in captured.err + captured.out


def test_stale_socket_is_unreachable(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    import socket

    path = rig.folder / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert spotctl(None, "--socket", str(path), "ps") == 6
    assert "Connection refused" in error_of(capsys)


def test_forbidden_socket_is_an_auth_error(
    rig: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_UnixConnection, "connect", refuse)  # root may open everything
    assert spotctl(rig, "ps") == 5
    assert "usermod -aG spotd" in error_of(capsys)


# --- several jobs in one command


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_unknown_name_does_not_stop_the_other_jobs(
    rig: Rig, spotctl: Spotctl, capsys: Captured, verb: str
) -> None:
    """A job to be cancelled must not keep costing because of a typo before it."""
    for name in ("one", "two"):
        rig.submit(name)
        if verb == "resume":
            assert spotctl(rig, "pause", name) == 0
    capsys.readouterr()
    sure = [] if verb == "resume" else ["--yes"]
    assert spotctl(rig, verb, "typo", "one", "tpyo", "two", "-o", "json", *sure) == 3
    captured = capsys.readouterr()
    assert [item["name"] for item in json.loads(captured.out)["items"]] == ["one", "two"]
    assert captured.err.splitlines() == [
        "error: there is no job 'tpyo'",
        "error: there is no job 'typo'",
        "try: spotctl ps --all",
    ]
    desired = {"cancel": Desired.CANCEL, "pause": Desired.PAUSE, "resume": Desired.RUN}[verb]
    assert [rig.store.jobs.find(n).desired for n in ("one", "two")] == [desired] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (1, "exit 1"),
        (wire.EXIT_HUNG, "which hung"),
        (wire.EXIT_UNFIT, "machine is unfit"),
        (wire.EXIT_DIVERGED, "which diverged"),
    ],
)
def test_show_prints_how_the_program_ended(
    rig: Rig, spotctl: Spotctl, capsys: Captured, code: int, how: str
) -> None:
    crash(rig, code)
    assert spotctl(rig, "show", "crashed") == 0
    assert f"last output of generation 1, {how}:" in capsys.readouterr().out


# --- waiting and following


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Outcome.SUCCEEDED, 0), (Outcome.FAILED, 100), (Outcome.CANCELLED, 103)],
)
def test_exit_code_of_wait(
    rig: Rig, spotctl: Spotctl, capsys: Captured, outcome: Outcome, code: int
) -> None:
    job_id = rig.submit()
    timer = later(lambda: rig.finish(job_id, 0, outcome))
    assert spotctl(rig, "wait", "gpt", "--timeout", "0m20s") == code
    timer.join()
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == f"gpt: {outcome.value}"
    assert captured.out == ""


def test_wait_for_running_and_timeout(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    story(rig)
    assert spotctl(rig, "wait", "gpt", "--for", "running", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "running"
    assert spotctl(rig, "wait", "gpt", "--timeout", "0.2s") == 7
    assert "spotctl why gpt" in error_of(capsys)


def test_wait_survives_a_restart_of_the_daemon(
    rig: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = rig.submit()
    follows, was_refused = threading.Event(), threading.Event()

    def follow(**arguments: Any) -> Any:
        client = arguments["client"]
        call = client.call

        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except Exception:
                was_refused.set()
                raise

        client.call = watched
        follows.set()
        return follow_job(**arguments)

    def restart() -> None:
        assert follows.wait(LIMIT_S)  # before that the daemon has to be there
        rig.stop()
        assert was_refused.wait(LIMIT_S)  # the outage itself
        rig.finish(job_id, 0, Outcome.SUCCEEDED)
        rig.start()

    monkeypatch.setattr("spotd.cli.wait.follow_job", follow)
    timer = later(restart)
    assert spotctl(rig, "wait", "gpt") == 0
    timer.join()
    assert capsys.readouterr().err.splitlines()[-1] == "gpt: succeeded"


def test_logs_follow_until_the_end(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]

    def end() -> None:
        rig.log(node, "rank0", 19, b"step 1192, the last\n")
        rig.leave(node, 0, LeaveReason.DONE, "done")
        rig.finish(job_id, 0, Outcome.SUCCEEDED)

    timer = later(end)
    assert spotctl(rig, "logs", "gpt", "-f") == 0
    timer.join()
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-2:] == ["step 1191 loss 1.9", "step 1192, the last"]


def test_logs_since_a_time_with_the_time_of_each_line(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    story(rig)
    assert spotctl(rig, "logs", "gpt", "--since", "10m", "--timestamps") == 0
    *_, line = capsys.readouterr().out.splitlines()
    at, _, text = line.partition(" ")
    age = datetime.now(UTC) - datetime.fromisoformat(at)
    assert timedelta(0) <= age < timedelta(minutes=10)
    assert text == "step 1191 loss 1.9"
    assert spotctl(rig, "logs", "gpt", "--since", "2999-01-01") == 0
    assert capsys.readouterr().out == ""
    assert spotctl(rig, "logs", "gpt", "--since", "2001-01-01T10:00+01:00", "--gen", "2") == 0
    assert capsys.readouterr().out == "step 1191 loss 1.9\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--since", "yesterday"), "--since 10m, or a time like 2026-11-28T10:00"),
        (("--raw", "--timestamps"), "leave one of them out"),
    ],
)
def test_logs_that_are_asked_for_wrongly(
    rig: Rig,
    spotctl: Spotctl,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    story(rig)
    assert spotctl(rig, "logs", "gpt", *words) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_events_follow_as_json_lines_until_interrupted(rig: Rig) -> None:
    job_id = rig.submit()
    rig.store.events.add(job_id, Event("n", "first\x1b[2J"), rig.clock.now_us())
    command = [*SPOTCTL, "--socket", str(rig.socket), "events", "gpt", "-f", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["text"] == "first\x1b[2J"
        rig.store.events.add(job_id, Event("n", "second"), rig.clock.now_us())
        assert json.loads(process.stdout.readline())["text"] == "second"
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130


def test_job_output_cannot_control_the_terminal(rig: Rig) -> None:
    job_id = story(rig)
    node = rig.store.nodes.of_job(job_id)[1]
    rig.log(node, "rank0", 19, b"\x1b[31mred\x1b[0m \x1b[2J\x1b]0;owned\x07evil\n")
    leader, follower = pty.openpty()
    try:
        command = [*SPOTCTL, "--socket", str(rig.socket), "logs", "gpt", "--tail", "1"]
        done = subprocess.run(
            command, stdout=follower, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=False
        )
        shown = os.read(leader, 65536)
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 0
    assert shown == b"\x1b[31mred\x1b[0m evil\x1b[0m\r\n"


def test_colours_on_a_terminal_only(rig: Rig) -> None:
    story(rig)
    shown = {}
    for no_color in ("", "1"):
        leader, follower = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
        environment |= {"NO_COLOR": no_color} if no_color else {}
        try:
            command = [*SPOTCTL, "--socket", str(rig.socket), "ps"]
            subprocess.run(command, stdout=follower, env=environment, timeout=LIMIT_S, check=True)
            shown[no_color] = os.read(leader, 65536)
        finally:
            os.close(leader)
            os.close(follower)
    assert b"\x1b[32mrunning" in shown[""]
    assert b"\x1b[3" not in shown["1"]


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_closed_pipe_is_no_error(rig: Rig, reader: str) -> None:
    story(rig)
    line = f"{' '.join(SPOTCTL[:2])} '{SPOTCTL[2]}' --socket {rig.socket} show gpt -o json"
    done = subprocess.run(
        ["bash", "-c", f"{line} | {reader}; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.split()[-1] == "0"
    assert done.stderr == ""


# --- json


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ps", "JobList"),
        ("show gpt", "Job"),
        ("nodes", "NodeList"),
        ("events gpt", "EventList"),
        ("why gpt", "Why"),
        ("cost", "CostList"),
        ("cost gpt", "Cost"),
        ("doctor", "Doctor"),
        ("pause gpt", "JobList"),
        ("alerts test", "AlertTest"),
        ("quarantine status", "Quarantine"),
        ("quarantine release", "Quarantine"),
        ("safe-mode status", "SafeMode"),
        ("safe-mode leave", "SafeMode"),
    ],
)
def test_json_is_versioned(
    rig: Rig, spotctl: Spotctl, capsys: Captured, line: str, kind: str
) -> None:
    story(rig)
    assert spotctl(rig, *line.split(), "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["apiVersion"] == "spotd/v1"
    assert data["kind"] == kind


# --- ssh and --host


def test_host_option_connects_through_ssh(
    rig: Rig, spotctl: Spotctl, capsys: Captured, ssh: Path
) -> None:
    story(rig)
    line = ["--host", "me@box", "--socket", str(rig.socket), "ps", "-o", "name"]
    assert spotctl(None, *line) == 0
    assert capsys.readouterr().out == "gpt\n"
    assert f":{rig.socket}', '--', 'me@box'" in ssh.read_text()


@pytest.mark.parametrize("host", ["", "me@box"])
def test_ssh_pins_the_host_key_and_hides_the_user_key(
    rig: Rig,
    spotctl: Spotctl,
    capfd: pytest.CaptureFixture[str],
    ssh: Path,
    host: str,
) -> None:
    rig.address(rig.store.nodes.of_job(story(rig))[-1], "127.0.0.9", 2222)
    target = ["--host", host] if host else []
    line = [*target, "--socket", str(rig.socket), "ssh", "gpt", "--", "nvidia-smi", "-L"]
    assert spotctl(None, *line) == 7
    mode_and_key, known, jump = capfd.readouterr().out.splitlines()
    assert mode_and_key == "0o600 -----BEGIN OPENSSH PRIVATE KEY-----"
    assert known.startswith("spotd-node ssh-ed25519 ")
    assert jump == (host or "no jump")
    last = ssh.read_text().splitlines()[-1]
    assert "'StrictHostKeyChecking=yes'" in last
    assert last.endswith("'-p', '2222', '-l', 'ubuntu', '--', '127.0.0.9', 'nvidia-smi', '-L']")


def test_ssh_json_has_no_key_and_grants_no_access(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    rig.address(rig.store.nodes.of_job(story(rig))[-1], "127.0.0.9", 2222)
    assert spotctl(rig, "ssh", "gpt", "-o", "json") == 0
    out = capsys.readouterr().out
    assert json.loads(out)["host"] == "127.0.0.9"
    assert "PRIVATE" not in out
    assert rig.hosts.inside == {}


# --- run


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job that takes a workdir and a file; it is the current folder."""
    root = folder / "project"
    root.mkdir()
    (root / "train.py").write_text("print('training')\n")
    (root / "mine.json").write_text("{}")
    extra = "workdir: .\nfile_mounts: {~/config.json: mine.json}\nsecrets: {HF_TOKEN: null}\n"
    (root / "train.yaml").write_text(JOB_FILE + extra)
    monkeypatch.chdir(root)
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    return root


RUN = ("run", "train.yaml", "--secret", "HF_TOKEN")


def test_run_packages_uploads_and_submits(
    rig: Rig, spotctl: Spotctl, capsys: Captured, project: Path
) -> None:
    assert spotctl(rig, *RUN, "-d", "--env", "LR=1", "-o", "name") == 0
    captured = capsys.readouterr()
    assert captured.out == "gpt\n"
    assert captured.err.count("uploading") == 2
    assert "hf_very_secret" not in captured.err
    job = rig.store.jobs.find("gpt")
    assert job is not None
    assert [mount.target for mount in job.spec.files.packages] == ["", "~"]
    assert (job.spec.program.envs, job.spec.program.secrets) == ({"LR": "1"}, ("HF_TOKEN",))
    assert all(rig.objects.get(f"packages/{m.digest}") for m in job.spec.files.packages)
    # The same files are not sent again.
    assert spotctl(rig, *RUN, "-d", "--name", "again") == 0
    assert "uploading" not in capsys.readouterr().err


def test_repeated_request_id_submits_one_job(rig: Rig, spotctl: Spotctl, project: Path) -> None:
    for _ in range(2):
        assert spotctl(rig, *RUN, "-d", "--request-id", "mine") == 0
    assert len(rig.store.jobs.rows()) == 1


def test_run_continues_a_job_of_a_lost_database(
    rig: Rig, spotctl: Spotctl, capsys: Captured, project: Path
) -> None:
    head = Head("jlostlostx", 7, 3, "n", "o", HeadRef(7, 1200, "m", "0" * 64))
    open_store(rig.checkpoint_store).put_if(head_key(head.job), head.to_bytes(), None)
    assert spotctl(rig, *RUN, "-d", "--continue", "jlostlosty") == ExitCode.NOT_FOUND
    assert "can be resumed there: jlostlostx (step 1200)" in capsys.readouterr().err
    for _ in range(2):  # an answer may be lost
        arguments = ("--continue", head.job, "--request-id", "mine", "-o", "json")
        assert spotctl(rig, *RUN, "-d", *arguments) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["id"] == head.job
        assert "gpt continues from step 1200\nsubmitted gpt (jlostlostx)\n" in captured.err
    assert spotctl(rig, *RUN, "-d", "--continue", head.job, "--name", "other") == 1
    assert f"try: spotctl show {head.job}" in capsys.readouterr().err


def play(rig: Rig, then: Callable[[str], None]) -> threading.Thread:
    """Plays cloud and node once the job is there."""

    def wait() -> None:
        then(until(rig.store.jobs.rows)[0].id)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_run_follows_until_it_trains(
    rig: Rig, spotctl: Spotctl, capsys: Captured, project: Path
) -> None:
    def train(job_id: str) -> None:
        rig.train(rig.launch(job_id, SPOT, 0), 0, 0, 0, 5)

    thread = play(rig, train)
    assert spotctl(rig, *RUN) == 0
    thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert any("asking for p5.48xlarge" in line for line in lines)
    assert lines[-1] == "gpt: running"


def test_run_of_a_job_that_fails(rig: Rig, spotctl: Spotctl, project: Path) -> None:
    thread = play(rig, lambda job_id: rig.finish(job_id, 0, Outcome.FAILED, "setup failed"))
    assert spotctl(rig, *RUN) == 100
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "train.yaml"], "HF_TOKEN: the secret has no value"),
        (["run", "train.yaml", "--secret", "NOWHERE"], "NOWHERE is not set in your environment"),
        ([*RUN, "--name", "-x-"], "not a valid name"),
    ],
)
def test_run_refuses_and_stores_nothing(
    rig: Rig,
    spotctl: Spotctl,
    capsys: Captured,
    project: Path,
    arguments: list[str],
    text: str,
) -> None:
    assert spotctl(rig, *arguments) == 2
    assert text in error_of(capsys)
    assert rig.store.jobs.rows() == []


def test_run_refuses_a_workdir_over_1_gib_before_it_packs(
    rig: Rig,
    spotctl: Spotctl,
    capsys: Captured,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[object] = []
    monkeypatch.setattr("spotd.cli.run.write_archive", lambda *given: packed.append(given))
    with (project / "weights.bin").open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    assert spotctl(rig, *RUN, "-d") == 2
    assert packed == []
    error = error_of(capsys)
    assert "1.0 GiB  weights.bin" in error
    assert ".skyignore" in error


def test_run_refuses_a_duplicate_name(
    rig: Rig, spotctl: Spotctl, capsys: Captured, project: Path
) -> None:
    rig.submit()
    assert spotctl(rig, *RUN, "-d") == 1
    assert "--name gpt-2" in error_of(capsys)


def test_interrupting_run_does_not_stop_the_job(rig: Rig, project: Path) -> None:
    command = [*SPOTCTL, "--socket", str(rig.socket), *RUN]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=project) as process:
        assert process.stderr is not None
        while "submitted gpt" not in (line := process.stderr.readline()):
            assert line, "it ended too early"
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(LIMIT_S) == 130
    assert "gpt continues" in rest
    assert len(rig.store.jobs.rows()) == 1


def test_cost_total_includes_jobs_that_are_not_shown(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    crash(rig)
    story(rig)
    assert spotctl(rig, "cost", "-o", "json") == 0
    everything = json.loads(capsys.readouterr().out)
    assert spotctl(rig, "cost", "--limit", "1", "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [item["job"] for item in data["items"]] == ["gpt"]
    assert (data["total"], data["spend_usd"]) == (2, everything["spend_usd"])
    assert data["spend_usd"] > data["items"][0]["spend_usd"]
    assert spotctl(rig, "cost", "--limit", "1") == 0
    summary = (
        f"${everything['spend_usd']:.2f} in all, with 1 not shown here: spotctl cost --limit 2"
    )
    assert capsys.readouterr().err == summary + "\n"


def test_job_without_engine_is_not_shown_as_saving(
    rig: Rig, spotctl: Spotctl, capsys: Captured
) -> None:
    rig.submit(text=JOB_FILE.replace("engine: spotd", "engine: none"))
    assert spotctl(rig, "show", "gpt") == 0
    shown = capsys.readouterr().out
    assert "saves       only its own (engine none)\n" in shown
    assert "saved " not in shown


@pytest.mark.parametrize(
    ("arguments", "text", "fix"),
    [
        (["--live"], "--cloud: '' is not a cloud", "--cloud aws, gcp or azure"),
        (["--live", "--cloud", "aw"], "--cloud: 'aw' is not a cloud", "did you mean 'aws'?"),
        (["--live", "--cloud", "aws"], "--spend-up-to is missing", "--spend-up-to 2usd"),
        (["--live", "--cloud", "aws", "--spend-up-to", "much"], "'much' is not an amount", "2usd"),
        (["--live", "--cloud", "aws", "--spend-up-to", "0"], "'0' is not an amount", "2usd"),
        (["--cloud", "aws"], "are for --live", "the same with --live"),
    ],
)
def test_live_proof_needs_a_cloud_and_an_amount(
    spotctl: Spotctl, capsys: Captured, arguments: list[str], text: str, fix: str
) -> None:
    assert spotctl(None, "doctor", *arguments) == 2
    stderr = capsys.readouterr().err
    assert text in stderr
    assert fix in stderr


def test_live_proof_needs_a_configured_provider(
    spotctl: Spotctl, capsys: Captured, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[checkpoint]\nstore = "s3://runs/team"\n'
        "[limits]\nmax_nodes = 4\nmax_usd_per_hour = 2.0\n"
        '[providers.aws]\nkind = "aws"\nregions = ["us-east-1"]\n'
    )
    arguments = ("--live", "--cloud", "gcp", "--spend-up-to", "$2", "--deployment", "0123456789ab")
    assert spotctl(None, "doctor", *arguments, "--config", str(config)) == 3
    assert "has no provider of kind gcp" in capsys.readouterr().err
