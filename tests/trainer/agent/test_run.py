"""Start the agent, and run an unmodified script from setup to its final manifest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from spotd.wire import Package
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node, is_running


def test_an_unmodified_script_runs_to_its_final_manifest(node: Node) -> None:
    node.run()
    node.start(
        setup="echo installed > marker.txt",
        run='cat marker.txt; env | grep -E "^(SKYPILOT|SPOTD|MINE)" | sort',
        envs={"MINE": "yes"},
        node_ips=("10.0.0.1",),
        accelerators_per_node=8,
    )
    exited = node.wait_for(wire.EXITED)
    assert exited.data["code"] == 0
    assert exited.data["ranks"] == {"0": 0}
    assert node.kinds() == [
        wire.HELLO,
        wire.SETUP,
        wire.SETUP,
        wire.READY,
        wire.CLAIMED,
        wire.STARTED,
        wire.CHECKPOINT,
        wire.EXITED,
    ]
    assert [entry.seq for entry in node.journal()] == list(range(1, 9))
    head = node.head()
    assert head is not None
    assert (head.generation, head.final, head.owner) == (1, True, "token-1")
    lines = dict(line.partition("=")[::2] for line in node.log().splitlines())
    assert "installed" in lines
    assert lines["MINE"] == "yes"
    assert lines["SKYPILOT_TASK_ID"] == "sky-job-1"
    assert lines["SKYPILOT_NODE_IPS"] == "10.0.0.1"
    assert lines["SKYPILOT_NODE_RANK"] == "0"
    assert lines["SKYPILOT_NUM_NODES"] == "1"
    assert not [name for name in lines if name.startswith("PET_")]
    assert lines["SKYPILOT_NUM_GPUS_PER_NODE"] == "8"
    assert lines["SPOTD_JOB_ID"] == "job-1"
    assert lines["SPOTD_GENERATION"] == "1"


def test_running_twice_is_a_no_op(node: Node) -> None:
    first, second = node.run(), node.run()
    assert first["started"] is True
    assert second == {"started": False, "pid": first["pid"]}
    assert node.kinds() == [wire.HELLO]


def test_the_agent_is_detached(node: Node) -> None:
    pid = node.run()["pid"]
    assert os.getsid(pid) != os.getsid(0)
    open_files = Path(f"/proc/{pid}/fd")
    targets = {str((open_files / str(number)).readlink()) for number in (0, 1, 2)}
    assert targets == {"/dev/null", str(node.paths.agent_log)}


def test_starting_twice_runs_once(node: Node) -> None:
    node.run()
    node.start(run="echo once; sleep 0.5")
    node.start(run="echo twice")
    node.wait_for(wire.EXITED)
    node.start(run="echo thrice")
    assert node.log() == "once\n"
    assert node.kinds().count(wire.STARTED) == 1


@pytest.mark.parametrize("generation", [2, 4])
def test_another_generation_is_refused(node: Node, generation: int) -> None:
    machine = replace(node, generation=3)
    with machine:
        machine.run()
        document = machine.start_document().to_data()
        reply = machine.send(wire.START, document, generation=generation)
        assert not reply.ok
        assert "generation 3" in reply.error
        assert machine.kinds() == [wire.HELLO]


def test_an_agent_of_a_lower_generation_is_refused(node: Node) -> None:
    with replace(node, generation=2) as newer, replace(node, generation=1) as older:
        newer.run()
        done = older.call("run", stdin=config_line(older))
        assert done.returncode == 1
        assert b"generation 2 was started" in done.stderr


def config_line(node: Node) -> bytes:
    config = wire.AgentConfig("test", "job-1", node.generation, 0, "t", "none", "", 1.0)
    return wire.encode(config.to_data())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"", b"one JSON line"),
        (b"[]\n", b"must be a JSON object"),
        (b'{"deployment": 1}\n', b"deployment"),
    ],
)
def test_a_bad_configuration_is_explained(node: Node, line: bytes, text: bytes) -> None:
    done = node.call("run", stdin=line)
    assert done.returncode == 1
    assert text in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_job_id_that_is_a_path_is_refused(node: Node) -> None:
    done = node.call("send", "--job", "../x", "--generation", "1", stdin=b"{}\n")
    assert done.returncode == 1
    assert b"cannot name a folder" in done.stderr


def test_an_unknown_watcher_is_explained(node: Node) -> None:
    config = wire.AgentConfig("test", "job-1", 1, 0, "t", "acme", "", 1.0)
    done = node.call("run", stdin=wire.encode(config.to_data()))
    assert done.returncode == 1
    assert b"aws, azure, gcp, none" in done.stderr


def test_sending_without_an_agent_says_what_to_do(node: Node) -> None:
    done = node.call("send", "--job", "job-1", "--generation", "1", stdin=b"{}\n")
    assert done.returncode == 1
    assert b"`spot-node run` first" in done.stderr


def test_a_garbled_command_is_refused_and_the_agent_lives(node: Node) -> None:
    node.run()
    for line in (b"nonsense\n", b"{}\n", b'{"command":{"name":"dance","generation":1}}\n'):
        done = node.call("send", "--job", "job-1", "--generation", "1", stdin=line)
        assert not wire.parse_reply(done.stdout).ok
    assert not node.send(wire.START, {"run": 5}).ok
    assert is_running(node.agent_pid)
    node.start()
    assert node.wait_for(wire.EXITED).data["code"] == 0


def test_a_failed_setup_ends_it_with_its_output(node: Node) -> None:
    node.run()
    node.start(setup="echo cannot find it >&2; exit 3", run="echo never")
    wait_until("setup failed", lambda: len(node.entries(wire.SETUP)) == 2)
    failed = node.entries(wire.SETUP)[1].data
    assert (failed["status"], failed["code"]) == ("failed", 3)
    assert "cannot find it" in failed["tail"]
    assert node.log() == ""
    assert wire.CLAIMED not in node.kinds()


def test_a_crash_is_reported_with_the_end_of_the_output(node: Node) -> None:
    node.run()
    node.start(run="for i in $(seq 1 2000); do echo line $i; done; exit 9")
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == 9
    assert exited["tail"].endswith("line 1999\nline 2000\n")
    assert len(exited["tail"]) <= 2048
    head = node.head()
    assert head is not None
    assert not head.final
    assert not head.released


def test_a_death_by_signal_is_128_more(node: Node) -> None:
    node.run()
    node.start(run="kill -SEGV $$")
    assert node.wait_for(wire.EXITED).data["code"] == 139


def test_exit_0_waits_for_no_background_process_but_ends_it(node: Node) -> None:
    node.run()
    node.start(run="sleep 1000 & echo $!; exit 0")
    assert node.wait_for(wire.EXITED).data["code"] == 0
    left = int(node.log())
    wait_until("the background process is gone", lambda: not is_running(left))


def test_a_store_that_cannot_be_used_is_named(node: Node) -> None:
    node.run()
    node.start(store_url="ftp://x/y")
    exited = node.wait_for(wire.EXITED).data
    assert exited["code"] == 1
    assert "ftp" in exited["tail"]


def archive_of(**files: bytes) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def test_packages_are_put_once_and_unpacked_at_their_targets(node: Node) -> None:
    code, code_digest = archive_of(main=b"echo main runs; cat ~/data/words/list")
    words, words_digest = archive_of(list=b"apple\n")
    has = node.call("has", "--digest", code_digest)
    assert json.loads(has.stdout) == {"has": False}
    node.put(code, code_digest)
    node.put(words, words_digest)
    assert json.loads(node.call("has", "--digest", code_digest).stdout) == {"has": True}
    node.run()
    packages = (Package(code_digest, ""), Package(words_digest, "~/data/words"))
    node.start(run="bash main; pwd; ls ~/sky_workdir", packages=packages)
    assert node.wait_for(wire.EXITED).data["code"] == 0
    assert node.log() == f"main runs\napple\n{node.paths.workdir}\nmain\n"


@pytest.mark.parametrize("target", ["~/sky_workdir/data", "data"])
def test_a_mount_in_the_workdir_is_there_by_all_its_names(node: Node, target: str) -> None:
    """As in SkyPilot: run starts in ~/sky_workdir, and relative targets are below it."""
    code, code_digest = archive_of(main=b"cat data/list; cat ~/sky_workdir/data/list; ls")
    words, words_digest = archive_of(list=b"apple\n")
    node.put(code, code_digest)
    node.put(words, words_digest)
    node.run()
    packages = (Package(code_digest, ""), Package(words_digest, target))
    node.start(run="bash main", packages=packages)
    node.wait_for(wire.EXITED)
    assert node.log() == "apple\napple\ndata\nmain\n"


def test_a_package_that_arrives_damaged_is_refused(node: Node) -> None:
    data, digest = archive_of(file=b"x")
    done = node.call("put", "--digest", digest, stdin=data[:-1])
    assert done.returncode == 1
    assert b"send it again" in done.stderr
    assert json.loads(node.call("has", "--digest", digest).stdout) == {"has": False}


def test_a_missing_package_fails_setup_with_a_reason(node: Node) -> None:
    node.run()
    node.start(packages=(Package("0" * 64, ""),))
    failed = node.wait_for(wire.SETUP).data
    assert failed["status"] == "failed"
    assert "send it first" in failed["tail"]


def test_a_bake_is_over_when_setup_is_done(node: Node) -> None:
    """Nothing is claimed, run or saved, whatever the store and the engine."""
    node.run()
    node.start(setup="echo installed", run="echo trained", bake=True, store_url="")
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
    assert node.kinds() == [wire.HELLO, wire.SETUP, wire.SETUP, wire.EXITED]
    assert node.head() is None
    assert "trained" not in "".join(path.read_text() for path in node.paths.logs.iterdir())


def test_a_bake_whose_setup_fails_is_not_done(node: Node) -> None:
    node.run()
    node.start(setup="exit 3", run="", bake=True, store_url="")
    failed = [node.wait_for(wire.SETUP), *node.entries(wire.SETUP)][-1]
    while failed.data["status"] != "failed":
        failed = node.entries(wire.SETUP)[-1]
    assert failed.data["code"] == 3
    assert wire.EXITED not in node.kinds()


def test_a_failure_says_its_cause_and_which_part_failed(node: Node) -> None:
    node.run()
    node.start(run="echo 'ModuleNotFoundErr'; no_such_program_here; exit $?")
    exited = node.wait_for(wire.EXITED).data
    assert exited["cause"].endswith("no_such_program_here: command not found")
    assert exited["part"] == "program"


def test_a_setup_that_fails_says_its_cause(node: Node) -> None:
    node.run()
    node.start(setup="echo 'E: Unable to locate package libfo'; exit 100", run="echo never")
    wait_until("setup failed", lambda: len(node.entries(wire.SETUP)) == 2)
    failed = node.entries(wire.SETUP)[1].data
    assert (failed["cause"], failed["part"]) == ("E: Unable to locate package libfo", "setup")
