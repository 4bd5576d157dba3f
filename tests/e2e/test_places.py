"""Where bytes live, over SSH through the daemon, with a bucket's folder for each region: a job that
moves reads its shards from the region that it leaves and saves beside its new machine, while HEAD
stays in its one store; and a data set crosses once to each region, whoever reads it there."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from providers.stores import open_store
from spotd.demo.box import running_box, wait_for
from spotd.demo.bucket import Bucket
from spotd.demo.facts import final_losses
from spotd.demo.s3 import serving
from spotd.domain.phase import FINISHED
from spotd.wire import head_key, parse_head
from tests.e2e.rig import FINISH_TIMEOUT_S, Reference, Run, job_file, open_records
from tests.fixtures.waiting import LIMIT_S

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

EAST, WEST = ("aws", "aws-east"), ("gcp", "gcp-west")
SCENARIO = "".join(
    f'[[zone]]\npersonality = "{cloud}"\nregion = "{region}"\nname = "{region}-1"\n'
    for cloud, region in (EAST, WEST)
)
DATA = {"corpus/a.bin": os.urandom(5000), "corpus/b/c.bin": os.urandom(100)}
LAST = """\
name: reader
resources: {infra: "*", cpus: 1+, use_spot: true}
file_mounts: {~/data: "dataset://corpus"}
run: sha256sum < ~/data/a.bin
"""


class Reads:
    """How often bytes of an object were asked for, by its path."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def __call__(self, app: WSGIApplication) -> WSGIApplication:
        def counted(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] == "GET":
                self.of[environ["PATH_INFO"]] += 1
            return app(environ, start)

        return counted


def settings(made: Bucket, key: Path) -> str:
    """A section for each region's folder, for the job's one store and for the data's."""
    key.write_text(made.options["access_key_id"])
    plain = {name: value for name, value in made.options.items() if "access_key" not in name}
    named = "".join(f', {name} = "{value}"' for name, value in plain.items() if name != "region")
    options = f'{{ access_key_id_file = "{key}", secret_access_key_file = "{key}"{named} }}'
    places = {"east": EAST, "west": WEST, "source": ("azure", "afar"), "one": ("azure", "afar")}
    lines = []
    for name, (cloud, region) in places.items():
        lines += [f"[stores.{name}]", f'url = "{made.url}/{name}"', f"options = {options}"]
        lines += [f'cloud = "{cloud}"', f'region = "{region}"']
        lines += ["shards = true"] if name in ("east", "west") else []
    copies = [f"{made.url}/{name}/data" for name in ("east", "west")]
    lines += ["[datasets.corpus]", f'url = "{made.url}/source/corpus"', f"copies = {copies}"]
    return "\n".join(["", *lines, "max_usd = 1", ""])


@pytest.mark.e2e
@pytest.mark.req("CKP-14")
@pytest.mark.xdist_group("kills of others")
def test_a_job_moves_between_regions_and_a_data_set_crosses_once_to_each(
    folder: Path, python: Path, reference: Reference
) -> None:
    reads = Reads()
    with (
        serving(wrap=reads) as made,
        running_box(folder, SCENARIO, settings(made, folder / "key"), python) as box,
    ):
        stores = {
            name: open_store(f"{made.url}/{name}", {**made.options, "region": "us-east-1"})
            for name in ("east", "west", "source", "one")
        }
        for key, data in DATA.items():
            stores["source"].put(key, data)
        job = job_file(python, infra="*", more=f"file_mounts: {{~/data: {DATASET}}}\n")
        job = job.replace("{engine:", f'{{store: "{made.url}/one", engine:')
        run = Run(box, box.submit(job, "moves"), Random(1))

        def shards(name: str) -> list[str]:
            listed = (one.key for one in stores[name].list(f"jobs/{run.job_id}/"))
            return [key for key in listed if not key.endswith(("MANIFEST.json", "HEAD"))]

        first = run.training(1)
        here, there = ("east", "west") if first["region"] == EAST[1] else ("west", "east")
        wait_for("a checkpoint beside it", lambda: shards(here), LIMIT_S)
        run.training(30)
        run.preempt(first["instance_id"], 5.0)
        second = run.training(40, generation=2)
        assert second["region"] != first["region"]
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        head = parse_head(stores["one"].get(head_key(run.job_id))[0])
        assert head.final
        assert (head.generation, shards("one")) == (second["generation"], [])
        assert shards(there), "what it saved since is beside its new machine"
        moved = [path for path in reads.of if f"/{here}/jobs/{run.job_id}/" in path]
        assert moved, "it read the shards where they were"
        records = open_records(box)
        try:
            losses = final_losses(records.progress.rows(run.job_id))
        finally:
            records.close()
        assert losses == reference.losses, "and went on from them to the same numbers"
        for name in ("east", "west"):
            told = json.loads(stores[name].get("data/SPOTD-STAGED")[0])
            assert (told["objects"], told["bytes"]) == (2, 5100)
        crossed = reads_of(reads, made, "source/corpus/a.bin")
        ended = box.wait_phase(box.submit(LAST, "reader"), set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert reads_of(reads, made, "source/corpus/a.bin") == crossed, "nothing crosses again"


DATASET = "dataset://corpus"


def reads_of(reads: Reads, made: Bucket, key: str) -> int:
    return reads.of[f"/{made.name}/{made.folder}/{key}"]
