"""Test that the demo removes only the folder of an earlier demo."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import spotd.demo
from spotd.base.errors import UserError
from spotd.demo import remove_cloud_accounts
from spotd.demo.box import BoxError
from tests.where.__main__ import VARIABLES


@pytest.fixture
def no_clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo ends where its clouds would start."""

    def run(*_: object) -> NoReturn:
        raise BoxError("no clouds today")

    monkeypatch.setattr(spotd.demo, "_run", run)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("no_clouds")
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "thesis.tex").write_text("years")
    with pytest.raises(UserError, match="is in the way") as caught:
        spotd.demo.main(tmp_path)
    assert "--into" in caught.value.try_
    assert (tmp_path / "box" / "thesis.tex").read_text() == "years"


@pytest.mark.usefixtures("no_clouds")
@pytest.mark.parametrize("left", ["", "scenario.toml"])
def test_what_an_earlier_demo_left_goes(tmp_path: Path, left: str) -> None:
    (tmp_path / "box" / "state").mkdir(parents=True)
    if left:
        (tmp_path / "box" / left).write_text("")
    else:
        (tmp_path / "box" / "state").rmdir()
    assert spotd.demo.main(tmp_path) == 1
    assert not (tmp_path / "box").exists()


@pytest.mark.usefixtures("no_clouds")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_told_to_end_or_loses_its_terminal_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ended = False

    def run(*_: object) -> NoReturn:
        nonlocal ended
        try:
            signal.raise_signal(number)
            raise BoxError("went on")
        finally:
            ended = True

    monkeypatch.setattr(spotd.demo, "_run", run)
    assert spotd.demo.main(tmp_path) == 130
    assert ended


@pytest.mark.usefixtures("no_clouds")
def test_without_the_s3_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spotd.demo, "find_spec", lambda _name: None)
    with pytest.raises(UserError) as caught:
        spotd.demo.main(tmp_path)
    assert "pip install" in caught.value.try_
    assert spotd.demo.main(tmp_path, store="folder") == 1
    assert "no clouds today" in capsys.readouterr().out


def test_a_persons_own_account_and_proxy_have_no_part_in_it() -> None:
    """With AWS_PROFILE set to a missing profile the demo's S3 server would not start."""
    environ = {**VARIABLES, "PATH": "/usr/bin", "no_proxy": "localhost", "SPOTD_DEMO": "1"}
    remove_cloud_accounts(environ)
    kept = {name for name in VARIABLES if name.startswith(("PYTHON", "KUBE", "SSH", "GCE"))}
    assert set(environ) == kept | {"PATH", "SPOTD_DEMO"}
