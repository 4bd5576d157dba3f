"""transformers' Trainer finds its best checkpoint again on the next machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.stores.local import LocalStore
from tests.trainer.directory.rig import Generation
from tests.trainer.saver.rig import Gate

LOSSES = {5: 5.0, 10: 4.0, 15: 1.0, 20: 3.0, 25: 2.0, 30: 2.5}
LEAVES_AT = 25


def machine(root: Path, store: Gate, number: int, monkeypatch: pytest.MonkeyPatch) -> Generation:
    """A generation whose program runs beside its folder `out`."""
    generation = Generation(root, store, number, keep=1)
    generation.folder = root / f"machine-{number}" / "out"
    generation.folder.parent.mkdir()
    generation.settings = replace(generation.settings, folder=generation.folder)
    generation.restart()
    monkeypatch.chdir(generation.folder.parent)
    return generation.start()


def trainer(leaves_at: int) -> Any:
    """A Trainer of a small model, whose evaluations give LOSSES."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback
    from transformers import TrainingArguments as Arguments

    class Told(Trainer):  # type: ignore[misc]
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            metrics = {"eval_loss": LOSSES[self.state.global_step]}
            self.log(metrics)
            control: Any = getattr(self, "control")  # noqa: B009 - without a type
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, control, metrics
            )
            return metrics

    class Leaves(TrainerCallback):  # type: ignore[misc]
        def on_save(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == leaves_at:
                control.should_training_stop = True

    torch.manual_seed(1)
    shape = GPT2Config(vocab_size=8, n_positions=4, n_embd=8, n_layer=1, n_head=1)
    rows = [{"input_ids": torch.tensor([1, 2, 3, 4]), "labels": torch.tensor([1, 2, 3, 4])}] * 40
    arguments = Arguments(
        output_dir="out",
        max_steps=30,
        save_steps=5,
        eval_steps=5,
        eval_strategy="steps",
        save_total_limit=2,
        load_best_model_at_end=leaves_at > LEAVES_AT,
        metric_for_best_model="eval_loss",
        per_device_train_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    return Told(
        model=GPT2LMHeadModel(shape),
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows[:1],
        callbacks=[Leaves()],
    )


def test_the_best_checkpoint_of_another_machine_is_loaded_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="pip install '.[examples]'")
    from safetensors.torch import load_file

    store = Gate(LocalStore(tmp_path / "store"))
    first = machine(tmp_path, store, 1, monkeypatch)
    for leaves_at in (15, LEAVES_AT):
        trainer(leaves_at).train(resume_from_checkpoint=leaves_at > 15)
        first.settle()
    assert [path.name for path in first.checkpoints()] == ["checkpoint-15", "checkpoint-25"]
    best = load_file(first.folder / "checkpoint-15" / "model.safetensors")
    second = machine(tmp_path, store, 2, monkeypatch)
    assert [path.name for path in second.checkpoints()] == ["checkpoint-15", "checkpoint-25"]
    program = trainer(leaves_at=99)
    program.train(resume_from_checkpoint=True)
    assert program.state.global_step == 30
    assert program.state.best_model_checkpoint == "out/checkpoint-15"
    own = program.model.state_dict()
    assert all(bool((own[name] == best[name]).all()) for name in best)
    assert [path.name for path in second.checkpoints()] == ["checkpoint-15", "checkpoint-30"]
