"""A small GPT-2 with transformers' Trainer and whatever arguments of it a test gives.

    finetune.py '{"max_steps": 30, ...}' [--patience N] [--trainings N] [--data KIND]
        [--loader torchdata|counting] [--plain]

Prints the evaluations and writes what `train()` left to result-N.json, and the rows that it took to
rows.txt. With `--plain` it runs without spotd. Not a test itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.trainer.hook.finetune_data import KINDS, CountingLoader
from tests.trainer.hook.holding import hold_until


def hold(where: str, step: int) -> None:
    """Wait at the place and step that HELD_IN names until the file HELD_UNTIL exists.

    With HELD_RANK only that rank does, and with HELD_TRAINING in the training of that number.
    """
    env, training = os.environ, str(Rows.training)
    is_held = (
        env.get("HELD_IN") == f"{where} {step}"
        and env.get("RANK", "0") == env.get("HELD_RANK", env.get("RANK", "0"))
        and training == env.get("HELD_TRAINING", training)
    )
    if is_held:
        Path(f"held in {where}").touch()
        hold_until(Path(os.environ["HELD_UNTIL"]))


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    trainer: Trainer | None = None
    training = 0

    def __init__(self, count: int, seed: int, name: str) -> None:
        self.name = name
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, 64, (count, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if Rows.trainer is not None:
            hold(self.name, Rows.trainer.state.global_step)
        if self.name == "data":
            with Path("rows.txt").open("a") as file:
                file.write(f"{index}\n")
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Hold(TrainerCallback):
    def __init__(self, number: int) -> None:
        self.number = number

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        hold("step", state.global_step)
        hold(f"training-{self.number}", state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        hold("log", state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        hold("report", state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        hold("epoch", state.global_step)


def digest(model: torch.nn.Module) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        total.update(name.encode() + whole.detach().cpu().numpy().tobytes())
    return total.hexdigest()


def stand_in_for_hub() -> None:
    """Write the messages of commits to a file in place of sending them."""
    from transformers import trainer as module

    def upload(**values: Any) -> Any:
        names = sorted(path.name for path in Path(values["folder_path"]).glob("*.safetensors"))
        with Path("commits.txt").open("a") as file:
            file.write(f"{values['commit_message']} {' '.join(names)}\n")
        return SimpleNamespace(done=lambda: True, is_done=lambda: True, result=lambda: None)

    hub = SimpleNamespace(upload_folder=upload)
    for name, value in {"upload_folder": upload, "hf_api": lambda: hub}.items():
        if hasattr(module, name):
            setattr(module, name, value)
    Trainer.init_hf_repo = lambda self, *_, **__: setattr(self, "hub_model_id", "me/model")
    Trainer.push_in_progress = None


def final_files(trainer: Trainer) -> dict[str, Any]:
    """What `save_model()` and `save_state()` write after the training."""
    if not trainer.args.push_to_hub:
        trainer.save_model("out-final")
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return {}
    state = json.loads((Path(trainer.args.output_dir) / "trainer_state.json").read_text())
    for name in ("log_history", "total_flos", "stateful_callbacks"):
        del state[name]
    files = sorted(path.name for path in Path("out-final").glob("*model*"))
    return {"state": state, "files": files}


def give_loader(trainer: Trainer, kind: str) -> None:
    """Have the trainer read its data by a loader that keeps a state."""
    options: dict[str, Any] = {
        "batch_size": trainer.args.per_device_train_batch_size,
        "num_workers": trainer.args.dataloader_num_workers,
        "collate_fn": trainer.data_collator,
    }
    if kind == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader: Any = StatefulDataLoader(trainer.train_dataset, **options)
    else:
        loader = CountingLoader(trainer.train_dataset, **options)
    trainer.get_train_dataloader = lambda: loader  # type: ignore[method-assign]


def train(arguments: argparse.Namespace, number: int, model: torch.nn.Module) -> Trainer:
    settings = {
        "output_dir": "out",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "logging_steps": 3,
        "seed": 11 + number,
        **json.loads(arguments.settings),
    }
    callbacks: list[TrainerCallback] = [Hold(number)]
    if arguments.patience:
        callbacks.append(EarlyStoppingCallback(arguments.patience))
    optimizers: Any = (None, None)
    if arguments.own_optimizer:
        optimizers = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None
    trainer = Trainer(
        model=None if arguments.model_init else model,
        model_init=(lambda: GPT2LMHeadModel(model.config)) if arguments.model_init else None,
        optimizers=optimizers,
        args=TrainingArguments(**settings),
        train_dataset=KINDS[arguments.data]() if arguments.data else Rows(40, number, "data"),
        eval_dataset=Rows(16, 99, "evaluation"),
        callbacks=callbacks,
    )
    if arguments.loader:
        give_loader(trainer, arguments.loader)
    if not arguments.plain:
        import spotd_hook

        trainer.add_callback(spotd_hook.hf.Callback(trainer))
    Rows.trainer, Rows.training = trainer, number
    output = trainer.train(
        trial={} if arguments.trial else None,
        resume_from_checkpoint=arguments.resume,
        ignore_keys_for_eval=["logits"],
    )
    timed = ("runtime", "per_second", "flos")
    history = [
        {name: value for name, value in line.items() if not any(word in name for word in timed)}
        for line in trainer.state.log_history
    ]
    result = {
        "weights": digest(trainer.model),
        "log_history": history,
        "training_loss": output.training_loss,
        "global_step": trainer.state.global_step,
        "best_step": trainer.state.best_global_step,
        "best_metric": trainer.state.best_metric,
        "best_folder": trainer.state.best_model_checkpoint,
        "final": final_files(trainer),
    }
    if not trainer.is_world_process_zero():
        return trainer
    if trainer.state.best_model_checkpoint:
        best = GPT2LMHeadModel.from_pretrained(trainer.state.best_model_checkpoint)
        result["best_weights"] = digest(best)
    Path(f"result-{number}.json").write_text(json.dumps(result, indent=1))
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings")
    parser.add_argument("--patience", type=int, default=0)
    parser.add_argument("--trainings", type=int, default=1)
    parser.add_argument("--resume")
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--model-init", action="store_true")
    parser.add_argument("--own-optimizer", action="store_true")
    parser.add_argument("--data", choices=KINDS, default="")
    parser.add_argument("--loader", default="")
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    Path("rows.txt").write_text("")
    stand_in_for_hub()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    for number in range(arguments.trainings):
        config = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=64)
        model = GPT2LMHeadModel(config)
        train(arguments, number, model)


if __name__ == "__main__":
    main()
