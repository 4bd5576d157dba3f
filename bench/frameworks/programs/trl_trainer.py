"""TRL's trainers: supervised fine-tuning, and preference optimization."""

from __future__ import annotations

import copy
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from bench.frameworks.programs.place import random_tokens, read_arguments, write_result
from bench.frameworks.programs.transformers_trainer import Places, arguments_of, train

WORDS = 60


def tokenizer() -> PreTrainedTokenizerFast:
    special = ["<pad>", "<end>", "<unknown>", "<begin>"]
    words = {word: number for number, word in enumerate([*special, *map(str, range(WORDS))])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unknown>",
        bos_token="<begin>",
    )


def texts(count: int, seed: int) -> list[str]:
    """Return texts of 4 to 9 words."""
    rows = random_tokens(count, seed, length=9, vocabulary=WORDS).tolist()
    return [" ".join(map(str, row[: 4 + number % 6])) for number, row in enumerate(rows)]


def rows_of(kind: str, count: int, seed: int) -> Dataset:
    if kind == "sft":
        return Dataset.from_dict({"text": texts(count, seed)})
    names = ("prompt", "chosen", "rejected")
    return Dataset.from_dict({name: texts(count, seed + at) for at, name in enumerate(names)})


def main() -> None:
    settings, plain = read_arguments()
    torch.manual_seed(settings["seed"])
    kind = settings["trainer"]
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=64, vocab_size=WORDS + 4)
    )
    more: dict[str, Any] = {}
    if settings["lora"]:
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(
            r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True
        )
    elif kind == "dpo":
        more["ref_model"] = copy.deepcopy(model)
    trainers: dict[str, tuple[Any, Any]] = {
        "sft": (SFTTrainer, SFTConfig),
        "dpo": (DPOTrainer, DPOConfig),
    }
    trainer_of, config_of = trainers[kind]
    callbacks: list[Any] = [Places()]
    if settings["patience"]:
        callbacks.append(EarlyStoppingCallback(settings["patience"]))
    trainer = trainer_of(
        model=model,
        args=arguments_of(config_of, settings["arguments"]),
        train_dataset=rows_of(kind, settings["rows"], 1),
        eval_dataset=rows_of(kind, 8, 99),
        processing_class=tokenizer(),
        callbacks=callbacks,
        **more,
    )
    write_result(train(trainer, plain=plain))


if __name__ == "__main__":
    main()
