"""What a program of a test is started with does not depend on how the tests were started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.surroundings import OPEN_FILES, path_without
from tests.where.__main__ import VARIABLES

ROOT = Path(__file__).parents[2]
SETTLED = """
import json, os, resource, signal, subprocess, sys
from tests.rigs import surroundings
surroundings.settle()
os.kill(os.getpid(), signal.SIGHUP)  # what was ignored is ignored still
show = '''
import json, os, resource, signal
names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGCHLD")
print(json.dumps({
    "ignored": [n for n in names if signal.getsignal(getattr(signal, n)) is signal.SIG_IGN],
    "blocked": [n.name for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "umask": os.umask(0), "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "environ": dict(os.environ),
}))
'''
subprocess.run([sys.executable, "-c", show], check=True)
"""


def test_programs_get_what_they_count_on() -> None:
    start = "trap '' HUP INT QUIT CHLD; umask 077; ulimit -Sn 256; exec \"$@\""
    environ = {**os.environ, **VARIABLES, "LC_ALL": "C", "TZ": "Pacific/Apia", "SPOTD_KILLS": "3"}
    for name in [name for name in VARIABLES if name.startswith("PYTHON")]:
        del environ[name]  # the interpreter has read them by then: the Makefile takes them away
    done = subprocess.run(
        ["bash", "-c", start, "bash", sys.executable, "-c", SETTLED],
        cwd=ROOT,
        env=environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert (seen["ignored"], seen["blocked"], seen["umask"]) == ([], [], 0o022)
    assert seen["files"] == OPEN_FILES
    assert {*VARIABLES, "PYTHONHASHSEED"} & set(seen["environ"]) == set()
    assert seen["environ"]["TZ"] == "Pacific/Apia", "what we print may not depend on that"
    assert seen["environ"]["SPOTD_KILLS"] == "3", "how much is tried is for the user to say"


def test_a_program_that_is_on_path_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("py-spy", "other"):
        (mine / name).write_text("#!/bin/sh\n")
        (mine / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{mine}:/usr/bin:/bin")
    path = path_without(tmp_path / "without", ["py-spy"])
    assert shutil.which("py-spy", path=path) is None
    assert shutil.which("other", path=path) == str(tmp_path / "without" / "path0" / "other")
    assert path.endswith(":/usr/bin:/bin")
