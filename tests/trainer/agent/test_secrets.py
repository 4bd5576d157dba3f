"""A secret is in the program's environment, in memory, and nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from spotd import wire
from tests.fixtures.search import files_with
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.paths import write_private
from trainer.agent.process.script_supervisor import SecretMask

SECRET = "hunter2-is-not-a-good-password"
KEY = "store-key-4711-0815"


def holders(folder: Path) -> list[Path]:
    """Return the files that contain the secret or the store's key."""
    return sorted({*files_with(SECRET.encode(), folder), *files_with(KEY.encode(), folder)})


def test_a_secret_is_on_no_disk_and_in_no_argument(node: Node) -> None:
    node.run()
    node.start(
        run='test "$TOKEN" = "$EXPECTED" && echo known; echo "mine is $TOKEN"; env; '
        "until [ -e go ]; do sleep 0.02; done; exit 3",
        envs={"EXPECTED": SECRET[::-1]},
        secrets={"TOKEN": SECRET, "REVERSED": SECRET},
        store_options={},
        engine="spotd",
    )
    node.wait_for_log("mine is ***")
    assert holders(node.home) == []
    memory = holders(node.paths.memory)
    assert [path.name for path in memory] == ["state.json"], "for an agent that is started again"
    assert stat.S_IMODE(memory[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(node.paths.memory.stat().st_mode) == 0o700
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                assert SECRET.encode() not in (process / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
    pids = node.pids()
    assert pids is not None
    environ = Path(f"/proc/{pids.program.pid}/environ").read_bytes()
    assert f"TOKEN={SECRET}".encode() in environ.split(b"\0")
    (node.paths.workdir / "go").touch()
    exited = node.wait_for(wire.EXITED)
    assert "mine is ***" in str(exited.data["tail"]) or "***" in str(exited.data["tail"])
    wait_until("it is forgotten", lambda: holders(node.paths.memory) == [])
    assert holders(node.home) == []


def test_the_store_s_keys_are_kept_like_secrets(node: Node) -> None:
    node.run()
    node.start(
        run='echo "$SPOTD_STORE_OPTIONS"; until [ -e go ]; do sleep 0.02; done',
        store_url="s3://bucket/prefix",
        store_options={"secret_access_key": KEY},
        engine="spotd",
    )
    node.wait_for_log("secret_access_key")
    assert "***" in node.log()
    assert holders(node.home) == []


def test_what_is_no_secret_of_the_store_is_not_masked(node: Node) -> None:
    node.run()
    options = {"region": "us-east-1", "allow_http": "true", "endpoint": "http://store"}
    options |= {"identity": "aws", "service_account": "spotd@lab", "pool": "projects/1/pool"}
    options |= {"tenant": "a tenant", "application": "an app", "account": "runs"}
    node.start(
        run='echo "compile=true zone us-east-1a"; echo "$SPOTD_STORE_OPTIONS"; exit 3',
        store_url="s3://bucket/prefix",
        store_options={**options, "session_token": KEY, "access_key_id": "AKIA0815"},
        engine="spotd",
    )
    node.wait_for(wire.EXITED)
    assert node.log().startswith("compile=true zone us-east-1a\n")
    for name, value in options.items():
        assert f'"{name}": "{value}"' in node.log()
    assert KEY not in node.log()
    assert "AKIA0815" not in node.log()


def test_a_private_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "state.json", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600


def test_scripts_are_private(node: Node) -> None:
    node.run()
    node.start(run="sleep 1000")
    node.wait_for(wire.STARTED)
    assert stat.S_IMODE((node.paths.memory / "run.sh").stat().st_mode) == 0o600
    assert stat.S_IMODE((node.paths.logs / "rank0.log").parent.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_not_used(node: Node) -> None:
    memory = node.paths.memory
    memory.parent.mkdir(mode=0o700, exist_ok=True)
    memory.mkdir()
    memory.chmod(0o777)
    done = node.call(
        "run", stdin=wire.encode(wire.AgentConfig("t", "job-1", 1, 0, "t", "none").to_data())
    )
    assert done.returncode == 1
    assert b"not a private folder" in done.stderr


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_mask_hides_a_secret_however_it_is_cut(size: int) -> None:
    text = b"a hunter22 b hunterhunter22hunter22 c hunter2"
    mask = SecretMask(["hunter22", "abc"])
    shown = b"".join(mask.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert shown + mask.flush() == b"a *** b hunter****** c hunter2"


class Counting(bytes):
    """A secret that counts what it is compared with."""

    compared = 0

    def startswith(self, *args: Any) -> bool:
        Counting.compared += 1
        return super().startswith(*args)


def test_output_in_small_pieces_is_compared_where_a_secret_could_begin() -> None:
    """A private key has 2 kB: comparing each of its beginnings at each write takes minutes."""
    mask = SecretMask(["hunter22" * 256])
    mask._secrets = [Counting(secret) for secret in mask._secrets]
    text = b"step 1 loss 2.5 " * 1000 + b"h"
    shown = b"".join(mask.feed(text[i : i + 8]) for i in range(0, len(text), 8))
    assert shown + mask.flush() == text
    assert Counting.compared == 1


def test_a_mask_without_secrets_holds_nothing_back() -> None:
    mask = SecretMask(["", "ab"])
    assert mask.feed(b"abab") == b"abab"
