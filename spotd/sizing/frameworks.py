"""Default training options of each framework, as far as memory depends on them.

`plan` and `rightsize` use them for each option that a job file or the command line leaves open.
Read in transformers 5.23, peft 0.21, lightning 2.6 and torch 2.13 as installed, and in TRL's
repository:

- transformers: `TrainingArguments` (training_args.py) has `per_device_train_batch_size` 8,
  `activation_checkpointing`, `use_liger_kernel`, `torch_compile`, `bf16` and `fp16` off, `fsdp` and
  `deepspeed` unset (accelerate then uses DDP), and `adamw_torch_fused`. `from_pretrained`
  (modeling_utils.py) loads the dtype of the checkpoint, which is bf16 for most models; before
  version 5 it loaded fp32. `BitsAndBytesConfig` does not quantise twice.
- peft: `LoraConfig` (tuners/lora/config.py) has `r` 8, `lora_dropout` 0.0; utils/constants.py
  adapts query and value of Llama; `autocast_adapter_dtype` keeps adapters in fp32.
- trl: `_BaseConfig` (trl/trainer/base_config.py) turns `gradient_checkpointing` and `bf16` on;
  `create_model_from_path` loads fp32; the rest is transformers'.
- lightning: `Trainer` has precision "32-true" (accelerator_connector.py) and strategy "auto", which
  is DDP on several GPUs. The batch size is the user's: PyTorch's `DataLoader` has 1.
- torch: fp32, `DataLoader(batch_size=1)`, DDP, and `AdamW` with `foreach` on GPUs
  (`_default_to_fused_or_foreach` in optim/optimizer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from spotd.sizing.run import Run

FRAMEWORKS = ("transformers", "trl", "lightning", "torch")
DEFAULT = "transformers"  # where the job file names none

_PLAIN: Mapping[str, Any] = {
    "checkpointing": "none", "loss": "plain", "compiled": False, "sharding": "none",
    "micro_batch": 1, "accumulation": 1, "precision": "fp32", "foreach": True, "offload": "none",
    "offload_activations": False, "step_in_backward": False, "loads_whole": False,
    "ragged": False, "quantiser": "nf4", "lora_rank": 8, "lora_dropout": 0.0, "lora_targets": "qv",
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "torch": _PLAIN,
    "lightning": _PLAIN,
    "transformers": {**_PLAIN, "micro_batch": 8, "precision": "bf16", "foreach": False},
    "trl": {
        **_PLAIN, "micro_batch": 8, "precision": "mixed", "foreach": False, "checkpointing": "full",
    },
}  # fmt: skip


def defaults_of(framework: str, run: Run) -> Mapping[str, Any]:
    """Return the framework's value of each option, for a run of that method. Raises KeyError."""
    values = dict(_DEFAULTS[framework])
    if run.frozen and framework == "transformers":
        values["precision"] = "mixed"  # a bf16 base with peft's adapters in fp32
    if run.frozen and framework == "trl":
        values["precision"] = "fp32"  # the base stays as it was loaded
    return MappingProxyType(values)
