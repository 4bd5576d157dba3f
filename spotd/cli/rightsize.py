"""`spotctl rightsize`: memory, time and cost of a training run before it is started."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import connect, job_path
from spotd.base.errors import ExitCode, UserError, suggest
from spotd.cli.durations import duration_s
from spotd.cli.fit_chart import picture
from spotd.cli.fit_table import print_sizes
from spotd.cli.job_file import read_job_file
from spotd.cli.render import Output, emit, output_option, say
from spotd.cli.rightsize_review import review
from spotd.sizing import cards
from spotd.sizing.advice import advise
from spotd.sizing.cards import COMMON, Card
from spotd.sizing.checkpoint_size import saves_data
from spotd.sizing.machines import proposed
from spotd.sizing.memory import FITS, GIB, naive_bytes
from spotd.sizing.sizes import (
    LIMITS,
    Measured,
    OfferFit,
    advice_data,
    around,
    on_offer,
    size,
    size_data,
    with_hardware,
)
from spotd.sizing.task import Task, TaskError, task_of

_MOST_OFFERS, _MOST_SHOWN = 5000, 50  # that are looked at, and that are shown


def _choice(flag: str, help_: str, metavar: str = "NAME") -> Any:
    return typer.Option(None, flag, metavar=metavar, help=help_)


def rightsize(
    ctx: typer.Context,
    file: Path | None = typer.Argument(None, metavar="[FILE]", help="A job file with spotd.model."),
    job: str = typer.Option("", "--job", metavar="JOB", help="A submitted job, as it measured."),
    model: str = _choice("--model", "Like llama-3-70b or Qwen/Qwen2.5-72B."),
    config: Path | None = _choice("--config", "A Hugging Face config.json instead.", "FILE"),
    method: str = _choice("--method", "full, full-8bit, lora, lora-8bit or qlora."),
    precision: str = _choice("--precision", "mixed, bf16, fp8 or fp32."),
    sharding: str = _choice("--sharding", "fsdp, zero3, zero2, zero1 or none."),
    sequence: int = _choice("--sequence", "Tokens of a sequence.", "N"),
    micro_batch: int = _choice("--micro-batch", "Sequences at once on a GPU.", "N"),
    accumulation: int = _choice("--accumulation", "Micro-batches for each step.", "N"),
    checkpointing: str = _choice("--checkpointing", "Of activations: full, selective, none."),
    loss: str = _choice("--loss", "chunked, compiled or plain."),
    compiled: bool = typer.Option(False, "--compiled", help="torch.compile, Liger or Unsloth."),
    lora_rank: int = _choice("--lora-rank", "Of the adapters.", "N"),
    lora_dropout: float = _choice("--lora-dropout", "Of the adapters' inputs; 0: none.", "SHARE"),
    lora_targets: str = _choice("--lora-targets", "all, attention or qv."),
    offload: str = _choice("--offload", "To the machine's memory: none, optimizer, all."),
    tensor: int = _choice("--tensor", "Degree of tensor parallelism.", "N"),
    context: int = _choice("--context", "Degree of context parallelism.", "N"),
    tokens: str = _choice("--tokens", "To train on in all, like 1.4B.", "N"),
    steps: int = _choice("--steps", "Optimizer steps instead of tokens.", "N"),
    example_tokens: float = _choice("--example-tokens", "Mean length, if not packed.", "N"),
    gpu: list[str] = typer.Option([], "--gpu", metavar="GPU", help="Like H100-80; again for more."),
    gpus: int = typer.Option(0, "--gpus", min=0, metavar="N", help="So many; else what fits."),
    svg: Path | None = _choice("--svg", "Also draw the bars to this file.", "FILE"),
    within: str = typer.Option("", "--within", metavar="TIME", help="To be done in, like 48h."),
    from_history: bool = typer.Option(False, "--from-history", help="Of the jobs on record."),
    since: str = typer.Option("90d", "--since", metavar="TIME", help="With --from-history."),
    naive: bool = typer.Option(False, "--naive", help="Also the rule of 4 bytes a parameter."),
    output: Output = output_option(),
) -> None:
    """Foretell memory, time and cost of a training run, on kinds and numbers of GPUs.

    GIB/GPU is what the allocator of one GPU holds at its peak, by a formula (docs/rightsizing.md);
    "tight" is inside its own error. MEMORY draws it against the card. TIME needs --tokens or
    --steps, and COST a daemon that knows offers: each on as few machines as it fits on, on more
    where these are later than --within or the file's deadline. With --job what it measured counts,
    from 50 steps on; with --from-history it is held, for each job on record, against what is on
    sale now.

    \b
    Example:
      spotctl rightsize --model qwen2-72b --sequence 4096 --tokens 1.4B --within 48h
      spotctl rightsize examples/finetune.yaml -o json
      spotctl rightsize --from-history --since 90d
    """
    if from_history:
        return review(ctx, since, output, alone=not (file or job or model))
    given = {
        "name": model, "method": method, "precision": precision, "sharding": sharding,
        "sequence": sequence, "micro_batch": micro_batch, "accumulation": accumulation,
        "checkpointing": checkpointing, "loss": loss, "compiled": compiled or None,
        "lora_rank": lora_rank, "lora_dropout": lora_dropout, "lora_targets": lora_targets,
        "offload": offload, "tensor": tensor, "context": context, "tokens": _count(tokens),
        "steps": steps, "example_tokens": example_tokens, "config": _config(config),
    }  # fmt: skip
    return _foretell(ctx, given, _Asked(file, job, gpu, gpus, svg, within, naive), output)


@dataclass(frozen=True)
class _Asked:
    """The flags that say nothing of the run itself."""

    file: Path | None
    job: str
    gpu: Sequence[str]
    gpus: int
    svg: Path | None
    within: str
    naive: bool


def _foretell(ctx: typer.Context, given: Mapping[str, Any], of: _Asked, output: Output) -> None:
    known = _known(ctx, of.file, of.job)
    task = _task(known["model"], given, file=of.file is not None or bool(of.job))
    measured = Measured(**known["measured"]) if known.get("measured") else None
    data = _sizes(task, found := _cards(of.gpu, measured), of.gpus, measured)
    data["within_h"] = within_h = _within_h(of.within, known, task)
    data |= {"job": of.job, "measured": known["measured"]} if of.job else {}
    data |= {"naive_gib_in_all": round(naive_bytes(task.shape) / GIB, 1)} if of.naive else {}
    _draw(of.svg, data)
    data["offers"] = _offers(ctx, task, found if of.gpu else [], of.gpus, measured, within_h)
    emit(data, output, lambda: print_sizes(task, data), "text")


def _known(ctx: typer.Context, file: Path | None, job: str) -> dict[str, Any]:
    """The words of `model`, and with a job what it `measured`."""
    if job and file:
        raise UserError("FILE and --job both say what it is", "leave one out", ExitCode.USAGE)
    return _of_job(ctx, job) if job else _of_file(file)


def _within_h(flag: str, known: Mapping[str, Any], task: Task) -> float:
    """Hours in which it is to be done: as the flag says, else by the deadline of the file; 0.0
    where neither does, or nobody said how long the task is and the file alone has a deadline."""
    long = bool(task.tokens or task.steps)
    if flag:
        if not long:
            fix = "add --tokens or --steps"
            raise UserError("--within: nobody said how much there is to do", fix, ExitCode.USAGE)
        return duration_s(flag, "--within", "48h") / 3600
    if not known.get("deadline") or not long:
        return 0.0
    from spotd.spec.quantities import parse_moment_us

    now_us = time.time_ns() // 1000
    try:
        return (parse_moment_us(known["deadline"], now_us) - now_us) / 3.6e9
    except ValueError as error:
        words, _, fix = str(error).partition("; ")
        raise UserError(f"spotd.deadline: {words}", fix, ExitCode.USAGE) from None


def _draw(file: Path | None, data: Mapping[str, Any]) -> None:
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
        words, _, fix = str(error).partition("; ")
        raise UserError(f"--tokens: {words}", fix, ExitCode.USAGE) from None


def _config(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--config: cannot read {path}: {error}", "", ExitCode.USAGE) from None
    if not isinstance(content, dict):
        raise UserError(f"--config: {path} is no config.json", "name one", ExitCode.USAGE)
    return content


def _of_job(ctx: typer.Context, job: str) -> dict[str, Any]:
    with connect(ctx) as client:
        data = client.get(job_path(job, "/sizing"))
    if data["measured"] is None:
        steps = data["measured_steps_needed"]
        say(f"{job} has not trained {steps} warm steps on one kind of machine: this is estimated")
    return data


def _of_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {"model": {}}
    from spotd.spec.model import deadline_of, model_words

    text = read_job_file(file)
    words = model_words(text)
    if not words:
        raise UserError(
            f"{file} has no spotd.model", "add it, or give --model NAME", ExitCode.USAGE
        )
    return {"model": words, "deadline": deadline_of(text)}


def _task(words: Mapping[str, Any], flags: Mapping[str, Any], *, file: bool) -> Task:
    """By the words of a file, and by flags before them."""
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return task_of({**words, **given})
    except TaskError as error:
        flag = {"name": "model"}.get(error.field, error.field).replace("_", "-")
        where = f"spotd.model.{error.field}" if file else f"--{flag}"
        raise UserError(f"{where}: {error.text}", error.fix, ExitCode.USAGE) from None


def _cards(named: Sequence[str], measured: Measured | None) -> list[Card]:
    if not named and measured:
        named = [measured.accelerator]
    found = []
    for name in named or COMMON:
        try:
            found.append(cards.find(name))
        except KeyError:
            fix = suggest(name, cards.names())
            raise UserError(f"--gpu: no GPU {name!r} is known", fix, ExitCode.USAGE) from None
    return found


def _sizes(
    task: Task, found: Iterable[Card], gpus: int, measured: Measured | None
) -> dict[str, Any]:
    """As JSON: what was asked, each size with its advice, and what it does not cover."""
    if measured and not gpus:
        gpus = measured.gpus
    try:
        sizes: list[OfferFit] = []
        for card in found:
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
            {**size_data(one), "advice": advice_data(advise(one.task, one.card, one.pace))}
            for one in sizes
        ],
        "checkpoint": saves_data(task),
        "limits": LIMITS,
    }


def _offers(
    ctx: typer.Context,
    task: Task,
    found: Sequence[Card],
    gpus: int,
    measured: Measured | None,
    within_h: float,
) -> list[dict[str, Any]]:
    """What the task takes on each offer that a daemon knows, in time before late and the cheapest
    to finish first; none where no daemon answers. `gpus` 0: on one machine, or as few as it fits
    on, or as are in time."""
    try:
        with connect(ctx) as client:
            items = client.get("/v1/offers", limit=_MOST_OFFERS)["items"]
    except UserError as error:
        say(f"without offers and their prices: {error}")
        return []
    rows = []
    for item in items:
        if found and not any(_is(item["accelerator"], card) for card in found):
            continue
        rows += [{**item, "size": one} for one in _placed(task, item, gpus, measured, within_h)]
    return with_hardware(sorted(rows, key=_rank)[:_MOST_SHOWN])


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, float, str]:
    placed = row["size"]
    hourly = row["price_usd_per_h"] * placed["num_nodes"]
    return placed["verdict"] != FITS, placed["late"], placed["usd"] or hourly, row["key"]


def _is(accelerator: str, card: Card) -> bool:
    try:
        return cards.find(accelerator) == card
    except KeyError:
        return False


def _placed(
    task: Task, item: Mapping[str, Any], gpus: int, measured: Measured | None, within_h: float
) -> list[dict[str, Any]]:
    """On `gpus` of them; on as few machines as are needed, where nobody says how many."""
    count = item["accelerator_count"]
    if not count or gpus % count:
        return []
    if not gpus:
        return proposed(task, item, measured, within_h)
    one = on_offer(task, item, gpus // count, measured)
    if one is None:
        return []
    return [{**one, "late": bool(within_h and one["hours"] and one["hours"] > within_h)}]
