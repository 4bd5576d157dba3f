"""transformers' Trainer as it is: nothing of spotd in it. job.yaml beside it names its folder.

    pip install 'transformers[torch]' && python train.py

A tiny model of its own and made-up data, so that it runs anywhere in seconds.
"""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

LENGTH = 16
BATCH = 8


class Sums(Dataset[dict[str, torch.Tensor]]):
    """Rows in which each number is the sum of the two before it, and that take a while."""

    def __init__(self, row_s: float) -> None:
        self._row_s = row_s

    def __len__(self) -> int:
        return 256

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        time.sleep(self._row_s)
        row = [at % 7, at % 11]
        while len(row) < LENGTH:
            row.append((row[-1] + row[-2]) % 32)
        return {"input_ids": torch.tensor(row), "labels": torch.tensor(row)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--step-time-ms", type=float, default=0.0, help="at least")
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(1)
    shape = GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    settings = TrainingArguments(
        output_dir=args.out,
        max_steps=args.steps,
        save_steps=args.save_steps,
        save_total_limit=3,
        enable_jit_checkpoint=True,  # at a SIGTERM, 3 s later
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    rows = Sums(args.step_time_ms / 1000 / BATCH)
    trainer = Trainer(GPT2LMHeadModel(shape), settings, train_dataset=rows)
    last = get_last_checkpoint(args.out) if Path(args.out).is_dir() else None
    print("goes on from", last, flush=True)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
