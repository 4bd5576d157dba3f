"""`spotctl rightsize`: memory, time and cost of a training run before it is started."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError, suggest
from spotd.cli.durations import duration_s
from spotd.cli.fit_chart import picture
from spotd.cli.fit_table import print_sizes
from spotd.cli.job_file import read_job_file
from spotd.cli.render import Output, emit, output_option, print_message
from spotd.cli.rightsize_review import review
from spotd.sizing import cards
from spotd.sizing.advice import advise
from spotd.sizing.cards import COMMON, Card
from spotd.sizing.checkpoint_size import saves_data
from spotd.sizing.fit import VERDICTS
from spotd.sizing.memory import GIB, naive_bytes
from spotd.sizing.sizes import (
    LIMITS,
    Measured,
    OfferFit,
    advice_data,
    around,
    on_offer,
    proposed,
    size,
    size_data,
    with_hardware,
)
from spotd.sizing.task import Task, TaskError, task_of

_MOST_OFFERS, _MOST_SHOWN = 5000, 50  # offers that are evaluated, and that are shown

_RUN_OPTIONS = (
    "method", "precision", "sharding", "sequence", "micro_batch", "accumulation", "checkpointing",
    "loss", "compiled", "foreach", "ragged", "loads_whole", "step_in_backward", "lora_rank",
    "lora_dropout", "lora_targets", "quantiser", "framework", "offload", "offload_activations",
    "tensor", "context", "steps", "example_tokens",
)  # fmt: skip


def _choice(flag: str, help_: str, metavar: str = "NAME") -> Any:
    return typer.Option(None, flag, metavar=metavar, help=help_)


def _toggle(name: str, help_: str) -> Any:
    return typer.Option(None, f"--{name}/--no-{name}", help=help_)


def rightsize(
    ctx: typer.Context,
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="A job file with spotd.model."),
    job: str = typer.Option("", "--job", metavar="JOB", help="A job, with its measurements."),
    model: str = _choice("--model", "Like llama-3-70b or Qwen/Qwen2.5-72B."),
    config: Path | None = _choice("--config", "A Hugging Face config.json instead.", "FILE"),
    method: str = _choice("--method", "full, full-8bit, lora, lora-8bit or qlora."),
    precision: str = _choice("--precision", "mixed, bf16, fp8 or fp32."),
    sharding: str = _choice("--sharding", "fsdp, zero3, zero2, zero1 or none."),
    sequence: int = _choice("--sequence", "Tokens per sequence.", "N"),
    micro_batch: int = _choice("--micro-batch", "Sequences per GPU and micro-batch.", "N"),
    accumulation: int = _choice("--accumulation", "Micro-batches per step.", "N"),
    checkpointing: str = _choice("--checkpointing", "Of activations: full, selective, none."),
    loss: str = _choice("--loss", "chunked, compiled or plain."),
    compiled: bool = _toggle("compiled", "torch.compile, Liger or Unsloth."),
    foreach: bool = _toggle("foreach", "torch's AdamW without fused."),
    ragged: bool = _toggle("ragged", "Batches of unequal length."),
    loads_whole: bool = _toggle("loads-whole", "Each GPU loads the whole model first."),
    step_in_backward: bool = _toggle("step-in-backward", "Gradients are freed with their layer."),
    lora_rank: int = _choice("--lora-rank", "Rank of the adapters.", "N"),
    lora_dropout: float = _choice("--lora-dropout", "Of the adapters' inputs; 0: none.", "SHARE"),
    lora_targets: str = _choice("--lora-targets", "all, attention or qv."),
    quantiser: str = _choice("--quantiser", "Of the base: nf4, nf4-dq, int8 or torchao."),
    framework: str = _choice("--framework", "transformers, trl, lightning or torch."),
    offload: str = _choice("--offload", "Offload to host memory: none, optimizer, all."),
    offload_activations: bool = _toggle("offload-activations", "To host memory."),
    tensor: int = _choice("--tensor", "Degree of tensor parallelism.", "N"),
    context: int = _choice("--context", "Degree of context parallelism.", "N"),
    tokens: str = _choice("--tokens", "Total training tokens, like 1.4B.", "N"),
    steps: int = _choice("--steps", "Optimizer steps instead of tokens.", "N"),
    example_tokens: float = _choice("--example-tokens", "Mean length, if not packed.", "N"),
    gpu: list[str] = typer.Option([], "--gpu", metavar="GPU", help="Like H100-80; repeatable."),
    gpus: int = typer.Option(0, "--gpus", min=0, metavar="N", help="How many; default: what fits."),
    svg: Path | None = _choice("--svg", "Also draw the bars into this file.", "FILE"),
    within: str = typer.Option("", "--within", metavar="TIME", help="Time limit, like 48h."),
    from_history: bool = typer.Option(False, "--from-history", help="Review the jobs on record."),
    since: str = typer.Option("90d", "--since", metavar="TIME", help="With --from-history."),
    naive: bool = typer.Option(False, "--naive", help="Also show the rule of 4 bytes a parameter."),
    output: Output = output_option(),
) -> None:
    """Estimate memory, time and cost of a training run, by type and number of GPUs.

    GIB/GPU is the peak of one GPU's allocator, by a formula (docs/rightsizing.md); "tight" is
    within its error. Options that you leave out have the defaults of --framework; options that make
    the run fit are listed. TIME needs --tokens or --steps, and COST a daemon with offers: each on
    as few machines as the run fits on, or on more if it would miss --within or the file's deadline.
    --job uses measurements, --from-history compares each job with current offers.

    \b
    Example:
      spotctl rightsize --model qwen2-72b --sequence 4096 --tokens 1.4B --within 48h
      spotctl rightsize --model llama-3-8b --method qlora --quantiser nf4-dq --gpu A10G --gpus 1
      spotctl rightsize examples/finetune.yaml -o json
      spotctl rightsize --from-history --since 90d
    """
    if from_history:
        return review(ctx, since, output, all_jobs=not (file or job or model))
    run_options = _run_options(locals())
    request = _Request(file=file, job=job, gpu=gpu, gpus=gpus, svg=svg, within=within, naive=naive)
    return _estimate(ctx=ctx, run_options=run_options, request=request, output=output)


def _run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that the command line's options give; None where left out."""
    read = {"tokens": _count(options["tokens"]), "config": _config(options["config"])}
    return {**{name: options[name] for name in _RUN_OPTIONS}, "name": options["model"], **read}


@dataclass(frozen=True)
class _Request:
    """Options that do not describe the training run itself."""

    file: Path | None
    job: str
    gpu: Sequence[str]
    gpus: int
    svg: Path | None
    within: str
    naive: bool


def _estimate(
    ctx: typer.Context, run_options: Mapping[str, Any], request: _Request, output: Output
) -> None:
    known = _known_facts(ctx, request.file, request.job)
    task = _task(known["model"], run_options, file=request.file is not None or bool(request.job))
    measured = Measured(**known["measured"]) if known.get("measured") else None
    selected = _cards(request.gpu, measured)
    data = _sizes(task=task, selected=selected, gpus=request.gpus, measured=measured)
    data["within_h"] = within_h = _within_h(request.within, known, task)
    data |= {"job": request.job, "measured": known["measured"]} if request.job else {}
    data |= {"naive_gib_in_all": round(naive_bytes(task.shape) / GIB, 1)} if request.naive else {}
    _write_chart(request.svg, data)
    data["offers"] = _offers(
        ctx=ctx,
        task=task,
        selected=selected if request.gpu else [],
        gpus=request.gpus,
        measured=measured,
        within_h=within_h,
    )
    emit(data, output, lambda: print_sizes(task, data), "text")


def _known_facts(ctx: typer.Context, file: Path | None, job: str) -> dict[str, Any]:
    """Return the fields of `model`, and with a job also its measurements."""
    if job and file:
        raise UserError("FILE and --job both describe the run", "leave one out", ExitCode.USAGE)
    return _job_facts(ctx, job) if job else _file_facts(file)


def _within_h(flag: str, known: Mapping[str, Any], task: Task) -> float:
    """Return the hours within which the run must end: by `--within`, else by the file's deadline.

    Returns 0.0 if neither is set, or if only the file has a deadline and the length is unknown.
    """
    has_length = bool(task.tokens or task.steps)
    if flag:
        if not has_length:
            fix = "add --tokens or --steps"
            raise UserError("--within: the length of the run is not known", fix, ExitCode.USAGE)
        return duration_s(flag, "--within", "48h") / 3600
    if not known.get("deadline") or not has_length:
        return 0.0
    from spotd.spec.quantities import parse_moment_us

    now_us = time.time_ns() // 1000
    try:
        return (parse_moment_us(known["deadline"], now_us) - now_us) / 3.6e9
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise UserError(f"spotd.deadline: {problem}", fix, ExitCode.USAGE) from None


def _write_chart(file: Path | None, data: Mapping[str, Any]) -> None:
    if file is None:
        return
    title = f"{data['model']}, {data['method']}, {data['precision']}: memory of one GPU"
    try:
        file.write_text(picture(title, data["items"]))
    except OSError as error:
        raise UserError(f"--svg: cannot write {file}: {error}", "", ExitCode.USAGE) from None


def _count(text: str | None) -> float | None:
    if text is None:
        return None
    from spotd.spec.model import parse_count

    try:
        return float(parse_count(text))
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise UserError(f"--tokens: {problem}", fix, ExitCode.USAGE) from None


def _config(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--config: cannot read {path}: {error}", "", ExitCode.USAGE) from None
    if not isinstance(content, dict):
        raise UserError(f"--config: {path} is not a config.json", "name one", ExitCode.USAGE)
    return content


def _job_facts(ctx: typer.Context, job: str) -> dict[str, Any]:
    with connect(ctx) as client:
        data = client.call(routes.JOB_SIZING(job=job))
    if data["measured"] is None:
        steps = data["measured_steps_needed"]
        print_message(
            f"{job} has not trained {steps} warm steps on one kind of machine: this is estimated"
        )
    return data


def _file_facts(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {"model": {}}
    from spotd.spec.model import read_deadline, read_model_block

    text = read_job_file(file)
    model = read_model_block(text)
    if not model:
        raise UserError(
            f"{file} has no spotd.model", "add it, or give --model NAME", ExitCode.USAGE
        )
    return {"model": model, "deadline": read_deadline(text)}


def _task(model: Mapping[str, Any], flags: Mapping[str, Any], *, file: bool) -> Task:
    """Return the task that the file and the options describe; options win."""
    options = {key: value for key, value in flags.items() if value is not None}
    try:
        return task_of({**model, **options})
    except TaskError as error:
        flag = {"name": "model"}.get(error.field, error.field).replace("_", "-")
        field = f"spotd.model.{error.field}" if file else f"--{flag}"
        raise UserError(f"{field}: {error.text}", error.fix, ExitCode.USAGE) from None


def _cards(named: Sequence[str], measured: Measured | None) -> list[Card]:
    if not named and measured:
        named = [measured.accelerator]
    selected = []
    for name in named or COMMON:
        try:
            selected.append(cards.find(name))
        except KeyError:
            fix = suggest(name, cards.names())
            raise UserError(f"--gpu: no GPU {name!r} is known", fix, ExitCode.USAGE) from None
    return selected


def _sizes(
    task: Task, selected: Iterable[Card], gpus: int, measured: Measured | None
) -> dict[str, Any]:
    """Return the sizes as JSON: the request, each size with its advice, and the limits."""
    if measured and not gpus:
        gpus = measured.gpus
    try:
        sizes: list[OfferFit] = []
        for card in selected:
            sizes += [size(task, card, gpus, measured)] if gpus else around(task, card)
    except ValueError as error:
        raise UserError(f"--gpus: {error}", "another number", ExitCode.USAGE) from None
    shape, run = task.shape, task.run
    return {
        "kind": "Rightsize",
        "model": shape.name,
        "parameters": shape.parameters,
        "method": run.method,
        "precision": run.precision,
        "sharding": run.sharding,
        "sequence": run.sequence,
        "micro_batch": run.micro_batch,
        "tokens": task.on(gpus).total_tokens() or None if gpus else task.tokens or None,
        "items": [
            {
                **size_data(offer_fit),
                "advice": advice_data(advise(offer_fit.task, offer_fit.card, offer_fit.pace)),
            }
            for offer_fit in sizes
        ],
        "checkpoint": saves_data(task),
        "limits": LIMITS,
    }


def _offers(
    ctx: typer.Context,
    task: Task,
    selected: Sequence[Card],
    gpus: int,
    measured: Measured | None,
    within_h: float,
) -> list[dict[str, Any]]:
    """Return how the task fits each offer that the daemon knows; empty if no daemon answers.

    Offers that finish in time come first, then the cheapest to finish. With `gpus` 0 an offer
    counts with as few machines as the task fits on, or as finish in time.
    """
    try:
        with connect(ctx) as client:
            items = client.call(routes.LIST_OFFERS(), query={"limit": _MOST_OFFERS})["items"]
    except UserError as error:
        print_message(f"without offers and their prices: {error}")
        return []
    rows = []
    for item in items:
        if selected and not any(_is_card(item["accelerator"], card) for card in selected):
            continue
        rows += [
            {**item, "size": fit}
            for fit in _fits_on(
                task=task, item=item, gpus=gpus, measured=measured, within_h=within_h
            )
        ]
    return with_hardware(sorted(rows, key=_rank)[:_MOST_SHOWN])


def _rank(row: Mapping[str, Any]) -> tuple[int, bool, bool, float, str]:
    fit = row["size"]
    hourly = row["price_usd_per_h"] * fit["num_nodes"]
    order = VERDICTS.index(fit["verdict"])
    return order, not fit["on_the_gpu"], fit["late"], fit["usd"] or hourly, row["key"]


def _is_card(accelerator: str, card: Card) -> bool:
    try:
        return cards.find(accelerator) == card
    except KeyError:
        return False


def _fits_on(
    task: Task, item: Mapping[str, Any], gpus: int, measured: Measured | None, within_h: float
) -> list[dict[str, Any]]:
    """Return the fit on `gpus` GPUs of an offer; with 0, on as few machines as are needed."""
    count = item["accelerator_count"]
    if not count or gpus % count:
        return []
    if not gpus:
        return proposed(task, item, measured, within_h)
    fit = on_offer(task, item, gpus // count, measured)
    if fit is None:
        return []
    return [{**fit, "late": bool(within_h and fit["hours"] and fit["hours"] > within_h)}]
