"""`spotctl ckpt` through the real API, on checkpoints saved by the trainer's own code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from spotd import wire
from spotd.domain.states import Outcome
from tests.fixtures.waiting import until
from tests.spotd.api.rig import SPOT, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.saves import Saver, step_bytes
from trainer.fence import Fence
from trainer.saver.reader import read_manifest, read_stream
from trainer.saver.retention import remove_old


class Saves(Saver):
    """A job's saved checkpoints, and `spotctl ckpt` on them."""

    def __init__(self, rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(rig, rig.submit())
        self.spotctl, self.capsys = spotctl, capsys

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        """Run `spotctl ckpt`; returns stdout and stderr."""
        self.capsys.readouterr()
        exit_code = self.spotctl(self.rig, "ckpt", *line)
        out, err = self.capsys.readouterr()
        assert exit_code == code, err
        return out, err

    def data(self, *line: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*line, "-o", "json")[0])
        return found

    def steps(self) -> list[int]:
        return [item["step"] for item in self.data("ls", "gpt")["items"]]


@pytest.fixture
def saves(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> Iterator[Saves]:
    return Saves(rig, spotctl, capsys)


def test_ls_lists_the_chain_and_pinned_checkpoints(saves: Saves) -> None:
    assert "no checkpoint yet" in saves.run("ls", "gpt")[1]
    for step in (10, 20, 30):
        saves.save(step, 600 - step, released=step == 30)
    saves.run("pin", "gpt", "best", "--step", "10")
    saves.run("pin", "gpt", "first", "--step", "10")
    out, _ = saves.run("ls", "gpt")
    lines = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    assert lines[0] == ["STEP", "GEN", "AGE", "SIZE", "PINS", "STATE"]
    assert lines[1][:2] == ["30", "1"]
    assert lines[1][-1] == "newest, released"
    assert lines[3][-1] == "best, first"
    data = saves.data("ls", "gpt")
    assert (data["generation"], data["released"], data["final"]) == (1, True, False)
    assert [item["bytes"] for item in data["items"]] == [4096] * 3
    assert [item["newest"] for item in data["items"]] == [True, False, False]
    assert 569 <= data["items"][0]["age_s"] <= 580
    assert saves.run("ls", "gpt", "-o", "name")[0].split() == ["30", "20", "10"]


def test_ls_omits_removed_checkpoints_and_reports_missing_ones(saves: Saves) -> None:
    refs = [saves.save(step) for step in (10, 20, 30)]
    saves.run("pin", "gpt", "best", "--step", "10")
    for ref in refs:
        saves.file(ref.manifest).unlink()
    items = saves.data("ls", "gpt")["items"]
    assert [(item["step"], item["problem"][:7]) for item in items] == [
        (30, "is gone"),
        (10, "is gone"),
    ]
    assert "damaged: is gone" in saves.run("ls", "gpt")[0]


@pytest.mark.parametrize("first", [False, True], ids=["chunks", "version 1"])
def test_verify_reads_every_byte(saves: Saves, first: bool) -> None:
    ref = saves.save(10, first=first)
    assert "every byte as it was saved" in saves.run("verify", "gpt")[1]
    intact = saves.data("verify", "gpt", "10")
    assert (intact["step"], intact["shards"], intact["total_bytes"]) == (10, 4, 4096)
    assert intact["damage"] == []
    shards = [shard.key for shard in read_manifest(saves.store, ref).shards]
    flipped = bytearray(saves.file(shards[1]).read_bytes())
    flipped[77] ^= 1
    saves.file(shards[1]).write_bytes(flipped)
    saves.file(shards[2]).write_bytes(saves.file(shards[2]).read_bytes()[:-1])
    saves.file(shards[3]).unlink()
    out, err = saves.run("verify", "gpt", "-o", "json", code=1)
    assert "step 10 of gpt is damaged" in err
    damage = json.loads(out)["damage"]
    assert [line.split()[0] for line in damage] == shards[1:]
    assert [" ".join(line.split()[1:3]) for line in damage] == [
        "has another",
        "ends too",
        "is missing",
    ]
    saves.file(ref.manifest).write_bytes(b"{}")
    assert "another digest than HEAD says" in saves.run("verify", "gpt", code=1)[1]


@pytest.mark.parametrize("first", [False, True], ids=["chunks", "version 1"])
def test_pulled_folder_is_a_store_for_the_trainer(
    saves: Saves, tmp_path: Path, first: bool
) -> None:
    saves.save(10, first=first)
    saves.save(20)
    saves.run("pin", "gpt", "best", "--step", "10")
    copy = tmp_path / "copy"
    _, err = saves.run("pull", "gpt", "best", "--into", str(copy))
    assert "step 10: 4.0 KiB in" in err
    store = open_store(copy.as_uri())
    head = Fence(store, saves.id, 2, "reader").claim()
    assert head.current is not None
    assert read_stream(store, read_manifest(store, head.current), 0) == step_bytes(10)
    assert list(copy.rglob("*.part")) == []


def test_interrupted_pull_is_resumed(saves: Saves, tmp_path: Path) -> None:
    ref = saves.save(10)
    shards = [shard.key for shard in read_manifest(saves.store, ref).shards]
    hidden = saves.file(shards[2]).rename(saves.file(shards[2]).with_name("hidden"))
    copy = tmp_path / "copy"
    _, err = saves.run("pull", "gpt", "--into", str(copy), code=1)
    assert "run it again" in err
    assert not (copy / wire.head_key(saves.id)).exists(), "it is not all there"
    assert [(copy / key).exists() for key in shards] == [True, True, False, False]
    hidden.rename(saves.file(shards[2]))
    before_ns = [(copy / key).stat().st_mtime_ns for key in shards[:2]]
    (copy / shards[1]).write_bytes(b"?" * 1024)  # what lies there is not believed
    saves.run("pull", "gpt", "--into", str(copy))
    assert (copy / shards[0]).stat().st_mtime_ns == before_ns[0]
    assert (copy / shards[1]).read_bytes() == saves.file(shards[1]).read_bytes()
    assert (copy / wire.head_key(saves.id)).exists()


def test_pull_of_a_damaged_checkpoint_fails(saves: Saves, tmp_path: Path) -> None:
    ref = saves.save(10)
    [first, *_] = read_manifest(saves.store, ref).shards
    saves.file(first.key).write_bytes(b"!" * first.size)
    _, err = saves.run("pull", "gpt", "--into", str(tmp_path / "copy"), code=1)
    assert f"the download does not match the checkpoint: {first.key} has another digest" in err
    assert not (tmp_path / "copy" / first.key).exists()


@pytest.mark.req("CKP-23")
def test_pinned_checkpoint_is_kept_until_it_is_unpinned(saves: Saves) -> None:
    for step in (10, 20, 30):
        saves.save(step)
    assert "step 10 is pinned as best" in saves.run("pin", "gpt", "best", "--step", "10")[1]
    remove_old(saves.fence, 1, lambda: True)
    assert saves.steps() == [30, 10]
    assert saves.data("verify", "gpt", "best")["damage"] == []
    saves.run("pin", "gpt", "best")  # it moves to the newest
    remove_old(saves.fence, 1, lambda: True)
    assert saves.steps() == [30]
    saves.save(40)
    remove_old(saves.fence, 1, lambda: True)
    assert saves.steps() == [40, 30]
    saves.run("unpin", "gpt", "best")
    remove_old(saves.fence, 1, lambda: True)
    assert saves.steps() == [40]
    assert "has no pin 'best'" in saves.run("unpin", "gpt", "best", code=3)[1]


@pytest.mark.req("CKP-19")
def test_pin_names_a_complete_checkpoint_and_copies_nothing(saves: Saves) -> None:
    ref = saves.save(10)
    saves.save(20)
    before = {info.key: info.size for info in saves.store.list("")}
    saves.run("pin", "gpt", "best", "--step", "10")
    after = {info.key: info.size for info in saves.store.list("")}
    [pin] = after.keys() - before.keys()
    assert pin == wire.pin_key(saves.id, "best")
    assert {key: after[key] for key in before} == before
    assert wire.parse_pin(saves.store.get(pin)[0]).ref == ref
    assert saves.data("verify", "gpt", "best")["damage"] == [], "every byte of it is there"


def test_incomplete_checkpoint_is_not_pinned(saves: Saves) -> None:
    ref = saves.save(10)
    saves.save(20)
    saves.run("pin", "gpt", "best")
    saves.file(read_manifest(saves.store, ref).shards[3].key).unlink()
    _, err = saves.run("pin", "gpt", "best", "--step", "10", code=1)
    assert "step 10 is not all there any more" in err
    assert [item["pins"] for item in saves.data("ls", "gpt")["items"]] == [["best"], []]


@pytest.mark.parametrize("name", ["Best", "1", "a b", "../x", ""])
def test_invalid_pin_names_are_refused(saves: Saves, name: str) -> None:
    saves.save(10)
    assert "is not a name of a pin" in saves.run("pin", "gpt", name, code=2)[1]


def test_unreadable_pin_blocks_every_removal(saves: Saves) -> None:
    for step in (10, 20):
        saves.save(step)
    saves.store.put(wire.pin_key(saves.id, "best"), b"{}")
    with pytest.raises(wire.WireError, match="pins/best"):
        remove_old(saves.fence, 1, lambda: True)
    assert "pins/best" in saves.run("ls", "gpt", code=1)[1]


def test_rm_deletes_one_checkpoint_but_never_the_resume_point(saves: Saves) -> None:
    refs = [saves.save(step) for step in (10, 20, 30)]
    assert "step 20 is removed (5 objects)" in saves.run("rm", "gpt", "20")[1]
    assert saves.steps() == [30, 10]
    assert not saves.file(refs[1].manifest).parent.exists()
    _, err = saves.run("rm", "gpt", "30", code=1)
    assert "step 30 is the newest, and job gpt resumes from it" in err
    assert "spotctl cancel gpt first" in err
    saves.run("pin", "gpt", "best", "--step", "10")
    assert "spotctl ckpt unpin gpt best" in saves.run("rm", "gpt", "10", code=1)[1]
    assert "there are: 30, 10" in saves.run("rm", "gpt", "99", code=3)[1]
    saves.rig.finish(saves.id, 1, Outcome.CANCELLED)
    assert "--last" in saves.run("rm", "gpt", "30", code=1)[1]
    saves.run("rm", "gpt", "30", "--last")
    assert saves.data("ls", "gpt")["items"][0]["problem"].startswith("is gone")


def test_rm_is_recorded_in_the_database(saves: Saves) -> None:
    """Its storage cost ends then."""
    node = saves.rig.launch(saves.id, SPOT, ago_s=300)
    saves.rig.say(node, 250, "claimed", step=0, manifest="")
    refs = [saves.save(step) for step in (10, 20)]
    for ref in refs:
        event_data = {"step": ref.step, "manifest": ref.manifest, "bytes": 100}
        saves.rig.say(node, 200 - ref.step, "checkpoint", **event_data)
    saves.run("rm", "gpt", "10")
    removed = {row.step: row.removed_at_us for row in saves.rig.store.checkpoints.rows(saves.id)}
    assert removed[10] == pytest.approx(saves.rig.clock.now_us(), abs=5_000_000)
    assert removed[20] == 0


def test_pull_and_pin_are_audited(saves: Saves, tmp_path: Path) -> None:
    saves.save(10)
    saves.run("pin", "gpt", "best")
    saves.run("pull", "gpt", "--into", str(tmp_path))

    def rows() -> set[tuple[str, str]]:
        return {(row.action, row.outcome.value) for row in saves.rig.store.audit.rows(0, 0, 100)}

    until(lambda: {("ckpt pin", "done"), ("ckpt pull", "done")} <= rows())


# --- what a machine may write, and the box may read


def forged(saves: Saves, manifest: str, shard: str) -> None:
    """A pin `evil` of the job and the manifest it names, as the job's machines could write them."""
    stream = wire.Stream((wire.Shard(shard, 6, 6, ("0" * 64,), "sha256"),))
    made = wire.Manifest(saves.id, 1, 7, 0, 1, (stream,))
    saves.store.put(manifest, made.to_bytes())
    ref = wire.HeadRef(1, 7, manifest, wire.sha256(made.to_bytes()))
    saves.store.put(wire.pin_key(saves.id, "evil"), wire.Pin("evil", ref).to_bytes())


@pytest.mark.parametrize("outside", ["manifest", "shard"])
def test_keys_outside_the_job_folder_are_neither_read_nor_removed(
    saves: Saves, tmp_path: Path, outside: str
) -> None:
    """The box may read and delete the data of all jobs, a machine only its own job's folder."""
    saves.save(10)
    folder = f"jobs/{saves.id}/g00000001/s000000000007-x"
    other_jobs_key = "jobs/other/g00000001/s000000000007-x"
    saves.store.put(f"{other_jobs_key}/secret", b"secret")
    where = other_jobs_key if outside == "manifest" else folder
    forged(saves, f"{where}/MANIFEST.json", f"{other_jobs_key}/secret")
    item = next(one for one in saves.data("ls", "gpt")["items"] if one["step"] == 7)
    assert "is not in the job's folder" in item["problem"]
    _, err = saves.run("pull", "gpt", "7", "--into", str(tmp_path / "out"), code=1)
    assert "is not in the job's folder" in err
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    saves.run("pin", "gpt", "mine", "--step", "7", code=1)
    saves.run("unpin", "gpt", "evil")
    assert saves.steps() == [10]
    assert saves.store.get(f"{other_jobs_key}/secret")[0] == b"secret"


def test_rm_deletes_nothing_outside_the_job_folder(saves: Saves) -> None:
    """HEAD itself names the key; the job's machines write HEAD too."""
    saves.save(10)
    other_jobs_key = "jobs/other/g00000001/s000000000007-x"
    saves.store.put(f"{other_jobs_key}/MANIFEST.json", b"theirs")
    head, _ = saves.store.get(wire.head_key(saves.id))
    parsed_head = wire.parse_head(head)
    bad = replace(
        parsed_head, previous=(wire.HeadRef(1, 7, f"{other_jobs_key}/MANIFEST.json", "0" * 64),)
    )
    saves.store.put(wire.head_key(saves.id), bad.to_bytes())
    _, err = saves.run("rm", "gpt", "7", code=1)
    assert "is not in the job's folder" in err
    assert saves.store.get(f"{other_jobs_key}/MANIFEST.json")[0] == b"theirs"


def test_older_checkpoint_is_not_removed_while_the_newest_is_damaged(saves: Saves) -> None:
    """The job would resume from the older one."""
    first, second = saves.save(10), saves.save(20)
    saves.file(second.manifest).write_bytes(b"{}")
    _, err = saves.run("rm", "gpt", "10", code=1)
    assert "needs the older ones" in err
    assert saves.file(first.manifest).exists()


@pytest.fixture
def regional_store(saves: Saves, rig: Rig, tmp_path: Path) -> tuple[Saves, str]:
    """A newest checkpoint whose shards are in a store of the machine's region; its URL."""
    url = (tmp_path / "east").as_uri()
    rig.shards = (url,)
    saves.save(10)
    saves.save(20)
    head = saves.fence.head
    assert head is not None
    assert head.current is not None
    regional_url, old = open_store(url), read_manifest(saves.store, head.current)
    streams = []
    for stream in old.streams:
        shards = []
        for shard in stream.shards:
            key = shard.key.replace("s000000000020", "s000000000030")
            regional_url.put(key, saves.store.get(shard.key)[0])
            shards.append(replace(shard, key=key, store=url))
        streams.append(replace(stream, shards=tuple(shards)))
    key = head.current.manifest.replace("s000000000020", "s000000000030")
    saves.fence.commit(replace(old, step=30, streams=tuple(streams)), key=key)
    return saves, url


def test_shards_in_another_store_are_listed_verified_pinned_and_removed(
    regional_store: tuple[Saves, str], tmp_path: Path
) -> None:
    saves, url = regional_store
    item = saves.data("ls", "gpt")["items"][0]
    assert (item["step"], item["stores"], item["problem"]) == (30, [url], "")
    assert "shards in file:///" in saves.run("ls", "gpt", "-o", "wide")[0]
    assert saves.data("verify", "gpt")["damage"] == []
    saves.run("pin", "gpt", "best", "--step", "30")
    [shard, *_] = sorted((tmp_path / "east").rglob("r00000-0000?"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"!")
    assert "another digest" in saves.run("verify", "gpt", code=1)[1]
    shard.write_bytes(content)
    saves.save(40)
    saves.run("unpin", "gpt", "best")
    saves.run("rm", "gpt", "30")
    assert not list(open_store(url).list("jobs/"))
    assert saves.steps() == [40, 20, 10]


def test_pulled_checkpoint_is_complete_by_itself(
    regional_store: tuple[Saves, str], tmp_path: Path
) -> None:
    saves, _ = regional_store
    saves.run("pull", "gpt", "--into", str(tmp_path / "copy"))
    copy = open_store((tmp_path / "copy").as_uri())
    head = wire.parse_head(copy.get(wire.head_key(saves.id))[0])
    assert head.current is not None
    manifest = read_manifest(copy, head.current)
    assert manifest.stores == ()
    assert read_stream(copy, manifest, 0) == step_bytes(20)


def test_foreign_store_is_not_opened_and_the_error_names_the_fix(
    regional_store: tuple[Saves, str], rig: Rig
) -> None:
    """Machines write manifests, and the box has rights to other buckets."""
    saves, url = regional_store
    rig.shards = ()
    item = saves.data("ls", "gpt")["items"][0]
    assert re.search(rf"{url}, which is not one of .* shards = true", item["problem"])
    assert "shards = true" in saves.run("verify", "gpt", code=1)[1]
