"""The defaults of the frameworks, as the installed packages have them."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from spotd.sizing.frameworks import FRAMEWORKS, defaults_of
from spotd.sizing.run import Run
from spotd.sizing.task import TaskError, task_of

FULL, LORA = Run(), Run(method="lora")


def test_transformers_trainer_has_these_defaults() -> None:
    arguments = pytest.importorskip("transformers.training_args")
    defaults = {item.name: item.default for item in dataclasses.fields(arguments.TrainingArguments)}
    told = defaults_of("transformers", FULL)
    assert defaults["per_device_train_batch_size"] == told["micro_batch"]
    assert defaults["gradient_accumulation_steps"] == told["accumulation"]
    assert (defaults["gradient_checkpointing"] or False, told["checkpointing"]) == (False, "none")
    assert (defaults["use_liger_kernel"], told["loss"]) == (False, "plain")
    assert (defaults["torch_compile"], told["compiled"]) == (False, False)
    assert (defaults["bf16"], defaults["fp16"]) == (False, False)  # as the weights were loaded
    assert (bool(defaults["fsdp"]), bool(defaults["deepspeed"])) == (False, False)
    assert told["sharding"] == "none"
    assert (defaults["optim"], told["foreach"]) == ("adamw_torch_fused", False)


def test_from_pretrained_loads_what_was_saved_and_bitsandbytes_quantises_once() -> None:
    modeling = pytest.importorskip("transformers.modeling_utils")
    about = inspect.getdoc(modeling.PreTrainedModel.from_pretrained) or ""
    assert 'defaults to `"auto"`' in about[about.index("dtype (") :][:120]
    assert defaults_of("transformers", FULL)["precision"] == "bf16"
    from transformers import BitsAndBytesConfig

    twice = inspect.signature(BitsAndBytesConfig).parameters["bnb_4bit_use_double_quant"].default
    assert (twice, defaults_of("transformers", LORA)["quantiser"]) == (False, "nf4")


def test_peft_adapts_two_matrices_without_dropout_in_fp32() -> None:
    peft = pytest.importorskip("peft")
    config, told = peft.LoraConfig(), defaults_of("transformers", LORA)
    assert (config.r, config.lora_dropout) == (told["lora_rank"], told["lora_dropout"])
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS

    assert (TARGETS["llama"], told["lora_targets"]) == (["q_proj", "v_proj"], "qv")
    cast = inspect.signature(peft.get_peft_model).parameters["autocast_adapter_dtype"].default
    assert (cast, told["precision"]) == (True, "mixed")


def test_lightning_and_torch_train_in_fp32() -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    import torch

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    loader = inspect.signature(torch.utils.data.DataLoader).parameters["batch_size"].default
    fused = inspect.signature(torch.optim.AdamW).parameters["fused"].default
    for framework in ("lightning", "torch"):
        told = defaults_of(framework, FULL)
        assert (trainer.precision, told["precision"]) == ("32-true", "fp32")
        assert trainer.accumulate_grad_batches == told["accumulation"]
        assert loader == told["micro_batch"]
        assert (fused, told["foreach"]) == (None, True)
    assert torch.get_default_dtype() == torch.float32


def test_trl_checkpoints_and_trains_in_mixed_precision() -> None:
    """trl/trainer/base_config.py and `create_model_from_path`; TRL is not installed here."""
    told = defaults_of("trl", FULL)
    assert (told["checkpointing"], told["precision"], told["micro_batch"]) == ("full", "mixed", 8)
    assert defaults_of("trl", LORA)["precision"] == "fp32"


def test_each_framework_has_a_value_of_each_option() -> None:
    names = [set(defaults_of(framework, FULL)) for framework in FRAMEWORKS]
    assert all(each == names[0] for each in names)
    assert names[0] <= {item.name for item in dataclasses.fields(Run)}


def test_a_framework_that_is_not_known_is_named() -> None:
    with pytest.raises(TaskError, match="framework: 'keras' is not known; one of transformers,"):
        task_of({"name": "gpt2", "framework": "keras"})
