"""`checkpoint.from` in a job file.

The checkpoint becomes the job's first one, bit for bit, however often the import is interrupted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UserError
from tests.spotd.api.rig import JOB_FILE, Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.sharded import save_sharded, tensor_bytes
from tests.spotd.cli.test_import import Imports, imports

__all__ = ["imports"]


def job_file(origin: str) -> str:
    engine = "" if "engine" in origin else "engine: spotd, "
    return JOB_FILE.replace("engine: spotd, ", f"{engine}from: {origin}, ")


class Runs:
    """Runs `spotctl run` with a job file that has `from`, in the folder `here`."""

    def __init__(self, imports: Imports, spotctl: Spotctl, here: Path) -> None:
        self.rig, self._spotctl, self.here = imports.rig, spotctl, here
        self.names = (f"second-{n}" for n in itertools.count())

    def __call__(self, origin: str, name: str = "") -> tuple[int, str]:
        """Return the exit code, and the job's id if there is one."""
        file, name = self.here / "job.yaml", name or next(self.names)
        file.write_text(job_file(origin))
        code = self._spotctl(self.rig, "run", str(file), "-n", name, "-d")
        job = self.rig.store.jobs.find(name)
        return code, job.id if job else ""


@pytest.fixture
def run(
    imports: Imports, spotctl: Spotctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runs:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spotd.api_client.upload.SHARD_BYTES", 4096)
    return Runs(imports, spotctl, tmp_path)


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The shards that are sent."""
    sent: list[bytes] = []
    put_shard = Client.put_shard

    def count(self: Client, job_id: str, data: bytes, query: Mapping[str, object]) -> Any:
        reply = put_shard(self, job_id, data, query)
        sent.append(data)
        return reply

    monkeypatch.setattr(Client, "put_shard", count)
    return sent


def breaking(n: int, how: BaseException, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A function that makes the `n`-th call of a method of the client fail, from 1; of `call` only
    those that send a body count."""

    def install(patch: pytest.MonkeyPatch) -> None:
        method, count = getattr(Client, name), itertools.count(1)

        def call(self: Client, target: Any, *rest: Any, **options: Any) -> Any:
            counts = name != "call" or target.operation.method == "POST"
            if counts and next(count) == n:
                raise how
            return method(self, target, *rest, **options)

        patch.setattr(Client, name, call)

    return install


def test_export_is_imported_bit_for_bit(imports: Imports, run: Runs) -> None:
    original = save_sharded(imports.saver)
    imports.export(run.here / "x", "safetensors")
    code, job_id = run("./x")
    assert code == 0
    manifest, tensors = imports.read(job_id)
    assert tensors == {name: tensor_bytes(tensor) for name, tensor in original.items()}
    assert (manifest.step, manifest.state) == (10, {"step": 10, "config": {"width": 30}})
    [event] = imports.rig.store.events.rows(job_id)
    assert event.event.text.startswith("starts from the import at step 10")


def test_source_may_be_a_pin_of_another_job(imports: Imports, run: Runs) -> None:
    original = save_sharded(imports.saver)
    imports.run("pin", "gpt", "best")
    imports.saver.save(20)
    _, job_id = run("gpt@best")
    manifest, tensors = imports.read(job_id)
    assert (manifest.step, len(manifest.streams)) == (10, 2)
    assert tensors == {name: tensor_bytes(tensor) for name, tensor in original.items()}
    assert imports.read(run("gpt")[1])[0].step == 20


@pytest.mark.parametrize(
    "breaks",
    [
        breaking(3, KeyboardInterrupt(), "put_shard"),
        breaking(2, KeyboardInterrupt(), "call"),  # the commit
        breaking(3, KeyboardInterrupt(), "call"),  # the job
    ],
)
@pytest.mark.parametrize("origin", ["./x", "gpt"])
def test_interrupted_import_resumes_and_sends_nothing_twice(
    imports: Imports,
    run: Runs,
    shards: list[bytes],
    breaks: Callable[[pytest.MonkeyPatch], None],
    origin: str,
) -> None:
    original = save_sharded(imports.saver)
    imports.export(run.here / "x", "safetensors")
    with pytest.MonkeyPatch.context() as patch:
        breaks(patch)
        assert run(origin, "second") == (130, "")
    assert len(shards) >= 2
    code, job_id = run(origin, "second")
    manifest, tensors = imports.read(job_id)
    assert (code, len(shards)) == (0, len(manifest.shards))
    assert tensors == {name: tensor_bytes(tensor) for name, tensor in original.items()}
    again = run(origin)[1]  # a new one, and not the same
    assert (again != job_id, len(shards)) == (True, 2 * len(manifest.shards))


def test_changed_source_is_imported_in_its_new_state(
    imports: Imports, run: Runs, shards: list[bytes]
) -> None:
    save_sharded(imports.saver)
    folder = imports.export(run.here / "x", "safetensors")
    with pytest.MonkeyPatch.context() as patch:
        breaking(3, KeyboardInterrupt(), "put_shard")(patch)
        assert run("./x")[0] == 130
    [file] = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start] ^= 1
    file.write_bytes(data)
    manifest, tensors = imports.read(run("./x")[1])
    assert len(shards) == len(manifest.shards) + 1
    assert bytes([data[start]]) in {one[:1] for one in tensors.values()}


def test_lost_shards_are_sent_again_by_the_second_run(imports: Imports, run: Runs) -> None:
    save_sharded(imports.saver)
    imports.export(run.here / "x", "safetensors")
    with pytest.MonkeyPatch.context() as patch:
        breaking(3, KeyboardInterrupt(), "call")(patch)
        run("./x")
    for path in imports.saver.file("jobs").rglob("*-import/r*"):
        path.unlink()
    code, job_id = run("./x")
    assert (code, job_id) == (1, "")
    assert imports.read(run("./x")[1])[0].step == 10


def test_missing_source_is_an_error(
    imports: Imports, run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    for origin, message in {
        "./nothing": "nothing does not exist",
        "s3://b/x": "is not a path on this machine",
        "'gpt @ 3'": "is neither a path with a / nor a job",
        "job.yaml": "could be a job, and is also a path here",
        "nobody": "there is no job 'nobody'",
        "gpt, engine: none": "applies only to programs that resume with spotd_hook",
    }.items():
        assert run(origin)[1] == ""
        assert message in capsys.readouterr().err


def test_job_with_an_unknown_import_is_refused(rig: Rig) -> None:
    body = {"yaml": job_file("./x"), "request_id": "r"}
    with pytest.raises(UserError, match=r"checkpoint\.from was not imported"):
        Client(rig.socket).call(routes.SUBMIT_JOB(), body)
