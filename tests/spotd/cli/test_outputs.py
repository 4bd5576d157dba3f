"""`spotctl outputs` through the real API, on files that the agent's own code has uploaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import SPOT, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.test_pull_files import tree
from tests.trainer.directory.rig import Generation, write_hf
from trainer.outputs.files import select_matching
from trainer.outputs.upload import StoredOutputs, Upload, upload_outputs

DIRECTORY = """
name: gpt
resources: {accelerators: "H100:8"}
run: python train.py
spotd: {checkpoint: {mode: directory, path: out}}
"""
NO_OUTPUTS = """
name: gpt
resources: {accelerators: "H100:8"}
run: python train.py
spotd: {outputs: []}
"""


def upload_folder(rig: Rig, node: Node, folder: Path, ago_s: float = 0) -> StoredOutputs:
    """Upload all files of a folder as the agent of `node` does, and report it."""
    upload = Upload(
        job_id=node.job_id,
        generation=node.generation,
        rank=node.rank,
        cancelled=lambda: False,
        patience_s=1.0,
        now_us=lambda: rig.ago(ago_s),
    )
    selected = select_matching(folder, patterns=(".",), home=folder)
    stored = upload_outputs(lambda: open_store(rig.checkpoint_store), selected.files, upload)
    report(rig, node, stored, ago_s)
    return stored


def report(rig: Rig, node: Node, stored: StoredOutputs, ago_s: float = 0, text: str = "") -> None:
    """Report an upload as an agent does."""
    rig.say(
        node,
        ago_s,
        "outputs",
        status="stored",
        manifest=stored.manifest,
        digest=stored.digest,
        files=stored.files,
        bytes=stored.size,
        new_bytes=stored.new_size,
        seconds=1.5,
        text=text,
    )


class Left:
    """A job whose machines leave files, and `spotctl outputs` on them."""

    def __init__(self, rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig, self.spotctl, self.capsys = rig, spotctl, capsys
        self.store = open_store(rig.checkpoint_store)
        self.id = ""

    def submit(self, text: str = "") -> Node:
        self.id = self.rig.submit(**({"text": text} if text else {}))
        return self.rig.launch(self.id, SPOT, 600)

    def upload(self, node: Node, folder: Path, ago_s: float = 0, **files: str) -> StoredOutputs:
        """Upload the files as the agent of `node` does, and report it."""
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return upload_folder(self.rig, node, folder, ago_s)

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        self.capsys.readouterr()
        exit_code = self.spotctl(self.rig, "outputs", "gpt", *line)
        out, err = self.capsys.readouterr()
        assert exit_code == code, err
        return out, err

    def data(self, *line: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*line, "-o", "json")[0])
        return found


@pytest.fixture
def left(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> Left:
    return Left(rig, spotctl, capsys)


def test_files_come_back_under_their_own_names(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    left.upload(node, tmp_path / "w", final__model_bin="weights", loss_csv="1,2")
    out, err = left.run()
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["final/model_bin", "loss_csv"]
    assert "2 files, 10 B: spotctl outputs gpt --into DIR" in err
    target = tmp_path / "target"
    _, err = left.run("--into", str(target))
    assert "2 files (final, loss_csv), 10 B" in err
    assert tree(target) == {"final/model_bin": b"weights", "loss_csv": b"1,2"}
    assert not (target / ".spotd-pull").exists()


def test_outputs_are_removed_once_no_machine_stores_any(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    left.upload(node, tmp_path / "w", 100, loss_csv="1,2")
    remove = ["outputs", "rm", "gpt"]
    assert left.spotctl(left.rig, *remove, "--yes") == 1
    assert "has a machine" in left.capsys.readouterr().err
    left.rig.leave(node, 50, LeaveReason.DONE, "done")
    assert left.spotctl(left.rig, *remove) == 2
    assert "1 files, 3 B, of gpt was not confirmed" in left.capsys.readouterr().err
    assert len(list(left.store.list(f"jobs/{left.id}/outputs/"))) > 0
    assert left.spotctl(left.rig, *remove, "--yes") == 0
    assert list(left.store.list(f"jobs/{left.id}/outputs/")) == []
    listed = left.data()
    assert listed["items"] == []
    assert listed["problems"][0].startswith("its files were removed 20")
    (row,) = left.rig.store.outputs.rows(left.id)
    assert row.removed_at_us > row.stored_at_us, "until then it cost"
    left.rig.store.events.prune(left.rig.clock.now_us() + 10**15)
    assert left.rig.store.outputs.rows(left.id) == [row], "that stays on record"


def test_of_several_uploads_the_newest_version_of_a_file_counts(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    left.upload(node, tmp_path / "a", 300, report="old", first="1", res="a file")
    left.upload(node, tmp_path / "b", 200, report="new", second="2", res__x="in a folder")
    left.run("--into", str(tmp_path / "target"))
    assert tree(tmp_path / "target") == {
        "report": b"new",
        "first": b"1",
        "second": b"2",
        "res/x": b"in a folder",
    }


def test_other_ranks_have_folders_of_their_own(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    second = left.rig.launch(left.id, SPOT, 600, rank=1)
    left.upload(node, tmp_path / "a", log="zero")
    left.upload(second, tmp_path / "b", log="one")
    left.run("--into", str(tmp_path / "target"))
    assert tree(tmp_path / "target") == {"log": b"zero", "node-1/log": b"one"}


def test_the_program_s_own_checkpoints_are_among_them(left: Left, tmp_path: Path) -> None:
    node = left.submit(DIRECTORY)
    program = Generation(tmp_path / "machine", left.store, 2, job=left.id).start()
    write_hf(program.folder, 100)
    program.settle()
    left.upload(node, tmp_path / "a", report="x")
    left.run("--into", str(tmp_path / "target"))
    expected = {f"out/{path}": data for path, data in tree(program.folder).items()}
    assert tree(tmp_path / "target") == {"report": b"x", **expected}


def test_a_download_goes_on_where_it_was_cut_off(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    left.upload(node, tmp_path / "w", a="first", b="second")
    target = tmp_path / "target"
    key = next(info.key for info in left.store.list("jobs/") if info.key.endswith("r00001-00000"))
    good = left.store.get(key)[0]
    left.store.put(key, b"seconx")
    _, err = left.run("--into", str(target), code=1)
    assert key in err
    assert tree(target) == {}
    first = target / ".spotd-pull" / "files" / "a"
    before_ns = first.stat().st_mtime_ns
    left.store.put(key, good)
    left.store.put(key.replace("r00001", "r00000"), b"fxrst")  # not read again
    left.run("--into", str(target))
    assert tree(target) == {"a": b"first", "b": b"second"}
    assert before_ns


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "its files are uploaded when the program ends, and at a pause or a cancel"),
        (NO_OUTPUTS, "its job file says outputs: [], so nothing is uploaded"),
    ],
)
def test_without_files_the_reason_is_given(
    left: Left, tmp_path: Path, text: str, problem: str
) -> None:
    left.submit(text)
    out, err = left.run()
    assert (out, err.strip()) == ("", problem)
    _, err = left.run("--into", str(tmp_path / "target"), code=1)
    assert problem in err
    assert not (tmp_path / "target").exists()


def test_what_an_upload_left_out_is_told(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    stored = left.upload(node, tmp_path / "w", 100, a="x")
    report(left.rig, node, stored, 50, text="model (14 GB): more than the 10 GB")
    assert left.data()["problems"] == []
    (tmp_path / "w2").mkdir()
    upload = left.upload(node, tmp_path / "w2", 40, b="y")
    assert upload.files == 1
    assert {item["path"] for item in left.data()["items"]} == {"a", "b"}


def test_a_damaged_upload_is_named_and_the_others_are_listed(left: Left, tmp_path: Path) -> None:
    node = left.submit()
    bad = left.upload(node, tmp_path / "a", 300, a="1")
    left.upload(node, tmp_path / "b", 200, b="2")
    left.store.put(bad.manifest, b"{}")
    data = left.data()
    assert [item["path"] for item in data["items"]] == ["b"]
    assert "an upload of generation 1 is damaged" in data["problems"][0]


@pytest.mark.parametrize("key", ["jobs/other/outputs/g00000001-r00000-ab/MANIFEST.json", "../x"])
def test_a_machine_cannot_name_another_job_s_files(left: Left, tmp_path: Path, key: str) -> None:
    node = left.submit()
    report(
        left.rig, node, StoredOutputs(manifest=key, digest="0" * 64, files=1, size=1, new_size=1)
    )
    data = left.data()
    assert data["items"] == []
    assert "is not in the folder of the job's outputs" in data["problems"][0]
