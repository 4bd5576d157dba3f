"""Imported weights in a new model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from providers.stores import open_store
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.cli.import_job import import_checkpoint
from spotd.spec.sources import CheckpointOrigin
from spotd.wire import EXIT_FINISHED, head_key, parse_head
from tests.spotd.api.rig import Rig
from tests.spotd.cli.saves import Saver
from tests.spotd.cli.sharded import save_sharded, tensor_bytes
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd
from trainer.hook.spotd_hook.objects import stateful
from trainer.hook.spotd_hook.weights import load_weights
from trainer.saver.reader import read_manifest, read_stream
from trainer.saver.tensors import assemble


class Tied(nn.Module):
    """A model with tied weights, like language models: the last layer shares the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
        self.last.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: torch.randn_like(value, dtype=torch.float32)
        for name, value in model.named_parameters()
    } | {name: value + 1 for name, value in model.named_buffers()}


def test_a_tensor_with_two_names_comes_under_one_and_types_are_the_model_s() -> None:
    model = Tied().to(torch.bfloat16)
    weights = weights_of(model)
    assert "last.weight" not in weights
    optimizer = torch.optim.AdamW(model.parameters())
    load_weights(stateful({"optimizer": optimizer, "net": model}), weights)
    assert model.last.weight is model.first.weight
    assert torch.equal(model.last.weight, weights["first.weight"].to(torch.bfloat16))
    assert model.norm.num_batches_tracked.item() == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first.weight": None}, "do not fit net: missing: first.weight, last.weight."),
        ({"lm_head.bias": torch.zeros(1)}, "unknown to it: lm_head.bias."),
        ({"first.weight": torch.zeros(3, 7)}, "first.weight is [3, 7] and not [7, 3]"),
        ({f"x{n}": torch.zeros(1) for n in range(8)}, "x0, x1, x2, x3, x4 and 3 more"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(
    change: dict[str, Any], message: str
) -> None:
    model = Tied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {
        name: value for name, value in (weights_of(model) | change).items() if value is not None
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        load_weights(stateful({"net": model}), weights)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_they_are_of_one_model() -> None:
    for models in ({"a": Tied(), "b": Tied()}, {"o": torch.optim.SGD(Tied().parameters())}):
        with pytest.raises(ValueError, match=r"are of one model, and here are: (a, b|none)"):
            load_weights(stateful(models), {})


@pytest.mark.behaviour("imported weights (`spotctl ckpt import`), bit for bit", way="Run")
def test_a_program_begins_with_a_model_s_folder_and_ends_with_the_same_bits(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spotd.checkpoint_convert.export import export_into
    from spotd.checkpoint_convert.formats import Format

    saver = Saver(rig, rig.submit())
    expected = save_sharded(saver)
    client = Client(rig.socket)
    listed = client.call(routes.LIST_CHECKPOINTS(job="gpt"))
    folder = tmp_path / "hf"
    export_into(
        client=client,
        listing=listed,
        which="",
        export_format=Format.HF,
        folder=folder,
        prefix=None,
        on_progress=lambda *_: None,
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with import_checkpoint(client, CheckpointOrigin(folder), "", lambda *_: None) as found:
        job = found["id"]
    env = {"SPOTD_STORE_URL": rig.checkpoint_store, "SPOTD_JOB_ID": job}
    wrong = Program(tmp_path / "wrong", "tests/trainer/hook/given.py", ("--wide", "41"), env=env)
    with AgentEnd() as agent:
        assert wrong.run(2, agent) == 1
    assert "rows.weight is [40, 30] and not [41, 30]" in wrong.output()
    program = Program(tmp_path / "p", "tests/trainer/hook/given.py", env=env)
    with AgentEnd() as agent:
        assert program.run(3, agent) == EXIT_FINISHED, program.output()
        assert agent.of("claimed")[-1]["step"] == 0
    assert "begins with 5 imported tensors" in program.output()
    assert "step 0 " in program.output()
    store = open_store(rig.checkpoint_store)
    head = parse_head(store.get(head_key(job))[0])
    assert head.current is not None
    assert (head.final, head.current.step) == (True, 3)
    manifest = read_manifest(store, head.current)
    streams = [read_stream(store, manifest, 0)]
    found = {t.name: bytes(assemble(t, streams)) for t in manifest.tensors}
    for name, tensor in expected.items():
        if name.startswith("model."):
            assert found[name] == tensor_bytes(tensor), name
    assert found["model.again.weight"] == found["model.columns.weight"]


@pytest.fixture
def rig() -> Any:
    made = Rig().start()
    yield made
    made.close()
