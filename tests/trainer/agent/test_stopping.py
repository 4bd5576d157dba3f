"""Release, drain and stop: which processes are signalled, how long the agent waits, what is
left."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from spotd import wire
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import Node, is_running

PYTHON = shlex.quote(sys.executable)
WORKER = f"{PYTHON} {Path(__file__).with_name('worker.py')}"

# Starts two copies of a program and waits; like the real one it dies of SIGTERM and passes nothing
# on, and like the real one it ends with 1 when a worker does not end with 0.
TORCHRUN = """
import subprocess, sys
found = [subprocess.Popen([sys.executable, *sys.argv[1:]]) for _ in range(2)]
codes = [process.wait() for process in found]
print("launcher saw", codes, flush=True)
sys.exit(1 if any(codes) else 0)
"""

# Saves when asked to, and takes a while.
SAVER = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", os.getpid(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


ENDED_SHELL = 128 + signal.SIGTERM


@pytest.fixture
def programs(node: Node) -> Path:
    """A folder with `torchrun` and `saver.py` on the machine."""
    folder = node.home / "bin"
    folder.mkdir()
    torchrun = folder / "torchrun"
    torchrun.write_text(f"#!{sys.executable}\n{TORCHRUN}")
    torchrun.chmod(0o755)
    (folder / "saver.py").write_text(SAVER)
    return folder


@pytest.mark.req("PRE-05")
def test_a_script_saves_on_sigterm_and_head_is_released(node: Node, programs: Path) -> None:
    node.run()
    node.start(run=f"{PYTHON} {programs}/saver.py; code=$?; echo ended $code; exit $code")
    node.wait_for_log("up")
    assert node.send(wire.RELEASE).ok
    exited = node.wait_for(wire.EXITED)
    assert exited.data["code"] == wire.EXIT_RELEASED, "0 after a stop is not the job's success"
    assert "saved" in node.log()
    assert "ended" not in node.log(), "no other line of the script is begun"
    released = node.wait_for(wire.RELEASED)
    assert released.seq < exited.seq
    head = node.head()
    assert head is not None
    assert head.released
    assert not head.final


@pytest.mark.req("HLT-04")
def test_workers_are_signalled_and_torchrun_is_not(node: Node, programs: Path) -> None:
    node.run()
    node.start(run=f"{programs}/torchrun {programs}/saver.py; echo launcher ended $?")
    wait_until("both workers", lambda: node.log().count("up") == 2)
    assert node.send(wire.RELEASE).ok
    node.wait_for(wire.EXITED)
    assert node.log().count("saved") == 2
    assert "launcher saw [0, 0]" in node.log(), "it saw its workers end and was not signalled"
    assert "launcher ended" not in node.log()


# Programs that start the one that trains and wait for it; `sys.argv[1:]` is its command line.
WRAPPERS = {
    "call": "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))",
    "popen": "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); sys.exit(p.wait())",
    "system": "import os, sys; os.system(' '.join(sys.argv[1:]) + '; true')",
    "capture": "import subprocess, sys\n"
    "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)\n"
    "for line in p.stdout: print('| ' + line, end='', flush=True)\n"
    "sys.exit(p.wait())",
    "asyncio": "import asyncio, sys\n"
    "async def main():\n"
    "    p = await asyncio.create_subprocess_exec(*sys.argv[1:])\n"
    "    return await p.wait()\n"
    "sys.exit(asyncio.run(main()))",
    "session": "import subprocess, sys\n"
    "sys.exit(subprocess.call(sys.argv[1:], start_new_session=True))",
}


@pytest.mark.parametrize(
    "run",
    [
        *(
            pytest.param(f"{PYTHON} by_{name}.py {{saver}}", id=f"python {name}")
            for name in WRAPPERS
        ),
        pytest.param(f"{PYTHON} by_call.py {PYTHON} by_popen.py {{saver}}", id="two wrappers"),
        pytest.param(f"{PYTHON} by_call.py bash run.sh", id="a wrapper of a script"),
        pytest.param('bash -c "{saver}; echo SECOND LINE"', id="bash -c"),
        pytest.param("sh run.sh | tee log", id="a script and tee"),
        pytest.param("nohup {saver}", id="nohup"),
        pytest.param("nohup sh run.sh > out 2>&1 &\nwait; cat out", id="nohup in the background"),
        pytest.param("timeout 1h {saver}", id="timeout"),
        pytest.param("nice -n 1 stdbuf -oL {saver}", id="nice and stdbuf"),
        pytest.param("echo {saver_file} | xargs {python}", id="xargs"),
        pytest.param("echo run.sh | xargs -n 1 sh", id="xargs of a script"),
        pytest.param("make train", id="make"),
        pytest.param("make both", id="make with a shell"),
        pytest.param("make -C . nested", id="make of make"),
        pytest.param("perl -e 'system(@ARGV)' {saver}", id="perl"),
    ],
)
@pytest.mark.req("PRE-05")
def test_the_program_saves_whatever_has_started_it(node: Node, programs: Path, run: str) -> None:
    """It is asked to, once, and what has started it neither dies before it nor goes on after it."""
    saver = f"{PYTHON} {programs}/saver.py"
    for name, text in WRAPPERS.items():
        (node.home / f"by_{name}.py").write_text(text)
    (node.home / "run.sh").write_text(f"{saver}\necho SECOND LINE\n")
    (node.home / "Makefile").write_text(
        f"train:\n\t@{saver}\nboth:\n\t@cd . && {saver} && echo ANOTHER LINE\n"
        "nested:\n\t@$(MAKE) both\n"
    )
    line = run.format(saver=saver, saver_file=f"{programs}/saver.py", python=PYTHON)
    node.run()
    node.start(run=f"cd {node.home}\n{line}\necho LAST LINE", stop_grace_s=300.0)
    up = programs.parent / ("out" if "> out" in run else "")
    wait_until("it is up", lambda: "up" in node.log() or (up.is_file() and "up" in up.read_text()))
    assert node.send(wire.RELEASE).ok
    node.wait_for(wire.EXITED)
    said = node.log() + (up.read_text() if up.is_file() else "")
    assert len(re.findall(r"saved \d+", said)) == 1, said
    assert "LINE" not in said


@pytest.mark.parametrize(
    "run",
    [
        "{saver}\necho SECOND LINE\nsleep 1000",
        "{saver} | tee out.txt\necho SECOND LINE",
        "{saver} | while read -r word; do echo $word; done\necho SECOND LINE",
        "{saver} &\nwait\necho SECOND LINE",
        "bash nested.sh\necho SECOND LINE",
        "timeout 1000 sh nested.sh; echo SECOND LINE",
        "( cd . && {saver}; echo SECOND LINE )\necho THIRD LINE",
    ],
    ids=["lines", "tee", "filter", "background", "nested", "launcher", "subshell"],
)
@pytest.mark.req("PRE-05")
def test_no_shell_begins_another_line_after_a_stop(node: Node, programs: Path, run: str) -> None:
    """A script that trains and then publishes must not publish a half-trained result."""
    saver = f"{PYTHON} {programs}/saver.py"
    nested = f"cat > nested.sh <<'EOF'\n{saver}\necho NESTED LINE\nsleep 1000\nEOF\n"
    node.run()
    node.start(run=nested + run.format(saver=saver), stop_grace_s=300.0)
    node.wait_for_log("up")
    assert node.send(wire.RELEASE).ok
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": ENDED_SHELL}
    assert re.search(r"^saved \d+", node.log(), re.MULTILINE)
    assert "LINE" not in node.log()
    assert node.entries(wire.DRAINING)[-1].data["plan"] == "SIGTERM, release"


def test_a_loop_in_bash_ends_when_it_is_asked_to(node: Node) -> None:
    """Its grace would be 300 s."""
    example = Path(__file__).parents[3] / "examples" / "minimal.yaml"
    node.run()
    node.start(run=yaml.safe_load(example.read_text())["run"], stop_grace_s=300.0)
    node.wait_for_log("step 1")
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": ENDED_SHELL}


def test_a_held_shell_is_killed_after_the_grace(node: Node) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
    node.run()
    node.start(run=f'{PYTHON} -c "{deaf}; time.sleep(1000)"\necho LINE', stop_grace_s=1.0)
    node.wait_for_log("up")
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": 137}
    assert "LINE" not in node.log()


def test_a_program_that_is_asked_by_the_flag_is_followed_by_no_line(node: Node) -> None:
    node.run()
    node.start(run=f"{WORKER}\necho SECOND LINE", engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert "SECOND LINE" not in node.log()


def test_a_shell_that_ignores_sigterm_sees_to_its_own_end(node: Node, programs: Path) -> None:
    node.run()
    node.start(run=f"trap '' TERM\n{PYTHON} {programs}/saver.py\necho MY OWN END\nexit 6")
    node.wait_for_log("up")
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": 6}
    assert "MY OWN END" in node.log()


def test_what_follows_the_last_step_of_all_is_run(node: Node) -> None:
    """HEAD records that the job has finished, so no other machine will run it."""
    node.run()
    node.start(run=f"{WORKER} --steps 20 --deaf\necho EXPORTED", engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert "EXPORTED" in node.log()


def test_no_shell_is_ended_before_the_last_word_was_heard(node: Node) -> None:
    """The program has ended but its connection is open: the next message may be the final save."""
    late = """
import os, socket, time
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["SPOTD_SOCKET"])
line.sendall(b'{"hello": {}}\\n')
print("up", flush=True)
while open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)  # until it is held
if os.fork():
    os._exit(0)
time.sleep(0.5)
line.sendall(b'{"kind": "checkpoint", "data": {"step": 1, "final": true}}\\n')
"""
    (node.home / "late.py").write_text(late)
    node.run()
    node.start(run=f"{PYTHON} {node.home}/late.py\necho EXPORTED", engine="spotd")
    node.wait_for_log("up")
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert "EXPORTED" in node.log()


def test_a_shell_with_a_trap_is_asked_too(node: Node) -> None:
    node.run()
    node.start(run="trap 'echo trapped; exit 4' TERM; echo up; while :; do sleep 0.05; done")
    node.wait_for_log("up")
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": 4}
    assert "trapped" in node.log()


def test_who_ignores_sigterm_is_killed_after_the_grace(node: Node) -> None:
    node.run()
    # The outer shell ignores it, and what it starts inherits that; one of them detaches itself.
    node.start(
        run="trap '' TERM; setsid sleep 1000 & echo $!; echo up; while :; do sleep 0.05; done",
        stop_grace_s=1.0,
    )
    node.wait_for_log("up")
    detached = int(node.log().split()[0])
    began = time.monotonic()
    node.send(wire.RELEASE)
    exited = node.wait_for(wire.EXITED)
    assert time.monotonic() - began > 0.9
    assert node.wait_for(wire.DRAINING).data["deadline_s"] == 1.0
    assert exited.data["code"] == wire.EXIT_RELEASED
    assert exited.data["ranks"] == {"0": 137}
    wait_until("the detached process is gone", lambda: not is_running(detached))
    assert node.wait_for(wire.RELEASED).seq < exited.seq


@pytest.mark.req("PRE-05")
def test_a_program_on_the_link_is_asked_by_the_flag(node: Node) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.send(wire.RELEASE)
    exited = node.wait_for(wire.EXITED)
    assert exited.data["code"] == wire.EXIT_RELEASED
    assert "stop the replacement is ready" in node.log()
    assert "sigterm" not in node.log(), "who listens is not signalled before half of its time"
    kinds = node.kinds()
    assert kinds.index(wire.RELEASED) < kinds.index(wire.EXITED)
    assert {wire.READY, wire.CLAIMED, wire.CHECKPOINT} <= set(kinds)


def test_a_launcher_s_own_exit_code_hides_nothing(node: Node, programs: Path) -> None:
    node.run()
    worker = Path(__file__).with_name("worker.py")
    node.start(run=f"{programs}/torchrun {worker}", engine="spotd")
    wait_until("both workers", lambda: len(node.entries(wire.CLAIMED)) == 2)
    node.send(wire.RELEASE)
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == wire.EXIT_RELEASED
    assert exited["ranks"]["0"] == ENDED_SHELL
    assert f"launcher saw [{wire.EXIT_RELEASED}, {wire.EXIT_RELEASED}]" in node.log()


def test_a_deaf_program_gets_sigterm_then_sigkill(node: Node) -> None:
    node.run()
    node.start(run=f"{WORKER} --deaf", engine="spotd", stop_grace_s=4 * LIMIT_S)
    node.wait_for(wire.PROGRESS)
    node.send(wire.DRAIN, {"reason": "cancelled", "deadline_s": 3.0})
    exited, draining = node.wait_for(wire.EXITED), node.wait_for(wire.DRAINING)
    took_s = (exited.at_us - draining.at_us) / 1e6
    assert took_s > 1.5
    assert draining.data["deadline_s"] <= 2.0, "killed within the time that there was"
    assert exited.data["ranks"]["0"] == 137
    assert draining.data["reason"] == "cancelled"
    warning = node.entries(wire.WARNING)[-1].data["text"]
    assert "did not say that it saved" in warning


def test_a_far_deadline_is_no_patience_without_end(node: Node) -> None:
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=f"{WORKER} --deaf", engine="spotd", stop_grace_s=3.0)
            node.wait_for(wire.PROGRESS)
            node.send(wire.SAVE)
            node.wait_for(wire.CHECKPOINT)  # which took no time
            service.publish("preempt", int((time.time() + 3600) * 1e6))
            node.wait_for(wire.NOTICE)
            wait_until("the plan for it", lambda: node.entries(wire.DRAINING))
            node.send(wire.RELEASE)
            assert node.wait_for(wire.EXITED).data["ranks"]["0"] == 137
    stop = node.entries(wire.DRAINING)[-1].data
    assert (stop["reason"], stop["deadline_s"]) == ("the replacement is ready", 3.0)


def test_a_stop_without_a_danger_gets_the_job_s_grace(node: Node) -> None:
    """With the default save time, the limit would be only 28 s."""
    node.run()
    node.start(run=f"{WORKER} --deaf", engine="spotd", stop_grace_s=300.0)
    node.wait_for(wire.PROGRESS)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.DRAINING).data["deadline_s"] == 300.0


def test_a_program_without_a_link_gets_sigterm_at_once(node: Node, programs: Path) -> None:
    node.run()
    node.start(run=f"{PYTHON} {programs}/saver.py; exit 75", engine="spotd")
    node.wait_for_log("up")
    node.send(wire.DRAIN, {"reason": "paused", "deadline_s": 4 * LIMIT_S})
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED


def test_75_that_nobody_asked_for_releases_nothing(node: Node) -> None:
    node.run()
    node.start(run="exit 75")
    assert node.wait_for(wire.EXITED).data["code"] == 75
    assert wire.RELEASED not in node.kinds()
    head = node.head()
    assert head is not None
    assert not head.released


def test_stop_kills_at_once(node: Node) -> None:
    node.run()
    endless = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    node.start(run=endless, stop_grace_s=2 * LIMIT_S)
    node.wait_for_log("up")
    pid = node.agent_pid
    node.send(wire.STOP)
    assert node.wait_for(wire.EXITED).data["ranks"] == {"0": 137}  # not after its grace
    wait_until("the agent has ended too", lambda: not is_running(pid))


def test_save_is_counted_and_training_goes_on(node: Node) -> None:
    node.run()
    node.start(run=WORKER, engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.send(wire.SAVE)
    node.wait_for_log("save 1")
    node.wait_for(wire.CHECKPOINT)
    node.send(wire.SAVE)
    node.wait_for_log("save 2")
    assert node.is_program_alive()


def test_save_without_a_link_is_sigusr1_for_those_who_want_it(node: Node) -> None:
    node.run()
    node.start(run="trap 'echo usr1' USR1; echo up; while :; do sleep 0.05; done")
    node.wait_for_log("up")
    node.send(wire.SAVE)
    node.wait_for_log("usr1")
    assert node.is_program_alive(), "and the sleep that it started, which has no handler, lived too"


def test_a_program_that_finishes_is_a_success_whatever_was_asked(node: Node) -> None:
    node.run()
    node.start(run=f"{WORKER} --steps 20 --deaf", engine="spotd")
    node.wait_for(wire.PROGRESS)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == 0


def test_nonsense_on_the_worker_socket_is_not_journalled(node: Node) -> None:
    node.run()
    code = (
        "import os, socket\n"
        'for text in (b\'nonsense\\n\', b\'{"hello": {}}\\n{"kind": "exited", "data": {}}\\n\','
        ' b\'{"hello": {}}\\n{"kind": "warning", "data": 5}\\n\', b\'x\' * 3000000):\n'
        "    with socket.socket(socket.AF_UNIX) as line:\n"
        "        line.connect(os.environ['SPOTD_SOCKET'])\n"
        "        try:\n"
        "            line.sendall(text)\n"
        "        except OSError:\n"
        "            pass\n"
    )
    (node.home / "rude.py").write_text(code)
    node.start(run=f"{PYTHON} {node.home}/rude.py; {WORKER} --steps 3", engine="spotd")
    assert node.wait_for(wire.EXITED).data["code"] == 0
    assert node.kinds().count(wire.EXITED) == 1
    assert wire.WARNING not in node.kinds()
