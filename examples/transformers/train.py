"""transformers' Trainer, saved by spotd's engine: one line more than without.

    # to try it without a job, in spotd's checkout: pip install '.[torch,examples]'
    python train.py

A tiny model of its own and made-up data, so that it runs anywhere in seconds; `--lora` trains
adapters alone.
"""

import argparse

import spotd_hook
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

LENGTH = 16


class Sums(Dataset[dict[str, torch.Tensor]]):
    """Rows in which each number is the sum of the two before it."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        row = [at % 7, at % 11]
        while len(row) < LENGTH:
            row.append((row[-1] + row[-2]) % 32)
        return {"input_ids": torch.tensor(row), "labels": torch.tensor(row)}


def make_model(*, lora: bool) -> torch.nn.Module:
    shape = GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(shape)
    if not lora:
        return model
    return get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--fsdp", action="store_true", help="FSDP2, under torchrun")
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(1)
    sharded = {"fsdp": "full_shard", "fsdp_config": {"version": 2}} if args.fsdp else {}
    settings = TrainingArguments(
        output_dir="out",
        max_steps=args.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
        **sharded,
    )
    trainer = Trainer(make_model(lora=args.lora), settings, train_dataset=Sums())
    trainer.add_callback(spotd_hook.hf.Callback(trainer))  # the line
    trainer.train()


if __name__ == "__main__":
    main()
