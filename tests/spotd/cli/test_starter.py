"""`spotctl init job`: the printed command works from the current folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spotd.base.errors import UserError
from spotd.cli.starter import write_starter


@pytest.mark.parametrize("name", [".", "my", "my own"])
def test_printed_command_finds_both_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_starter(Path(name))
    _, _, message = capsys.readouterr().err.strip().partition(": ")
    assert message.endswith("spotctl run job.yaml")
    looked = message.replace("spotctl run job.yaml", "ls job.yaml train.py")  # `workdir: .`
    done = subprocess.run(looked, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["job.yaml", "train.py"]


def test_existing_file_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        write_starter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"
