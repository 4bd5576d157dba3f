"""What is lost at the end of a machine, by size of state and notice, observed:

    python -m bench.notices --json notices.json              goes on where that file ends
    python -m bench.notices --only "AWS 120 s" --samples 1 --json notices.json

Beside it stands what `python bench/cadence.py --steps` predicts. Nothing of ours is simulated:
python -m trainer.train, its saver and spot-node; the notice is in the metadata document of its
cloud for the real seconds, after which all processes of that machine get SIGKILL; a second machine
then resumes from what HEAD says. Without a notice the SIGKILL comes at a random moment.

What is scaled is the state: `--megabytes` (LoRA's: a fortieth) stand for all its gigabytes, and the
line to the S3 server is as much narrower (bench/narrow.py), so that an upload takes as many seconds
as that of the whole state at the rate that the prediction plans with. Staging is not slowed down:
it takes what a copy takes here. The end comes at a random (seeded) moment of the time between two
saves. `--at-once` attempts run side by side: they mostly wait. Ends with 1 when one had to be given
up: its reason is in the file, and the next call tries it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.waiting import wait_until

sys.path.append(str(Path(__file__).parent))

from cadence import GB, OUR_STALL_S, PLACES, SIZES, Place, State, lost

from bench.narrow import narrowed
from providers.stores import open_store
from spotd import wire
from spotd.demo.bucket import Bucket, bucket_server
from tests.fixtures.metadata import serve_metadata
from tests.trainer.agent.node import Node
from trainer.hook.spotd_hook.cadence import interval_s

MTBF_S = 7200.0  # as in the prediction
PATIENCE_S = 120.0  # for a trainer to begin, on a busy machine
SLACK = 4.0  # times what an upload is to take
LAYERS = 3
OF_LORA = 40  # what an upload of 1 GB takes at 8 GB/s is too short for more of it here
TIMEOUT_S = 300.0  # of one request to the store: parts wait for each other on a narrow line
GCP_LONG = "GCP 120 s"  # as AWS 120 s, but for staging, which is not scaled
ANY_TEXT = argparse.__file__  # that stays as it is, to train on


@dataclass(frozen=True)
class Case:
    """One cell of the table."""

    state: State
    place: Place
    noticed: bool = True

    @property
    def column(self) -> str:
        return self.place.name if self.noticed else f"no notice ({self.place.cloud.upper()})"

    @property
    def name(self) -> str:
        return f"{self.state.name} / {self.column}"

    @property
    def upload_s(self) -> float:
        return self.state.size / GB / self.place.bucket

    @property
    def every_s(self) -> float:
        """Between two saves, by the cadence."""
        return interval_s(OUR_STALL_S, self.upload_s, MTBF_S)


CASES = tuple(
    case
    for state in SIZES
    for case in (
        *(Case(state, place) for place in PLACES if place.name != GCP_LONG),
        Case(state, PLACES[0], noticed=False),
    )
)


@dataclass(frozen=True)
class Observed:
    """One end of a machine. Seconds; `at_s`, `left_s` and what a plan says count to the end."""

    case: str
    number: int
    bytes: int  # of a snapshot
    stage_s: float  # of the first save
    upload_s: float
    phase_s: float  # from the beginning of the last save by the cadence to the notice, or the end
    trained: int  # the last step that was done
    resumed: int  # the last one that the next machine need not do again
    idle_s: float  # from the last step done to the end
    released: bool
    exited_s: float | None  # before the end
    plans: list[dict[str, Any]]
    load: float

    @property
    def lost(self) -> int:
        return self.trained - self.resumed


class Attempt:
    """One machine from its start to its end, and the next one's first look at HEAD. Its notice or
    end comes `phase_s` after the beginning of a save of `size` bytes, or the newest after it."""

    def __init__(self, case: Case, number: int, folder: Path, size: int, phase_s: float) -> None:
        self.case, self.number, self._folder = case, number, folder
        self.size, self._phase_s = size, phase_s

    def observe(self, bucket: Bucket) -> Observed:
        """Raises AssertionError, OSError where it went otherwise than a run has to."""
        rate = self.size / self.case.upload_s
        with (
            narrowed(bucket.endpoint, rate) as endpoint,
            serve_metadata(self.case.place.cloud) as service,
        ):
            options = {**bucket.options, "endpoint": endpoint, "timeout_s": f"{TIMEOUT_S:g}"}
            order = self._order(bucket.url, options)
            cloud = self.case.place.cloud if self.case.noticed else "none"
            first = Node(self._folder / "first", watcher=cloud, metadata_base=service.url)
            with first:
                phase_s = self._train(first, order)
                if self.case.noticed:
                    end_s = float(-int(-time.time() - self.case.place.notice_s))  # whole seconds
                    service.publish("preempt", int(end_s * 1e6))
                    self._await_end(first, end_s)
                else:
                    end_s = time.time()
            # Here every process of the machine was killed.
            data, _ = open_store(bucket.url, options).get(wire.head_key("job-1"))
            head = wire.parse_head(data)
            resumed = self._resume(order)
            assert head.current is not None
            assert head.current.step == resumed, f"HEAD says {head.current.step}, not {resumed}"
        return self._judge(first, end_s, phase_s, resumed, released=head.released)

    def _order(self, url: str, options: dict[str, str]) -> dict[str, Any]:
        width = max(round((self.size / 12 / 12 / LAYERS) ** 0.5 / 16), 1) * 16
        run = (
            f"exec {shlex.quote(sys.executable)} -m trainer.train --steps 1000000 --device cpu"
            f" --threads 1 --layers {LAYERS} --width {width} --heads 4 --block 16 --batch 1"
            f" --data {shlex.quote(ANY_TEXT)} --step-time-ms {self.case.state.step_s * 1000:g}"
        )
        return {
            "run": run,
            "engine": "spotd",
            "store_url": url,
            "store_options": options,
            "auto": True,
            "mtbf_s": MTBF_S,
            "progress_every_s": 0.1,
            "every_steps": 0,
            "keep": 1,
        }

    def _train(self, node: Node, order: dict[str, Any]) -> float:
        """Until the moment of the notice, after one save at least, by which the rest is planned;
        the seconds since the beginning of the newest one."""
        node.run()
        node.start(**order)
        node.wait_for(wire.PROGRESS, PATIENCE_S)
        assert node.send(wire.SAVE).ok
        patience_s = SLACK * self.case.upload_s + PATIENCE_S
        saved = node.wait_for(wire.CHECKPOINT, patience_s)
        began_s, now_s = _began_s(saved), time.time()
        if self._phase_s < now_s - began_s:  # in the midst of an upload: of another one
            assert node.send(wire.SAVE).ok
            seen = node.entries(wire.PROGRESS)[-1].seq
            stepped = wait_until(
                "a step",
                lambda: [e for e in node.entries(wire.PROGRESS) if e.seq > seen],
                PATIENCE_S,
            )
            began_s = stepped[0].at_us / 1e6
        time.sleep(max(began_s + self._phase_s - time.time(), 0.0))
        newest = [began_s, *(_began_s(entry) for entry in node.entries(wire.CHECKPOINT))]
        return time.time() - max(newest)

    def _await_end(self, node: Node, end_s: float) -> None:
        """Nothing comes any more from a machine whose program has ended."""
        while time.time() < end_s and wire.EXITED not in node.kinds():
            time.sleep(min(0.2, max(end_s - time.time(), 0.0)))

    def _resume(self, order: dict[str, Any]) -> int:
        node = Node(self._folder / "second", generation=2, token="token-2")
        with node:
            node.run()
            node.start(**{**order, "head_generation": 1})
            return int(node.wait_for(wire.CLAIMED, PATIENCE_S).data["step"])

    def _judge(
        self, node: Node, end_s: float, phase_s: float, resumed: int, *, released: bool
    ) -> Observed:
        first, last = node.entries(wire.CHECKPOINT)[0], node.entries(wire.PROGRESS)[-1]
        exited = node.entries(wire.EXITED)
        return Observed(
            case=self.case.name,
            number=self.number,
            bytes=int(first.data["bytes"]),
            stage_s=round(first.data["stage_s"], 3),
            upload_s=round(first.data["write_s"], 3),
            phase_s=round(phase_s, 1),
            trained=int(last.data["to_step"]),
            resumed=resumed,
            idle_s=round(end_s - last.data["last_at_us"] / 1e6, 1),
            released=released,
            exited_s=round(end_s - exited[0].at_us / 1e6, 1) if exited else None,
            plans=[
                {"at_s": round(end_s - entry.at_us / 1e6, 1), **entry.data}
                for entry in node.entries(wire.PLAN)
            ],
            load=round(os.getloadavg()[0], 1),
        )


def _began_s(saved: wire.JournalEntry) -> float:
    return saved.at_us / 1e6 - saved.data["write_s"] - saved.data["stage_s"]


class Book:
    """What was observed up to now, in a file after each attempt."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()
        told = json.loads(path.read_text()) if path is not None and path.exists() else {}
        rows = told.get("attempts", [])
        self.found = [Observed(**{n: v for n, v in row.items() if n != "lost"}) for row in rows]
        self.given_up: list[str] = []

    def has(self, case: Case, number: int) -> bool:
        return any((one.case, one.number) == (case.name, number) for one in self.found)

    def note(self, found: Observed | str) -> None:
        """An attempt, or why there is none."""
        with self._lock:
            if isinstance(found, str):
                self.given_up.append(found)
            else:
                self.found.append(found)
            if self._path is None:
                return
            rows = [{**asdict(one), "lost": one.lost} for one in self.found]
            text = json.dumps({"attempts": rows, "given_up": self.given_up}, indent=1)
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(text + "\n")
            new.replace(self._path)


def attempt(case: Case, number: int, megabytes: float, book: Book) -> None:
    """One, unless it is in the book."""
    if book.has(case, number):
        return
    words, dice = f"{case.name}, {number}", random.Random(f"{case.name} {number}")
    size = int(megabytes * 1e6 / (OF_LORA if case.state.size <= GB else 1))
    phase_s = dice.uniform(0, case.every_s)
    try:
        with tempfile.TemporaryDirectory(prefix="notice-", dir="/tmp") as name:
            folder = Path(name)
            with bucket_server(folder / "s3.log") as bucket:
                found = Attempt(case, number, folder, size, phase_s).observe(bucket)
    except (AssertionError, OSError) as error:
        book.note(f"{words}: {type(error).__name__}: {error}")
        print(f"{words}: given up: {error}", file=sys.stderr, flush=True)
        return
    book.note(found)
    print(
        f"{words}: {found.lost} steps lost, {found.idle_s:g} s without a step, upload"
        f" {found.upload_s:.1f} s, {_foretold(found)}",
        file=sys.stderr,
        flush=True,
    )


def _foretold(found: Observed) -> str:
    """What the last plan said, and what came of it."""
    ended = [plan for plan in found.plans if plan["status"] == "ended"]
    if not ended:
        told = ", ".join(plan["action"] for plan in found.plans)
        return f"no plan came to its end ({told or 'none was made'})"
    plan = ended[-1]
    kept = "kept" if plan["kept"] else "not kept"
    return f"{plan['action']}: {plan['took_s']:.1f} s of {plan['predicted_s']:.1f} s, {kept}"


def table(found: Sequence[Observed], cases: Sequence[Case]) -> Iterator[str]:
    """Rows of Markdown: of each case the steps lost in each attempt and the mean seconds without a
    step, and in brackets the means that were predicted."""
    columns = list(dict.fromkeys(case.column for case in cases))
    yield "| state a machine | step | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 2) + "|"
    for state in dict.fromkeys(case.state for case in cases):
        cells = {case.column: _cell(found, case) for case in cases if case.state == state}
        shown = " | ".join(cells.get(column, "") for column in columns)
        yield f"| {state.name} | {state.step_s:g} s | {shown} |"


def _cell(found: Sequence[Observed], case: Case) -> str:
    same = [one for one in found if one.case == case.name]
    if not same:
        return "not observed"
    steps, idle_s = lost(case.place, case.state, float(case.noticed))
    text = ", ".join(str(one.lost) for one in sorted(same, key=lambda one: one.number))
    if not case.noticed:
        return f"{text} ({steps:.1f})"
    mean_s = sum(one.idle_s for one in same) / len(same)
    return f"{text}; {mean_s:.0f} s ({steps:.1f}; {idle_s:.0f} s)"


def foretold(found: Sequence[Observed], cases: Sequence[Case]) -> Iterator[str]:
    """Rows of Markdown: of each case with a notice how each attempt decided, what it predicted of
    the time to the release and what that took, and what was left of the notice."""
    yield "| state, notice | decided | predicted | took | left of the notice |"
    yield "|---" * 5 + "|"
    for case in cases:
        ended = [
            [plan for plan in one.plans if plan["status"] == "ended"]
            for one in sorted(found, key=lambda one: one.number)
            if one.case == case.name and case.noticed
        ]
        if not ended:
            continue
        plans = [told[-1] if told else None for told in ended]
        shown = [
            ", ".join("-" if plan is None else form(plan) for plan in plans)
            for form in (
                lambda plan: plan["action"] + ("" if plan["kept"] else " (not kept)"),
                lambda plan: f"{plan['predicted_s']:.1f}",
                lambda plan: f"{plan['took_s']:.1f}",
                lambda plan: f"{plan['margin_s']:.1f}",
            )
        ]
        yield f"| {case.name} | " + " | ".join(shown) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=3, help="attempts of each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="kept there after each attempt")
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="TEXT", help="cases named with one of these"
    )
    parser.add_argument(
        "--megabytes", type=float, default=300.0, help="what a snapshot weighs here"
    )
    parser.add_argument("--at-once", type=int, default=2, help="attempts side by side")
    args = parser.parse_args()
    cases = [case for case in CASES if any(text in case.name for text in args.only)]
    if not cases:
        parser.error(f"--only {' '.join(args.only)}: in none of {[case.name for case in CASES]}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no machine is left running
    book = Book(args.json)
    with ThreadPoolExecutor(args.at_once) as pool:
        under_way = [
            pool.submit(attempt, case, number, args.megabytes, book)
            for number in range(1, args.samples + 1)
            for case in cases
        ]
        try:
            for one in under_way:
                one.result()
        except KeyboardInterrupt:
            print("those under way are finished first", file=sys.stderr, flush=True)
            pool.shutdown(cancel_futures=True)
    print("\n".join([*table(book.found, cases), "", *foretold(book.found, cases)]))
    print("\n".join(book.given_up))
    return int(bool(book.given_up))


if __name__ == "__main__":
    sys.exit(main())
