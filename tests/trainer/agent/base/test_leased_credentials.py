"""Leased credentials are in memory, in one private file, and the newest ones win."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from providers.credential_leases import aws_credentials_text, secrets_in
from spotd import wire
from spotd.wire import ShardStore
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from tests.trainer.agent.test_secrets import KEY, holders
from trainer.agent.base.paths import AgentPaths

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)


def lend(
    node: Node, text: str, until: object, kind: str = "aws", **more: str
) -> CompletedProcess[bytes]:
    asked = {"kind": kind, "text": text, "expires_at_us": until, **more}
    line = json.dumps(asked).encode() + b"\n"
    return node.call("lend", "--job", "job-1", "--generation", "1", stdin=line)


def test_the_newest_is_kept_in_one_private_place_until_the_end(node: Node) -> None:
    node.run()
    first = lend(node, f"one {KEY}", "1000")
    assert json.loads(first.stdout) == {"kept": True, "file": str(node.paths.credentials_file)}
    options = {"credentials_file": str(node.paths.credentials_file)}
    node.start(
        run='echo "$SPOTD_STORE_OPTIONS"; until [ -e go ]; do sleep 0.02; done; exit 3',
        store_url="s3://bucket/prefix",
        store_options=options,
        engine="spotd",
    )
    node.wait_for_log("credentials_file")
    assert str(node.paths.credentials_file) in node.log(), "a path is not a secret"
    older = lend(node, f"old {KEY}", "999")
    assert json.loads(older.stdout)["kept"] is False
    assert json.loads(lend(node, f"same {KEY}", "1000").stdout)["kept"] is False
    assert node.paths.credentials_file.read_text() == f"one {KEY}"
    assert json.loads(lend(node, f"two {KEY}", "1001").stdout)["kept"] is True
    assert node.paths.credentials_file.read_text() == f"two {KEY}"
    assert stat.S_IMODE(node.paths.credentials_file.stat().st_mode) == 0o600
    assert holders(node.home) == [], "on no disk"
    assert node.paths.aws_config.exists()
    (node.paths.workdir / "go").touch()
    node.wait_for(wire.EXITED)
    wait_until("it is given back", lambda: not node.paths.credentials_file.exists())
    wait_until("all of it", lambda: not node.paths.aws_config.exists())
    assert holders(node.paths.memory) == []


def test_what_was_lent_is_in_no_output_and_neither_is_what_takes_its_place(node: Node) -> None:
    """A program that prints them would show them to everyone who may read its log."""
    first, second = (
        aws_credentials_text(
            "AKIDAKIDAKIDAKID", f"{word}-secret-of-a-loan", f"{word}-token-of-a-loan", UNTIL
        )
        for word in ("first", "second")
    )
    node.run()
    assert lend(node, first, "1000").returncode == 0
    show = f"cat {node.paths.credentials_file}; echo"
    node.start(
        run=f"{show}; until [ -e go ]; do sleep 0.02; done; {show}; echo first-token-of-a-loan",
        store_url="s3://bucket/prefix",
        store_options={"credentials_file": str(node.paths.credentials_file)},
        engine="spotd",
    )
    node.wait_for_log("Expiration")
    assert lend(node, second, "1001").returncode == 0
    (node.paths.workdir / "go").touch()
    node.wait_for(wire.EXITED)
    assert "-of-a-loan" not in node.log()
    assert node.log().count("AKIDAKIDAKIDAKID") == 2
    assert node.log().count('"SessionToken": "***"') == 2
    assert node.log().endswith("***\n")


def test_what_is_secret_of_a_loan() -> None:
    assert secrets_in(json.dumps({"access_token": "ya29." + "x" * 20, "expiry": "y" * 40})) == [
        "ya29." + "x" * 20
    ]
    sas = "se=2026-01-01&sp=rw&sig=ab%2Bcd%2F%3D"
    assert secrets_in(sas) == [sas, "ab+cd/=", "ab%2Bcd%2F%3D"]
    assert secrets_in("[1]") == ["[1]"]


def test_a_loan_is_kept_without_an_agent_and_whatever_its_form(node: Node) -> None:
    assert lend(node, "sig=x", "5", "azure").returncode == 0
    assert node.paths.credentials_file.read_text() == "sig=x"
    assert not node.paths.aws_config.exists()
    node.paths.credentials_file.unlink()
    assert json.loads(lend(node, "sig=y", "4", "azure").stdout)["kept"] is True, "there was none"


def test_what_is_no_loan_is_refused_without_the_secret(node: Node) -> None:
    for text, until, kind in (
        (KEY, "soon", "aws"),
        (KEY, "0", "aws"),
        (KEY, "-5", "aws"),
        (KEY, 5, "aws"),
        (KEY, "5", "oracle"),
        ("", "5", "aws"),
    ):
        done = lend(node, text, until, kind)
        assert done.returncode == 1, (until, kind)
        assert done.stderr.startswith(b"spot-node lend: ")
        assert KEY.encode() not in done.stderr + done.stdout
        assert not node.paths.credentials_file.exists()


def test_of_each_store_there_is_a_file_of_its_own_and_none_of_them_is_shown(node: Node) -> None:
    node.run()
    own = json.loads(lend(node, f"own {KEY}", "1000").stdout)["file"]
    east = json.loads(lend(node, f"east {KEY}", "500", store="s3://east").stdout)["file"]
    assert own != east == str(node.paths.credentials_file_of("s3://east"))
    assert node.paths.credentials_file.read_text() == f"own {KEY}"
    text = f"east2 {KEY}"
    assert json.loads(lend(node, text, "600", store="s3://east").stdout)["kept"] is True
    node.start(
        run=f'cat {east}; echo; echo "$SPOTD_SHARDS_URL"; until [ -e go ]; do sleep 0.02; done',
        store_url="s3://bucket/prefix",
        engine="spotd",
        shards_url="s3://east",
        shard_stores=(ShardStore("s3://east", {"credentials_file": east}),),
    )
    node.wait_for_log("s3://east")
    assert "***" in node.log()
    assert KEY not in node.log()
    (node.paths.workdir / "go").touch()
    node.wait_for(wire.EXITED)
    wait_until(
        "all of it is given back", lambda: not node.paths.credentials_file_of("s3://east").exists()
    )
    assert holders(node.paths.memory) == []


def test_a_folder_that_goes_while_it_is_read_has_lent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = AgentPaths(tmp_path, tmp_path, tmp_path / "memory")

    def gone(_self: Path, _pattern: str) -> list[Path]:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", gone)
    assert paths.credentials_files == [paths.credentials_file]
