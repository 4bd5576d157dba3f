"""The effect of transformers' and Lightning's arguments beside spotd's callbacks.

One table for the callbacks, which refuse and warn by it, and for the page docs/arguments.md. Every
argument of the classes in it has one row; a test compares them with the installed libraries.
Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Effect(Enum):
    """The effect of an argument beside spotd's callbacks."""

    HONOURED = "honoured"
    REFUSED = "refused"  # an error at the start names it
    VOID = "without effect"  # a line at the start names it
    UNRELATED = "not concerned"  # it has no influence on saving and resume


@dataclass(frozen=True)
class Argument:
    """An argument of `owner`: `text` says what it does, and of a refused one what to do instead."""

    owner: str
    name: str
    effect: Effect
    text: str = ""


# The classes and functions whose arguments are all in the table.
TRAINING_ARGUMENTS = "transformers.TrainingArguments"
HF_TRAINER = "transformers.Trainer"
HF_TRAIN = "transformers.Trainer.train"
EARLY_STOPPING_CALLBACK = "transformers.EarlyStoppingCallback"
PL_TRAINER = "lightning.pytorch.Trainer"
PL_FIT = "lightning.pytorch.Trainer.fit"
_CALLBACKS = "lightning.pytorch.callbacks."
MODEL_CHECKPOINT = f"{_CALLBACKS}ModelCheckpoint"
ON_EXCEPTION = f"{_CALLBACKS}OnExceptionCheckpoint"
EARLY_STOPPING = f"{_CALLBACKS}EarlyStopping"
TIMER = f"{_CALLBACKS}Timer"
SWA = f"{_CALLBACKS}StochasticWeightAveraging"
EMA = f"{_CALLBACKS}EMAWeightAveraging"
WEIGHT_AVERAGING = f"{_CALLBACKS}WeightAveraging"
ACCUMULATION_SCHEDULER = f"{_CALLBACKS}GradientAccumulationScheduler"
BATCH_SIZE_FINDER = f"{_CALLBACKS}BatchSizeFinder"
LEARNING_RATE_FINDER = f"{_CALLBACKS}LearningRateFinder"


def _honoured(owner: str, **texts: str) -> Iterator[Argument]:
    return (Argument(owner, name, Effect.HONOURED, text) for name, text in texts.items())


def _refused(owner: str, **instead: str) -> Iterator[Argument]:
    return (Argument(owner, name, Effect.REFUSED, text) for name, text in instead.items())


def _void(owner: str, **reasons: str) -> Iterator[Argument]:
    return (Argument(owner, name, Effect.VOID, text) for name, text in reasons.items())


def _unrelated(owner: str, names: str) -> Iterator[Argument]:
    return (Argument(owner, name, Effect.UNRELATED) for name in names.split())


_KEEP = "no folders of checkpoints are written; checkpoint: {keep: N} of the job file is the limit"
_HUB = "used by push_to_hub"
_STATE = "its state is in the job's checkpoints"
_COUNTED = "counted over all machines"
_FINDER = "run the finder once by itself, and write down the value that it finds"
_SAVED_FILES = (
    "the files that it keeps are in the job's checkpoints, each with its full size, and are "
    "written again on another machine"
)

_TRANSFORMERS = (
    *_honoured(
        TRAINING_ARGUMENTS,
        output_dir="`save_model()`, `save_state()` and the best model go there, and nothing else",
        num_train_epochs="may be changed between two machines, as with the trainer's own resume",
        max_steps="may be changed between two machines, as with the trainer's own resume",
        lr_scheduler_type=f"{_STATE}, that of `reduce_lr_on_plateau` after the evaluation",
        optim=_STATE,
        gradient_accumulation_steps="saved between two optimizer steps",
        fp16="the scaler's state is in the job's checkpoints",
        logging_steps="what is not logged yet is in the job's checkpoints",
        logging_strategy="logs equal those of an undisturbed run",
        logging_first_step="logs equal those of an undisturbed run",
        include_num_input_tokens_seen="the count is in the job's checkpoints",
        eval_strategy="an evaluation that the machine's end interrupts is repeated",
        eval_steps="an evaluation that the machine's end interrupts is repeated",
        eval_delay="counted from the beginning of the training",
        eval_on_start="evaluated once, and not again on each machine",
        save_strategy="each save that it asks for is a checkpoint of the job, besides `every`",
        save_steps="each save that it asks for is a checkpoint of the job, besides `every`",
        save_on_each_node="for the folder of the best model and `save_model()`",
        save_safetensors="for the folder of the best model and `save_model()`",
        load_best_model_at_end="the best model is in the job's checkpoints; it is loaded at the "
        "end and written to the folder that `state.best_model_checkpoint` names",
        metric_for_best_model="also without load_best_model_at_end the best model's folder is "
        "written at the end",
        greater_is_better="as metric_for_best_model",
        ignore_data_skip="the resumed run then begins its epoch's data anew, as the trainer's own",
        restore_callback_states_from_checkpoint="always on",
        resume_from_checkpoint="the trainer itself ignores it, and scripts give it to `train()`",
        seed="the random generators' state is in the job's checkpoints",
        data_seed="a resumed epoch has the same order",
        full_determinism="the random generators' state is in the job's checkpoints",
        train_sampling_strategy="a resumed epoch has the same order",
        group_by_length="a resumed epoch has the same order",
        accelerator_config="use_seedable_sampler: a resumed epoch has the same order with both",
        push_to_hub='with hub_strategy="end" or "every_save"',
        hub_strategy='"checkpoint" and "all_checkpoints" upload the trainer\'s own checkpoints, '
        'which spotd_hook replaces: they are refused; use "end" or "every_save"',
        fsdp="FSDP2; version 1 is refused",
        fsdp_config='"fsdp_version" has to be 2',
    ),
    *_refused(
        TRAINING_ARGUMENTS,
        auto_find_batch_size="give the per_device_train_batch_size that fits",
        enable_jit_checkpoint="the callback saves before the machine ends",
        deepspeed="let DeepSpeed save to a folder, with mode: directory",
        parallelism_config="let the trainer save its folder, with mode: directory",
    ),
    *_void(
        TRAINING_ARGUMENTS,
        save_total_limit=_KEEP,
        save_only_model="no folders of checkpoints are written; the job's checkpoints are whole",
    ),
    *_unrelated(
        TRAINING_ARGUMENTS,
        "per_device_train_batch_size learning_rate lr_scheduler_kwargs warmup_steps warmup_ratio "
        "optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules "
        "average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 bf16_full_eval "
        "fp16_full_eval tf32 activation_checkpointing activation_checkpointing_kwargs "
        "gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend "
        "torch_compile_mode use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha "
        "torch_empty_cache_steps log_on_each_node logging_nan_inf_filter log_level "
        "log_level_replica disable_tqdm report_to run_name project trackio_space_id "
        "trackio_bucket_id trackio_static_space_id per_device_eval_batch_size "
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object "
        "eval_accumulation_steps include_for_metrics batch_eval_metrics hub_token "
        "hub_private_repo hub_model_id hub_always_push hub_revision use_cpu "
        "dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
        "dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names "
        "length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb "
        "ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout debug skip_memory_metrics "
        "do_train do_eval do_predict local_rank",
    ),
    *_unrelated(  # of 4.57
        TRAINING_ARGUMENTS,
        "overwrite_output_dir per_gpu_train_batch_size per_gpu_eval_batch_size logging_dir no_cuda "
        "use_mps_device jit_mode_eval fp16_opt_level half_precision_backend tpu_num_cores "
        "tpu_metrics_debug fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap adafactor "
        "use_legacy_prediction_loop include_inputs_for_metrics fp16_backend "
        "push_to_hub_model_id push_to_hub_organization push_to_hub_token mp_parameters torchdynamo "
        "ray_scope include_tokens_per_second",
    ),
    *_refused(TRAINING_ARGUMENTS, past_index="its memory between batches is in no checkpoint"),
    *_honoured(
        HF_TRAINER,
        callbacks=f"{_STATE}: of those that the trainer's own checkpoints have, such as early "
        "stopping",
        model_init="called anew on each machine; the saved weights are loaded then",
        optimizers=_STATE,
        optimizer_cls_and_kwargs=_STATE,
    ),
    *_unrelated(
        HF_TRAINER,
        "model args data_collator train_dataset eval_dataset processing_class compute_loss_func "
        "compute_metrics preprocess_logits_for_metrics",
    ),
    *_honoured(
        HF_TRAIN,
        resume_from_checkpoint="used while the job has no checkpoint of its own",
        ignore_keys_for_eval="also for an evaluation that is repeated",
    ),
    *_refused(HF_TRAIN, trial="run a job for each trial: a search draws others on another machine"),
    *_honoured(
        EARLY_STOPPING_CALLBACK,
        early_stopping_patience=_STATE,
        early_stopping_threshold=_STATE,
    ),
)

_LIGHTNING = (
    *_honoured(
        PL_TRAINER,
        callbacks=f"{_STATE}, as in Lightning's own checkpoints",
        fast_dev_run="nothing is resumed: a few batches are all",
        max_epochs=_COUNTED,
        min_epochs=_COUNTED,
        max_steps=_COUNTED,
        min_steps=_COUNTED,
        max_time="the time in training, over all machines",
        limit_train_batches="an epoch ends with the same batch",
        limit_val_batches="a repeated validation has the same batches",
        overfit_batches="the same batches on each machine",
        val_check_interval="a validation that the machine's end interrupts is repeated; an "
        "interval of time begins anew on each machine",
        check_val_every_n_epoch="a validation that the machine's end interrupts is repeated",
        num_sanity_val_steps="once, at the beginning of the training",
        enable_checkpointing="False: no files of Lightning's own",
        accumulate_grad_batches="saved between two optimizer steps",
        precision="the scaler's state is in the job's checkpoints",
        barebones="the callback works as without it",
        reload_dataloaders_every_n_epochs="counted over all machines",
        default_root_dir="where ModelCheckpoint writes by default",
        logger="its folder may have another version on another machine: files follow",
    ),
    *_refused(
        PL_TRAINER,
        strategy="use one for whole models, such as ddp, or let Lightning save its folder, with "
        "mode: directory",
        plugins="leave the CheckpointIO out: spotd saves in the background, and copies files that "
        "are complete",
    ),
    *_unrelated(
        PL_TRAINER,
        "accelerator devices num_nodes limit_test_batches limit_predict_batches log_every_n_steps "
        "enable_progress_bar enable_model_summary gradient_clip_val gradient_clip_algorithm "
        "deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly "
        "sync_batchnorm enable_autolog_hparams model_registry",
    ),
    *_honoured(
        PL_FIT,
        ckpt_path="used while the job has no checkpoint of its own; the file has to exist on each "
        "machine",
        weights_only="for ckpt_path",
    ),
    *_unrelated(PL_FIT, "model train_dataloaders val_dataloaders datamodule"),
    *_honoured(
        MODEL_CHECKPOINT,
        dirpath=f"{_SAVED_FILES}; one in a bucket is left alone",
        filename=_SAVED_FILES,
        monitor=_SAVED_FILES,
        save_last=f"{_SAVED_FILES}; a link stays a link",
        save_top_k=f"{_SAVED_FILES}; -1, all files, is refused: give a number",
        save_weights_only="as everywhere; it makes the job's checkpoints smaller",
        mode=_SAVED_FILES,
        every_n_train_steps="counted over all machines",
        train_time_interval="begins anew on each machine",
        every_n_epochs="counted over all machines",
        save_on_train_epoch_end="as everywhere",
        enable_version_counter="as everywhere",
        auto_insert_metric_name="as everywhere",
    ),
    *_void(
        MODEL_CHECKPOINT,
        save_on_exception="the file is on the machine of the error, and the next attempt continues "
        "from the job's last save",
    ),
    *_unrelated(MODEL_CHECKPOINT, "verbose"),
    *_void(
        ON_EXCEPTION,
        dirpath="the file is on the machine of the error, and the next attempt continues from the "
        "job's last save",
        filename="as dirpath",
    ),
    *_honoured(
        EARLY_STOPPING,
        monitor=_STATE,
        min_delta=_STATE,
        patience=_STATE,
        mode=_STATE,
        stopping_threshold=_STATE,
        divergence_threshold=_STATE,
        check_on_train_epoch_end=_STATE,
        strict="as everywhere",
        check_finite="as everywhere",
    ),
    *_unrelated(EARLY_STOPPING, "verbose log_rank_zero_only"),
    *_honoured(
        TIMER,
        duration="the time in training, over all machines",
        interval="as everywhere",
    ),
    *_unrelated(TIMER, "verbose"),
    *_honoured(
        SWA,
        swa_lrs=_STATE,
        swa_epoch_start=_STATE,
        annealing_epochs=_STATE,
        annealing_strategy=_STATE,
        avg_fn=_STATE,
        device=_STATE,
    ),
    *_honoured(WEIGHT_AVERAGING, device=_STATE, use_buffers=_STATE),
    *_honoured(
        EMA,
        device=_STATE,
        use_buffers=_STATE,
        decay=_STATE,
        update_every_n_steps=_STATE,
        update_starting_at_step=_STATE,
        update_starting_at_epoch=_STATE,
    ),
    *_honoured(ACCUMULATION_SCHEDULER, scheduling="counted over all machines"),
    *_refused(
        BATCH_SIZE_FINDER,
        mode=_FINDER,
        steps_per_trial=_FINDER,
        init_val=_FINDER,
        max_trials=_FINDER,
        batch_arg_name=_FINDER,
        margin=_FINDER,
        max_val=_FINDER,
    ),
    *_refused(
        LEARNING_RATE_FINDER,
        min_lr=_FINDER,
        max_lr=_FINDER,
        num_training_steps=_FINDER,
        mode=_FINDER,
        early_stop_threshold=_FINDER,
        update_attr=_FINDER,
        attr_name=_FINDER,
    ),
)

TABLE = (*_TRANSFORMERS, *_LIGHTNING)


def refused(owner: str, name: str, value: Any) -> ValueError:
    """Return the error of an argument that cannot be honoured with this value."""
    row = _row(owner, name)
    return ValueError(
        f"{name}={value!r} does not work with spotd_hook: {row.text}"
        if row.effect is Effect.HONOURED
        else f"{name} does not work with spotd_hook: leave it out, and {row.text}"
    )


def refused_owner(owner: str) -> ValueError:
    """Return the error of a callback that does not work with any argument."""
    row = next(row for row in TABLE if row.owner == owner)
    return ValueError(f"{owner.rpartition('.')[2]} does not work with spotd_hook: {row.text}")


def check(owner: str, given: Mapping[str, Any]) -> None:
    """Raise ValueError for the first refused argument among those that were given."""
    for name, value in given.items():
        if _effect(owner, name) is Effect.REFUSED:
            raise refused(owner, name, value)


def warn(owner: str, given: Mapping[str, Any]) -> None:
    """Print a line for each argument that was given and has no effect."""
    for name in given:
        if _effect(owner, name) is Effect.VOID:
            of = f" of {owner.removeprefix(_CALLBACKS)}" if owner.startswith(_CALLBACKS) else ""
            text = f"spotd_hook: {name}{of} has no effect: {_row(owner, name).text}"
            print(text, file=sys.stderr, flush=True)


def check_limits(limits: Mapping[str, float], saved: Mapping[str, float]) -> None:
    """Raise ValueError if a training that has ended is to be longer now."""
    for name, value in limits.items():
        if value > saved[name] >= 0:  # else there was no such end
            raise ValueError(
                f"{name} was {saved[name]} when this training ended, and is {value} now: it is not "
                "continued. Give the longer one another name, Callback(..., name=...), or start a "
                "new job"
            )


def owners() -> Iterable[str]:
    """Return the classes and functions of the table, in its order."""
    return dict.fromkeys(row.owner for row in TABLE)


def _row(owner: str, name: str) -> Argument:
    return next(row for row in TABLE if (row.owner, row.name) == (owner, name))


def _effect(owner: str, name: str) -> Effect | None:
    return next((row.effect for row in TABLE if (row.owner, row.name) == (owner, name)), None)
