"""The program itself, against a real local cloud, with no daemon and no database anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.base import EXPIRES_TAG
from providers.local.cloud import LocalCloud
from providers.local.control import RunningCloud
from spotd.base.clock import ticks_ns
from spotd.reaper.command import main
from tests.fixtures.local_cloud import launch_running, running
from tests.fixtures.waiting import LIMIT_S, until

DAY_S = 86_400


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    with running(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


def adapter(local: RunningCloud, deployment: str = "d0") -> LocalCloud:
    return LocalCloud("here", local.url, "aws", deployment, token_file=local.token_file)


def launch(cloud: LocalCloud, token: str, left_s: float | None) -> str:
    """A machine whose expiry is `left_s` ahead."""
    tags = {} if left_s is None else {EXPIRES_TAG: str(int(time.time() + left_s))}
    return launch_running(cloud, token, tags={"spotd-job": "j1", **tags}).instance_id


def configure(folder: Path, local: RunningCloud, more: str = "") -> Path:
    """One that has gone round for long enough to believe the clock."""
    ahead_us = time.time_ns() // 1000 - ticks_ns() // 1000
    (folder / "clock.json").write_text(json.dumps({"ahead_us": ahead_us, "since_us": None}))
    path = folder / "reaper.toml"
    path.write_text(
        f'deployment = "d0"\nstate_dir = "{folder}"\n[providers.here]\nkind = "local"\n'
        f'url = "{local.url}"\npersonality = "aws"\ntoken_file = "{local.token_file}"\n{more}'
    )
    return path


def reap(config: Path, *options: str) -> dict[str, Any]:
    """One round in a process of its own; what it says, with its exit code."""
    line = [sys.executable, "-m", "spotd.reaper.command", "--once", "-c", str(config)]
    done = subprocess.run(
        [*line, "-o", "json", *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == ""
    return {**json.loads(done.stdout), "code": done.returncode}


def alive(cloud: LocalCloud) -> set[str]:
    return {i.instance_id for i in cloud.list() if i.state.value in ("pending", "running")}


def test_it_ends_what_nobody_renewed_with_everything_else_of_spotd_dead(
    local: RunningCloud, tmp_path: Path
) -> None:
    cloud, others = adapter(local), adapter(local, "d1")
    expired = launch(cloud, "t-expired", -DAY_S)
    renewed = launch(cloud, "t-renewed", -DAY_S)
    cloud.renew(renewed, int((time.time() + DAY_S) * 1e6))
    silent, bare = launch(cloud, "t-silent", DAY_S / 3), launch(cloud, "t-bare", None)
    foreign = launch(others, "t-foreign", -DAY_S)
    pages = tmp_path / "pages"
    config = configure(tmp_path, local, f'[page]\ncommand = ["tee", "-a", "{pages}"]\n')

    dry = reap(config, "--dry-run")
    assert {item["instance"]: item["done"] for item in dry["items"]} == {
        expired: "would end",
        silent: "left",
        bare: "left",
    }
    assert alive(cloud) == {expired, renewed, silent, bare}

    done = reap(config)
    assert (done["code"], done["errors"]) == (0, [])
    until(lambda: alive(cloud) == {renewed, silent, bare})
    assert alive(others) == {foreign}
    said = pages.read_text()
    for word in (f"ended {expired}", "silent for 16.0 h", silent, bare):
        assert word in said
    assert foreign not in said
    assert reap(config)["pages"] == []

    reap(config, "--end-untagged")
    until(lambda: alive(cloud) == {renewed, silent})
    for instance in (renewed, silent):
        cloud.terminate(instance)
    others.terminate(foreign)


def test_a_clock_that_was_set_ahead_since_the_last_round_ends_nothing(
    local: RunningCloud, tmp_path: Path
) -> None:
    cloud, config = adapter(local), configure(tmp_path, local)
    wanted = launch(cloud, "t-wanted", DAY_S)
    assert reap(config)["items"] == []
    kept = tmp_path / "clock.json"
    clock = json.loads(kept.read_text())
    clock["ahead_us"] -= 25 * 3600 * 10**6
    kept.write_text(json.dumps(clock))
    cloud.terminate(wanted)
    expired = launch(cloud, "t-expired-by-that-clock", -3600)
    found = reap(config)
    assert [item["done"] for item in found["items"]] == ["waits"]
    assert found["code"] == 1
    assert "is not ended for 20 min" in found["errors"][0]
    assert expired in alive(cloud)
    cloud.terminate(expired)


def test_the_first_round_of_all_ends_nothing(local: RunningCloud, tmp_path: Path) -> None:
    cloud, config = adapter(local), configure(tmp_path, local)
    (tmp_path / "clock.json").unlink()
    expired = launch(cloud, "t-before-the-first-round", -3600)
    assert [item["done"] for item in reap(config)["items"]] == ["waits"]
    assert expired in alive(cloud)
    cloud.terminate(expired)


def test_one_that_could_never_believe_the_clock_says_so(
    local: RunningCloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, local)
    config.write_text(config.read_text().replace("state_dir", "# state_dir"))
    assert main(["--once", "-c", str(config)]) == 2
    assert "state_dir" in capsys.readouterr().err


def test_a_cloud_that_is_gone_is_exit_code_1(tmp_path: Path, local: RunningCloud) -> None:
    config = configure(tmp_path, local)
    config.write_text(config.read_text().replace(local.url, "http://127.0.0.1:9"))
    done = reap(config)
    assert done["code"] == 1
    assert "here cannot be listed" in done["errors"][0]


def test_it_loads_neither_the_store_nor_the_daemon() -> None:
    code = (
        "import sys, spotd.reaper.command\n"
        "from spotd.config.provider_registry import KINDS\n"
        "bad = ('spotd.store', 'spotd.daemon', 'spotd.config.', 'sqlalchemy', 'paramiko')\n"
        "print([name for name in sys.modules if name.startswith(bad)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.strip() == "['spotd.config.provider_registry']"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "deployment: is missing"),
        ('deployment = "d0"\n', "providers: is missing"),
        ('deployment = "d0"\nunattended_h = 0\n[providers.a]\nkind = "local"\n', "unattended_h: "),
        ('deployment = "d0"\nevery = 3\n[providers.a]\nkind = "local"\n', "every: unknown key"),
        ('deployment = "d0"\n[providers.a]\n', "providers.a.kind: is missing"),
        ('deployment = "d0"\n[providers.a]\nkind = "moon"\n', 'no provider of kind "moon"'),
        ('deployment = "d0"\n[providers.a]\nkind = "local"\nuri = "x"\n', "providers.a: "),
        (
            'deployment = "d0"\n[providers.a]\nkind = "local"\nurl = "x"\npersonality = "aws"\n',
            "providers.a: the local cloud's url",
        ),
        ("deployment = ", "is not TOML"),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    path = tmp_path / "reaper.toml"
    path.write_text(text)
    assert main(["--once", "-c", str(path)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "try: " in error


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/x",
        "https://evil.example/canary",
        "https://[::1/canary",
        "http://relay.lan/canary",  # in the clear
    ],
)
def test_a_webhook_elsewhere_is_refused_and_not_repeated(
    tmp_path: Path, local: RunningCloud, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    (tmp_path / "url").write_text(url)
    page = f'[page]\nslack_hosts = ["relay.lan"]\nslack_url_file = "{tmp_path}/url"\n'
    config = configure(tmp_path, local, page)
    assert main(["--once", "-c", str(config)]) == 2
    error = capsys.readouterr().err
    assert "page.slack_url_file: the secret is not an https address at hooks.slack.com" in error
    assert "canary" not in error


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", "-c", str(tmp_path / "none.toml")]) == 2
    assert "none.toml cannot be used" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "spot-reaper --once --dry-run" in capsys.readouterr().out
