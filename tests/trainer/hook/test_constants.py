"""The hook works on a machine without spotd, and agrees with spotd/wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotd import wire
from spotd.act.bundle import build_bundle
from spotd.wire import AgentConfig
from tests.trainer.agent.node import Node
from trainer.agent.run.prepare import build_env, hook_path
from trainer.hook.spotd_hook import constants

NAMES = [name for name in vars(constants) if name.isupper() and name != "EXIT_ERROR"]


@pytest.mark.parametrize("name", NAMES)
def test_words_are_those_of_the_wire(name: str) -> None:
    assert getattr(constants, name) == getattr(wire, name)


def test_it_is_had_from_the_agents_archive_by_any_python(tmp_path: Path) -> None:
    archive = tmp_path / "spot-node.pyz"
    archive.write_bytes(build_bundle().data)
    code = f"""if True:
        import sys
        sys.path.insert(0, {f"{archive}/trainer/hook"!r})
        import spotd_hook.head_ownership, spotd_hook.saver_connect
        assert spotd_hook.__file__.startswith({str(archive)!r}), spotd_hook.__file__
        known = {{"hf", "lightning", "Run"}}
        assert not known & vars(spotd_hook).keys()
        print(*sorted(name for name in sys.modules if name.startswith(("spotd.", "torch"))))
    """
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_a_name_that_it_has_not_is_told() -> None:
    code = "from trainer.hook import spotd_hook; spotd_hook.Ran"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "module 'spotd_hook' has no attribute 'Ran'" in done.stderr


@pytest.mark.parametrize(("theirs", "found"), [("/mine", "/mine:"), ("", "")])
def test_programs_find_it_behind_what_they_bring_themselves(
    tmp_path: Path, theirs: str, found: str
) -> None:
    node = Node(tmp_path)
    start = node.start_document(envs={"PYTHONPATH": theirs}, engine="spotd")
    config = AgentConfig(
        deployment="d", job_id="job-1", generation=1, rank=0, token="t", watcher="none"
    )
    env = build_env({}, config, start, node.paths, claim_until=0.0)
    assert env["PYTHONPATH"] == found + hook_path()
    assert (Path(hook_path()) / "spotd_hook" / "__init__.py").is_file()
    assert env["SPOTD_ENGINE"] == "spotd"
