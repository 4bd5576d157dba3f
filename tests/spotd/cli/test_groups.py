"""One name for one thing: `ls` and `list`, and `--into` for a target folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from spotd.cli.app import app
from spotd.cli.groups import SAME
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]


def lists() -> list[str]:
    """Return every group that has a list."""
    root = typer.main.get_command(app)
    context = typer.Context(root)
    groups = [(name, root.get_command(context, name)) for name in root.list_commands(context)]
    return [name for name, group in groups if SAME.keys() & getattr(group, "commands", {}).keys()]


@pytest.mark.parametrize("group", ["", *lists()])
def test_list_and_ls_are_one(rig: Rig, spotctl: Spotctl, capsys: Captured, group: str) -> None:
    story(rig)
    job = ["gpt"] if group in ("ckpt", "outputs") else []
    printed = []
    for name in SAME:
        assert spotctl(rig, *group.split(), name, *job, "-o", "json") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert spotctl(rig, *group.split(), "--help") == 0
    assert "  list  " not in capsys.readouterr().out


def test_enough_groups_have_a_list() -> None:
    assert {"ckpt", "drill", "image", "secret", "user", "orphans", "budget"} <= {*lists()}


def test_the_old_name_of_a_target_folder_is_accepted_and_not_shown(
    spotctl: Spotctl, capsys: Captured, tmp_path: Path
) -> None:
    missing = str(tmp_path / "none" / "traces")
    for option in (["--into", missing], ["--out", missing], [f"--out={missing}"]):
        assert spotctl(None, "advisor", "trace", *option) == 2
        assert f"--into: {missing} is not a folder" in capsys.readouterr().err
    for line in ("advisor trace", "ckpt export", "demo", "ckpt pull", "outputs"):
        assert spotctl(None, *line.split(), "--help") == 0
        text = capsys.readouterr().out
        assert "--into" in text
        assert "--out " not in text
