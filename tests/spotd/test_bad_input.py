"""Bad input through the real `spotctl` at a real daemon: what is wrong, the fix, an exit code."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.api_routes import routes
from spotd.demo.box import Box
from tests.fixtures.forked import ForkedBox
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.xdist_group("daemon")

GOOD = """\
name: fine
resources: {accelerators: "H100:8"}
run: sleep 1000
spotd:
  checkpoint: {store: "file:///tmp/none", engine: none}
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """A daemon on three local clouds."""
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        ForkedBox(Path(name)) as made,
    ):
        made.start()
        yield made


def spotctl(box: Box, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one command line."""
    program = str(Path(sys.executable).parent / "spotctl")
    command = [program, "--socket", str(box.socket_path), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=cwd or box.folder
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def jobs(box: Box) -> list[str]:
    return [item["name"] for item in box.client.call(routes.LIST_JOBS(), query={"all": 1})["items"]]


CASES: dict[str, tuple[str, int, list[str]]] = {
    "no yaml": ("name: [fine\n", 2, ["line ", "try: "]),
    "not a mapping": ("- just\n- a list\n", 2, ["try: "]),
    "an unknown key": (
        GOOD.replace("accelerators", "acelerators"),
        2,
        ["line 2", "acelerators", "did you mean 'accelerators'?"],
    ),
    "a store that is none": (
        GOOD.replace("file:///tmp/none", "my-bucket"),
        2,
        ["spotd.checkpoint.store", "write file:///folder, or s3://, gs:// or az://bucket"],
    ),
    "a secret without a value": (GOOD + "secrets: {HF_TOKEN: null}\n", 2, ["HF_TOKEN", "--secret"]),
    "no run": (GOOD.replace("run: sleep 1000\n", ""), 2, ["run"]),
}


@pytest.mark.parametrize(("text", "code", "told"), CASES.values(), ids=list(CASES))
def test_a_job_file_that_is_wrong(
    box: Box, tmp_path: Path, text: str, code: int, told: list[str]
) -> None:
    before = jobs(box)
    (tmp_path / "job.yaml").write_text(text)
    found, _, error = spotctl(box, "run", "-d", "job.yaml", cwd=tmp_path)
    assert found == code, error
    for words in told:
        assert words in error
    assert jobs(box) == before, "nothing was stored"


def test_a_workdir_that_is_too_large(box: Box, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD + "workdir: .\n")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    code, _, error = spotctl(box, "run", "-d", "job.yaml", cwd=tmp_path)
    assert code == 2
    assert "weights.bin" in error
    assert ".skyignore" in error
    assert "fine" not in jobs(box)


def test_resources_that_nobody_sells(box: Box, tmp_path: Path) -> None:
    """`plan` says no; `run` takes the job and says that it waits: machines come on sale."""
    text = GOOD.replace("fine", "huge").replace("H100:8", "H100:512")
    (tmp_path / "job.yaml").write_text(text)
    code, _, error = spotctl(box, "plan", "job.yaml", cwd=tmp_path)
    assert (code, "fits huge" in error, "try: wider resources" in error) == (2, True, True)
    code, _, error = spotctl(box, "run", "-d", "job.yaml", cwd=tmp_path)
    assert code == 0
    assert "offers known now fits: the job waits for one that does" in error
    code, out, _ = spotctl(box, "why", "huge")
    assert (code, "no provider offers a machine that fits" in out) == (0, True)
    assert spotctl(box, "cancel", "huge")[0] == 0


def test_a_name_that_is_taken(box: Box, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD.replace("fine", "twice").replace("H100:8", "H100:64"))
    assert spotctl(box, "run", "-d", "job.yaml", cwd=tmp_path)[0] == 0
    code, _, error = spotctl(box, "run", "-d", "job.yaml", cwd=tmp_path)
    assert code == 1
    assert "not finished yet" in error
    assert "--name twice-2" in error
    assert jobs(box).count("twice") == 1
