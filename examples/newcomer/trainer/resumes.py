"""transformers' Trainer as in its quick tour, and train() goes on from the newest checkpoint."""

import os
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sums(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, at):
        time.sleep(0.01)
        row = [at % 7, at % 11]
        while len(row) < 16:
            row.append((row[-1] + row[-2]) % 32)
        return {"input_ids": torch.tensor(row), "labels": torch.tensor(row)}


shape = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2)
settings = TrainingArguments(
    output_dir="out",
    max_steps=int(os.environ.get("STEPS", "200")),
    save_steps=20,
    per_device_train_batch_size=4,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(GPT2LMHeadModel(shape), settings, train_dataset=Sums())
trainer.train(resume_from_checkpoint=os.environ.get("SPOTD_RESUME") or None)
trainer.save_model("out/final")
