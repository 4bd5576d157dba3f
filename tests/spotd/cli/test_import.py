"""`spotctl ckpt import`.

An export, or another job's checkpoint, becomes the first checkpoint of a new job, bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.wire import EXIT_FINISHED, Manifest, head_key, parse_head
from tests.spotd.api.rig import JOB_FILE, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.saves import Saver
from tests.spotd.cli.sharded import SHAPES, save_sharded, tensor_bytes
from tests.trainer.rig import AgentEnd, Trainer
from trainer.fence import Fence
from trainer.reference.compare import first_difference
from trainer.saver.reader import read_manifest, read_stream
from trainer.saver.tensors import assemble


class Imports:
    """A job with a saved checkpoint, and `spotctl ckpt` on it."""

    def __init__(self, rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig, self._spotctl, self._capsys = rig, spotctl, capsys
        self.saver = Saver(rig, rig.submit())

    def run(self, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        """Run `spotctl ckpt`; returns its JSON and stderr."""
        exit_code = self._spotctl(self.rig, "ckpt", *arguments, "-o", "json")
        out, err = self._capsys.readouterr()
        assert exit_code == code, err
        return json.loads(out) if out else {}, err

    def export(self, folder: Path, kind: str, *more: str) -> Path:
        self.run("export", "gpt", "--format", kind, "--into", str(folder), *more)
        return folder

    def read(self, job_id: str) -> tuple[Manifest, dict[str, bytes]]:
        """Read a checkpoint as a resuming node does, verifying every byte."""
        store = open_store(self.rig.checkpoint_store)
        head = parse_head(store.get(head_key(job_id))[0])
        assert head.current is not None
        assert (head.released, head.final, head.previous) == (True, False, ())
        manifest = read_manifest(store, head.current)
        streams = [read_stream(store, manifest, n) for n in range(len(manifest.streams))]
        return manifest, {t.name: bytes(assemble(t, streams)) for t in manifest.tensors}


@pytest.fixture
def imports(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> Imports:
    return Imports(rig, spotctl, capsys)


def layout_of(manifest: Manifest) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in manifest.tensors}


def test_complete_export_keeps_its_step_and_state(
    imports: Imports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.api_client.upload.SHARD_BYTES", 4096)
    original = save_sharded(imports.saver)
    folder = imports.export(tmp_path / "x", "safetensors")
    imported, _ = imports.run("import", str(folder))
    assert (imported["step"], imported["weights_only"], imported["tensors"]) == (
        10,
        False,
        len(SHAPES),
    )
    manifest, tensors = imports.read(imported["id"])
    assert len(manifest.shards) > 1
    assert tensors == {name: tensor_bytes(tensor) for name, tensor in original.items()}
    assert layout_of(manifest) == SHAPES
    assert manifest.state == {"step": 10, "config": {"width": 30}}
    assert all(block.offset % 64 == 0 for t in manifest.tensors for block in t.blocks)


def test_hugging_face_model_is_weights_for_step_0(
    imports: Imports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.checkpoint_convert.export.HF_BYTES", 4900)
    original = save_sharded(imports.saver)
    folder = imports.export(tmp_path / "x", "hf")
    assert len(list(folder.glob("model-*.safetensors"))) == 2
    imported, _ = imports.run("import", str(folder))
    assert (imported["step"], imported["weights_only"]) == (0, True)
    manifest, tensors = imports.read(imported["id"])
    assert tensors == {
        name[6:]: tensor_bytes(tensor)
        for name, tensor in original.items()
        if name.startswith("model.")
    }
    assert "config" not in manifest.state


def test_part_of_an_export_is_weights(imports: Imports, tmp_path: Path) -> None:
    original = save_sharded(imports.saver)
    folder = imports.export(tmp_path / "x", "safetensors")
    imported, _ = imports.run("import", str(folder), "--only", "adamw.mean.")
    manifest, tensors = imports.read(imported["id"])
    assert (imported["step"], imported["weights_only"]) == (0, True)
    assert tensors == {"rows.weight": tensor_bytes(original["adamw.mean.rows.weight"])}
    assert "imported" in manifest.state
    err = imports.run("import", str(folder), "--only", "x.", code=1)[1]
    assert "no tensor begins with 'x.'" in err


def test_checkpoint_of_another_job_keeps_its_streams(imports: Imports) -> None:
    original = save_sharded(imports.saver)
    imports.run("pin", "gpt", "best")
    imports.saver.save(20)
    imported, _ = imports.run("import", "--job", "gpt", "--step", "best")
    assert (imported["step"], imported["weights_only"]) == (10, False)
    manifest, tensors = imports.read(imported["id"])
    assert (len(manifest.streams), manifest.world_size) == (2, 2)
    assert tensors == {name: tensor_bytes(tensor) for name, tensor in original.items()}


def test_job_continues_from_the_import(imports: Imports, tmp_path: Path) -> None:
    save_sharded(imports.saver)
    imported, _ = imports.run("import", str(imports.export(tmp_path / "x", "safetensors")))
    client = Client(imports.rig.socket)
    body = {"yaml": JOB_FILE, "name": "second", "request_id": "r", "continue": imported["id"]}
    job = client.call(routes.SUBMIT_JOB(), body)
    assert (job["id"], job["step"]) == (imported["id"], 10)
    [event] = imports.rig.store.events.rows(imported["id"])
    assert event.event.text.startswith("starts from the import at step 10 in file://")
    assert imports.run("verify", "second")[0]["damage"] == []


def test_damaged_source_commits_nothing(imports: Imports) -> None:
    save_sharded(imports.saver)
    shard = min(imports.saver.file("jobs").rglob("r00001-00001"))
    data = bytearray(shard.read_bytes())
    data[3] ^= 1
    shard.write_bytes(data)
    assert "does not match the checkpoint" in imports.run("import", "--job", "gpt", code=1)[1]
    assert [path.parent.name for path in imports.saver.file("jobs").rglob("HEAD")] == [
        imports.saver.id
    ]


def test_training_continues_from_an_export_with_the_same_losses(
    imports: Imports, tmp_path: Path
) -> None:
    job, store = imports.rig.submit("trained"), imports.rig.checkpoint_store
    env = {"SPOTD_STORE_URL": store}
    uninterrupted = Trainer(tmp_path, steps=10, job_id=job, env=env)
    with AgentEnd() as agent:
        assert uninterrupted.run(1, agent) == EXIT_FINISHED, uninterrupted.output()
        losses = agent.losses()
    out = str(tmp_path / "x")
    imports.run("export", "trained", "--step", "5", "--format", "safetensors", "--into", out)
    imported, _ = imports.run("import", out)
    assert imported["step"] == 5
    with AgentEnd() as agent:
        assert (
            Trainer(tmp_path, steps=10, job_id=imported["id"], env=env).run(2, agent)
            == EXIT_FINISHED
        )
        assert agent.of("claimed")[-1]["step"] == 5
        assert agent.losses() == {step: loss for step, loss in losses.items() if step > 5}
    objects = open_store(store)
    assert first_difference(objects, job, objects, imported["id"]) is None


def broken(folder: Path, header: Any, data: bytes = b"") -> Path:
    folder.mkdir()
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def entry(kind: str = "F32", shape: Any = (2,), ends: Any = (0, 8)) -> dict[str, Any]:
    return {"w": {"dtype": kind, "shape": shape, "data_offsets": ends}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\x80\x02}q\x00.", "has no header of safetensors"),
        (b"[" * 100_000, "has no header of safetensors"),
        ([1], "has no header of safetensors"),
        ({"w": 1}, "has an invalid entry for tensor w"),
        (entry(shape=(-2,), ends=(8, 0)), "has an invalid offset for tensor w"),
        (entry(shape=(2.0,)), "has an invalid offset for tensor w"),
        (entry(shape=(3,)), "has 8 bytes of tensor w, F32 [3]"),
        (entry("F4", (2,), (0, 1)), "tensor w in model.safetensors is of 'F4'"),
        (entry(shape=(4,), ends=(0, 16)), "ends before tensor w does"),
    ],
)
def test_invalid_file_is_refused_with_the_name_of_the_tensor(
    imports: Imports, tmp_path: Path, header: Any, words: str
) -> None:
    folder = broken(tmp_path / "x", header, b"12345678")
    assert words in imports.run("import", str(folder), code=1)[1]
    assert not (imports.rig.folder / "ckpt" / "jobs" / "jjob000099").exists()


def test_incomplete_folder_names_the_missing_file(imports: Imports, tmp_path: Path) -> None:
    folder = broken(tmp_path / "x", entry(), b"12345678")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model.safetensors", "v": "other"}}))
    assert "names 'other', which is not there" in imports.run("import", str(folder), code=1)[1]
    index.write_text(json.dumps({"weight_map": {"w": "../model.safetensors"}}))
    assert "which is not there" in imports.run("import", str(folder), code=1)[1]
    index.write_text(json.dumps({"weight_map": dict.fromkeys("vw", "model.safetensors")}))
    assert "are missing: v" in imports.run("import", str(folder), code=1)[1]
    index.unlink()
    (folder / "again.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert (
        "tensor w is in again.safetensors and in" in imports.run("import", str(folder), code=1)[1]
    )


def test_pickles_are_refused_and_not_read(imports: Imports, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    err = imports.run("import", str(tmp_path), code=1)[1]
    assert "pytorch_model.bin, which is a pickle" in err
    assert "nothing is unpickled" in err


def test_exactly_one_source_is_accepted(imports: Imports) -> None:
    for line in ([], ["x", "--job", "gpt"], ["x", "--step", "1"], ["--job", "gpt", "--only", "a"]):
        assert "name either a FOLDER" in imports.run("import", *line, code=2)[1]


# --- the daemon's side


def test_import_overwrites_no_job(imports: Imports, tmp_path: Path) -> None:
    save_sharded(imports.saver)
    imported, _ = imports.run("import", str(imports.export(tmp_path / "x", "safetensors")))
    client, store = Client(imports.rig.socket), imports.rig.checkpoint_store
    query = {"store": store, "step": 0, "stream": 0, "number": 0, "size": 1, "digests": "0" * 32}
    with pytest.raises(UserError, match="the received data is damaged"):
        client.put_shard("jaaaaaaaaa", b"x", query)
    digest = "f2c1f1d1"  # of no bytes that follow
    with pytest.raises(UserError, match="digests must be"):
        client.put_shard("jaaaaaaaaa", b"x", query | {"digests": digest})
    from xxhash import xxh3_128_hexdigest

    good = query | {"digests": xxh3_128_hexdigest(b"x")}
    with pytest.raises(UserError, match="has checkpoints already"):
        client.put_shard(imported["id"], b"x", good)
    with pytest.raises(UserError, match="already exists"):
        client.put_shard(imports.saver.id, b"x", good)
    with pytest.raises(UserError, match="is not a job's id"):
        client.put_shard("JAAAAAAAAA", b"x", good)
    assert client.put_shard("jaaaaaaaaa", b"x", good)["size"] == 1


def test_commit_needs_its_shards_and_is_idempotent(
    imports: Imports,
) -> None:
    from xxhash import xxh3_128_hexdigest

    client, store = Client(imports.rig.socket), imports.rig.checkpoint_store
    job = "jaaaaaaaaa"
    digest = xxh3_128_hexdigest(b"12345678")
    query = {"store": store, "step": 3, "stream": 0, "number": 0, "size": 8, "digests": digest}
    key = f"jobs/{job}/g00000001/s000000000003-import/r00000-00000"
    shard = {"key": key, "size": 8, "chunk": 16 << 20, "digests": [digest], "kind": "xxh3"}
    block = {"at": [0], "shape": [2], "stream": 0, "offset": 0}
    tensor = {"name": "w", "dtype": "float32", "shape": [2], "blocks": [block]}
    manifest = {"step": 3, "created_at_us": 5, "world_size": 1, "state": {}}
    manifest |= {"streams": [{"shards": [shard]}], "tensors": [tensor]}

    def commit(**other: Any) -> dict[str, Any]:
        body = {"store": store, "manifest": {**manifest, **other}}
        return client.call(routes.COMMIT_IMPORT(name=job), body)

    with pytest.raises(UserError, match="r00000-00000 is missing or incomplete"):
        commit()
    client.put_shard(job, b"12345678", query)
    with pytest.raises(UserError, match="the received data is damaged"):
        client.put_shard(job, b"1234567", query)
    foreign = {**shard, "key": f"jobs/{imports.saver.id}/HEAD"}
    with pytest.raises(UserError, match="is not a shard of this import"):
        commit(streams=[{"shards": [foreign]}])
    with pytest.raises(UserError, match="the manifest cannot be read"):
        commit(tensors=[{"name": 1}])
    assert commit()["bytes"] == 8
    assert commit()["bytes"] == 8
    with pytest.raises(UserError, match="already exists with other content"):
        commit(created_at_us=6)
    assert imports.read(job)[1] == {"w": b"12345678"}
    objects = open_store(store)
    objects.delete(head_key(job))
    Fence(objects, job, 1, "another").claim()
    with pytest.raises(UserError, match="has checkpoints already"):
        commit()


# --- torch.distributed.checkpoint


def test_dcp_folder_is_imported_bit_for_bit(imports: Imports, tmp_path: Path) -> None:
    original = save_sharded(imports.saver)
    folder = imports.export(tmp_path / "x", "dcp")
    imported, _ = imports.run("import", str(folder))
    assert (imported["step"], imported["weights_only"], imported["left_out"]) == (10, False, [])
    manifest, tensors = imports.read(imported["id"])
    assert tensors == {name: tensor_bytes(tensor) for name, tensor in original.items()}
    assert layout_of(manifest) == SHAPES
    assert manifest.state["config"] == {"width": 30}
    (folder / "spotd.json").unlink()
    imported, _ = imports.run("import", str(folder), "--only", "model.")
    assert (imported["step"], imported["weights_only"], imported["tensors"]) == (0, True, 5)


def save_dcp(folder: Path, state: dict[str, Any]) -> Any:
    """Its metadata."""
    from torch.distributed.checkpoint import state_dict_saver

    with pytest.warns(UserWarning, match="distributed"):
        return state_dict_saver.save(state, checkpoint_id=folder, no_dist=True)


def test_blocks_of_several_ranks_are_joined_and_other_entries_left_out(
    imports: Imports, tmp_path: Path
) -> None:
    import pickle

    import torch
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorStorageMetadata,
    )

    original = torch.arange(40 * 6, dtype=torch.int32).view(40, 6)
    halves = {"top": original[:, :4].clone(), "end": original[:, 4:].clone()}
    meta = save_dcp(tmp_path / "x", {**halves, "step": 7})
    parts = {"top": (0, 4), "end": (4, 2)}
    chunks, stored = [], dict(meta.storage_data)
    for name, (start, width) in parts.items():
        at, size = torch.Size([0, start]), torch.Size([40, width])
        chunks.append(ChunkStorageMetadata(at, size))
        stored[MetadataIndex("w", at)] = stored.pop(MetadataIndex(name, torch.Size([0, 0])))
        about = meta.state_dict_metadata.pop(name)
    meta.state_dict_metadata["w"] = TensorStorageMetadata(about.properties, original.shape, chunks)
    meta.storage_data = stored
    index = tmp_path / "x" / ".metadata"
    index.write_bytes(pickle.dumps(meta))
    imported, _ = imports.run("import", str(tmp_path / "x"))
    assert (imported["tensors"], imported["left_out"]) == (1, ["step"])
    manifest, tensors = imports.read(imported["id"])
    assert tensors == {"w": tensor_bytes(original)}
    assert len(manifest.tensors[0].blocks) == 2
    del chunks[1]
    index.write_bytes(pickle.dumps(meta))
    err = imports.run("import", str(tmp_path / "x"), code=1)[1]
    assert "the blocks of tensor w are not all of it" in err


def test_block_outside_its_storage_or_folder_is_refused(imports: Imports, tmp_path: Path) -> None:
    import pickle
    from dataclasses import replace

    import torch

    folder, original = tmp_path / "x", torch.arange(20, dtype=torch.int16)
    meta = save_dcp(folder, {"w": original[7:12].clone()})
    torch.save(original[7:12], folder / "f")
    torch.save(original[7:12], tmp_path / "f")
    [(key, info)] = meta.storage_data.items()
    length = (folder / "f").stat().st_size
    for path, wrong in (("f", ""), ("../f", "its location is not a file of the folder")):
        meta.storage_data[key] = replace(info, relative_path=path, offset=0, length=length)
        (folder / ".metadata").write_bytes(pickle.dumps(meta))
        imported, err = imports.run("import", str(folder), code=1 if wrong else 0)
        assert wrong in err
        if not wrong:
            assert imports.read(imported["id"])[1] == {"w": tensor_bytes(original[7:12])}


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickled_index_is_never_executed(imports: Imports, tmp_path: Path) -> None:
    import pickle

    import torch

    meta = save_dcp(tmp_path / "x", {"w": torch.ones(3), "t": torch.ones(2, 3)})
    index = tmp_path / "x" / ".metadata"
    for evil in (Evil(tmp_path / "done"), {"state_dict_metadata": Evil(tmp_path / "done")}):
        index.write_bytes(pickle.dumps(evil))
        err = imports.run("import", str(tmp_path / "x"), code=1)[1]
        assert ".metadata is none of torch's" in err
    meta.planner_data = Evil(tmp_path / "done")  # of no interest
    index.write_bytes(pickle.dumps(meta))
    assert imports.run("import", str(tmp_path / "x"))[0]["tensors"] == 2
    assert not (tmp_path / "done").exists()
    data = tmp_path / "x" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-700])
    err = imports.run("import", str(tmp_path / "x"), code=1)[1]
    assert "cannot be imported: __0_0.distcp is damaged at byte" in err
    data.unlink()
    assert "__0_0.distcp is not there" in imports.run("import", str(tmp_path / "x"), code=1)[1]
    save_dcp(tmp_path / "y", {"w": torch.ones(2, 3).t()})
    err = imports.run("import", str(tmp_path / "y"), code=1)[1]
    assert "tensor w cannot be imported: it is not stored in row-major order" in err
