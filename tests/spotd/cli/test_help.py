"""Help is cheap, complete and true; completion works."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.cli.commands import ENTRIES
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.serve.rig import JOB_FILE, Rig, story

HEAVY = ["pydantic", "sqlalchemy", "paramiko", "starlette", "uvicorn", "torch", "boto3", "rich"]
LINES = sorted(ENTRIES) + ["alerts test", "cloud up", "cloud status", "cloud preempt", "cloud down"]


@pytest.mark.req("UX-01")
def test_help_is_cheap() -> None:
    code = (
        "import os, sys, json\n"
        "from spotd.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "spent = os.times()\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(json.dumps([spent.user + spent.system, heavy]), file=sys.stderr)\n"
    )
    runs = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
        )
        runs.append(json.loads(done.stderr))
    assert runs[0][1] == []
    assert min(spent for spent, _ in runs) < 0.25
    assert "preempt" in done.stdout


@pytest.mark.parametrize("line", LINES)
def test_every_command_has_help_with_an_example(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert spotctl(None, *line.split(), "--help") == 0
    text = capsys.readouterr().out
    assert f"Usage: spotctl {line}" in text
    assert f"\n    spotctl {line}" in text, "an example"
    assert "-h, --help" in text


def examples() -> Iterator[str]:
    """Every example of a command that needs nothing but the daemon, and ends by itself."""
    for name, entry in ENTRIES.items():
        text = (Path("spotd/cli") / f"{entry.module}.py").read_text()
        for line in re.findall(r"^ +(spotctl .*)$", text, re.MULTILINE):
            follows = " -f" in line or "--host" in line
            if line.split()[1] == name and name not in ("cloud", "demo") and not follows:
                yield line


@pytest.mark.parametrize("line", list(dict.fromkeys(examples())))
def test_the_examples_run(
    rig: Rig,
    spotctl: Spotctl,
    monkeypatch: pytest.MonkeyPatch,
    ssh: Path,
    folder: Path,
    line: str,
) -> None:
    words = shlex.split(line)[1:]
    monkeypatch.setenv("HF_TOKEN", "x")
    monkeypatch.chdir(folder)
    (folder / "examples").mkdir()
    (folder / "examples" / "train.yaml").write_text(JOB_FILE.replace("gpt", "new"))
    rig.address(rig.store.job_nodes(story(rig))[-1], "127.0.0.9", 2222)
    if words[0] == "wait" or (words[0] == "run" and "-d" not in words):
        words += ["--timeout", "1s"] if words[0] == "wait" else ["-d"]
        words = [w for i, w in enumerate(words) if words[i : i + 2] != ["--timeout", "2h"]]
        words = [w for w in words if w != "2h"]
    if words[0] == "resume":
        spotctl(rig, "pause", "gpt")
    code = spotctl(rig, *words)
    assert code == {"wait": 7, "ssh": 7}.get(words[0], 0) or "running" in words


def test_examples_were_found() -> None:
    assert len(list(examples())) > 20


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("spotctl p", 1, {"ps", "plan", "pause"}),
        ("spotctl --socket SOCKET show ", 4, {"gpt"}),
        ("spotctl --socket SOCKET logs g", 4, {"gpt"}),
        ("spotctl --socket /none show ", 4, set()),
        ("spotctl wait gpt --for ", 4, {"done", "running", "paused"}),
    ],
)
def test_completion(rig: Rig, words: str, position: int, expected: set[str]) -> None:
    story(rig)
    words = words.replace("SOCKET", str(rig.socket))
    done = subprocess.run(
        [sys.executable, "-c", "from spotd.cli import main; main()"],
        env={
            **os.environ,
            "_SPOTCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert set(done.stdout.split()) == expected, done.stderr
