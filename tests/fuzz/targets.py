"""What reads bytes from outside, as functions of bytes.

Each returns, whatever it is given: the errors that its module documents are swallowed, anything
else is a crash. `tests/fuzz/test_corpus.py` runs them on the inputs that were kept, Hypothesis on
what it makes up, and `make fuzz` on what a coverage-guided fuzzer finds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import anyio
from starlette.types import ASGIApp

from providers.aws import notice as aws
from providers.azure import notice as azure
from providers.base import MetadataError, OfferRequest, ProviderError
from providers.gcp import notice as gcp
from providers.http_request import HttpResponse
from providers.link_local import MetadataResponse
from providers.local import client
from providers.local.cloud import LocalCloud
from providers.stores.base import NotFoundError
from providers.stores.local import LocalStore
from spotd import wire
from spotd.act import link
from spotd.act.node_link import LinkError
from spotd.act.ssh import Result
from spotd.api.http.app import make_app
from spotd.api.http.permissions import Permissions
from spotd.api_client.client import Client
from spotd.base.errors import UserError
from spotd.config.load import ConfigError, load_config
from spotd.domain.job import JobSpec
from spotd.domain.units import S
from spotd.observe.stream import NodeStream
from spotd.spec import CheckpointDefaults, SpecError, load, split_documents
from spotd.store import codec
from spotd.store.journal import JournalBatch
from spotd.store.sql_store import SqlStore
from tests.fixtures.memory import MEMORY
from tests.fuzz import BREAK, box, foreign, money, node
from tests.spotd.api.rig import Rig, story
from tests.spotd.planner import build
from tests.spotd.store.build import NOW, placed
from tests.spotd.store.conftest import make
from trainer.agent.main.stream_server import FollowError, read_request
from trainer.hook.spotd_hook.agent_client import AgentClient
from trainer.saver.parts import parse_part
from trainer.saver.reader import CorruptError, Range, Reader, read_manifest, read_stream, verify
from trainer.saver.tensors import assemble

Target = Callable[[bytes], object]
NODE = "j1-g1-0"
READERS: tuple[Callable[[bytes], object], ...] = (
    wire.parse_line,
    wire.parse_command,
    wire.parse_reply,
    wire.parse_head,
    wire.parse_manifest,
    parse_part,
    lambda data: wire.parse_start(json.loads(data)),
    lambda data: wire.parse_agent_config(json.loads(data)),
)


def read_wire(data: bytes) -> None:
    """Lines, commands, replies, HEAD, manifests: a value or a WireError."""
    for read in READERS:
        with contextlib.suppress(wire.WireError, json.JSONDecodeError, UnicodeDecodeError):
            read(data)


def hear_peer(data: bytes) -> None:
    """What the other end of a link says: a node that was told something to the daemon, a daemon to
    spotctl, the agent to the program that trains, whoever follows to the agent."""
    with contextlib.suppress(LinkError):
        link._check(Result(0, data, b""), "what was said")
    for status in (200, 400, 503):
        try:
            Client(Path("/run/spotd.sock"))._check(status, data)
        except UserError as error:
            _says(error)
    with (
        contextlib.suppress(ConnectionResetError),
        contextlib.closing(AgentClient("", 0)) as worker,
    ):
        worker._read_flags(data + b"\n")
    reader, writer = os.pipe()
    os.write(writer, data[:4096].replace(b"\n", b" ") + b"\n")
    os.close(writer)
    with contextlib.suppress(FollowError):
        read_request(reader)
    os.close(reader)


def restore(data: bytes) -> None:
    """HEAD, and after a line of `---` the manifest that it names: a checkpoint, or what is passed
    over as damaged. The digest is right: what it cannot see is looked at here."""
    first, _, second = data.partition(BREAK)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        store = LocalStore(Path(folder))
        ref = wire.HeadRef(1, 1, "m", wire.sha256(second))
        store.put("m", second)
        with contextlib.suppress(wire.WireError):
            head = wire.parse_head(first)
            refs = [found for found in (head.current, *head.previous) if found]
            for found in refs[:5]:
                with contextlib.suppress(CorruptError, NotFoundError):
                    read_manifest(store, found)
        with contextlib.suppress(CorruptError, NotFoundError):
            manifest = read_manifest(store, ref)
            with contextlib.suppress(CorruptError, NotFoundError):
                verify(store, manifest, lambda: True)
            with contextlib.suppress(CorruptError, NotFoundError):
                reader = Reader(store, manifest, [], _readers())
                reader.fill(memoryview(bytearray(4)), [Range(0, 0, 4)], lambda _: None)
            streams = [read_stream(store, manifest, n) for n in range(len(manifest.streams))]
            for tensor in manifest.tensors[:5]:
                with contextlib.suppress(CorruptError):
                    assemble(tensor, streams)


@cache
def _readers() -> Executor:
    return ThreadPoolExecutor(1)


@cache
def _store() -> SqlStore:
    store = make("sqlite://")
    placed(store)
    return store


def follow_journal(data: bytes) -> None:
    """What a node says, as far as the database: nothing of it raises, and the node lives."""
    store, stream = _store(), NodeStream(0)
    fed = stream.feed(data)
    fed.entries += stream.feed(b"\n").entries
    seq = store.nodes.of_job("j1")[0].agent.journal_seq
    news = tuple(
        wire.JournalEntry(seq + number, entry.at_us, 1, entry.kind, entry.data)
        for number, entry in enumerate(fed.entries[:50], 1)
    )
    store.journal.record([JournalBatch(NODE, news, NOW)])
    assert store.nodes.of_job("j1")[0].agent.journal_seq == seq + len(news)


def read_job(data: bytes) -> None:
    """A job file: a job or a SpecError that says what is wrong. Also what no UTF-8 is: JSON may
    hold any half of a character."""
    text = data.decode("utf-8", "surrogateescape")
    assert split_documents(text)
    try:
        parsed = load(
            text,
            now_us=NOW,
            defaults=CheckpointDefaults(store="file:///store"),
            fallback_name="fuzz",
        )
    except SpecError as error:
        _says(error)
        return
    # What is a job can be kept, and decided about until its machine trains.
    spec = parsed.spec
    assert codec.decode(JobSpec, codec.encode(spec)) == spec
    seen, _ = build.settle(build.view(job={"spec": spec}), build.market())
    later = build.NOW + int(max(spec.timeouts.boot_timeout_s, spec.limits.max_duration_s)) * S
    build.settle(seen, build.market(), now=later)
    assert later < 1 << 62


def read_config(data: bytes) -> None:
    """A configuration file, and after a line of `---` variables of the environment."""
    text, _, rest = data.partition(BREAK)
    pairs = (line.partition("=") for line in rest.decode("utf-8", "replace").splitlines())
    environ = {name.replace("\0", ""): value.replace("\0", "") for name, _, value in pairs if name}
    for name in ("HOME", "SPOTD_CONFIG"):
        environ.pop(name, None)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, "config.toml")
        path.write_bytes(text)
        try:
            load_config(path, {"HOME": folder, **environ})
        except ConfigError as error:
            _says(error)
        assert [file.name for file in Path(folder).iterdir()] == ["config.toml"]


def _says(error: UserError) -> None:
    assert error.text
    assert error.try_


def _answers(data: bytes) -> Iterator[MetadataResponse]:
    """Of each conversation: a line with the status and a header's value, then the body. The last
    one is given for ever."""
    answer = MetadataResponse(404, {}, b"")
    for part in data.split(BREAK):
        first, _, body = part.partition(b"\n")
        status, _, value = first.decode("latin-1").partition(" ")
        names = ("x-aws-ec2-metadata-token-ttl-seconds", "etag", "metadata-flavor")
        headers = dict.fromkeys(names, value) if value else {}
        answer = MetadataResponse(int(status[:3]) if status[:3].isdecimal() else 200, headers, body)
        yield answer
    while True:
        yield answer


def watch_metadata(data: bytes) -> None:
    """What a metadata service says to each watcher: notices or a MetadataError."""
    for module, keywords in ((aws, {}), (azure, {"vm_name": "vm"}), (gcp, {"wall": lambda: 1e9})):
        answers = _answers(data)

        def ask(
            *_: object, answers: Iterator[MetadataResponse] = answers, **__: object
        ) -> MetadataResponse:
            return next(answers)

        watcher: Any = module.Watcher("http://127.0.0.1:1", **keywords)
        with patch.object(module, "request", ask):
            for _ in range(3):
                with contextlib.suppress(MetadataError):
                    for notice in watcher.poll():
                        assert notice.notice_id
                        assert notice.deadline_us is None or abs(notice.deadline_us) < 1 << 63


@cache
def _token() -> Path:
    path = Path(tempfile.mkdtemp(dir=MEMORY), "token")
    path.write_text("secret")
    return path


def call_cloud(data: bytes) -> None:
    """What a cloud answers to each verb: a result, or an error of the port."""
    calls: tuple[Callable[[LocalCloud], object], ...] = (
        lambda cloud: cloud.offers(OfferRequest()),
        lambda cloud: cloud.list(),
        lambda cloud: cloud.notices(),
        lambda cloud: cloud.terminate("i-1"),
        lambda cloud: cloud.notices(),
    )
    answers = _answers(data)

    def exchange(*_: object, **__: object) -> HttpResponse:
        answer = next(answers)
        told = next(iter(answer.headers.values()), "5")
        return HttpResponse(answer.status, {"X-Visibility-S": told}, answer.body)

    with patch.object(client, "send_request", exchange):
        for call in calls:
            cloud = LocalCloud("aws", "http://127.0.0.1:1", "aws", "d0", token_file=_token())
            with contextlib.suppress(ProviderError):
                call(cloud)
            assert 0 <= cloud.visibility_s < 1e6


@cache
def _door() -> tuple[Rig, ASGIApp]:
    rig = Rig()
    story(rig)
    atexit.register(rig.close)
    return rig, make_app(rig.context(), Permissions())


def ask_api(data: bytes) -> None:
    """A line with verb, path and query, then a body: an answer, which is not a failure of ours, and
    what is refused has changed nothing. It does not wait, so that nothing takes long."""
    rig, app = _door()
    line, _, body = data.partition(b"\n")
    verb, _, target = line.decode("latin-1").partition(" ")
    path, _, query = target.partition("?")
    if b"wait_s" in data:
        return
    scope = {
        "type": "http",
        "method": verb.upper()[:10],
        "path": unquote(path, errors="replace"),
        "query_string": query.encode("latin-1"),
        "headers": [(b"content-length", str(len(body)).encode())],
        "server": ("/run/spotd.sock", None),
        "client": ("uid:0", 1),
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
    }
    said: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    before = rig.store.jobs.rows(), rig.store.events.rows(None)
    anyio.run(app, scope, receive, send)
    status = said[0]["status"]
    answer = b"".join(message.get("body", b"") for message in said[1:])
    assert status < 500, answer
    if status != 200:
        assert (rig.store.jobs.rows(), rig.store.events.rows(None)) == before
        assert verb.upper() == "HEAD" or json.loads(answer)["error"]["text"]


TARGETS: dict[str, Target] = {
    "wire": read_wire,
    "journal": follow_journal,
    "peer": hear_peer,
    "job": read_job,
    "config": read_config,
    "checkpoint": restore,
    "metadata": watch_metadata,
    "cloud": call_cloud,
    "api": ask_api,
    "backup": box.restore_backup,
    "slack": box.send_alert,
    "archive": node.unpack,
    "safetensors": foreign.read_safetensors,
    "dcp": foreign.read_folder,
    "kernel": node.read_kernel,
    "gpus": node.read_gpus,
    "reaper": node.read_reaper,
    "scenario": node.read_scenario,
    "worker": node.hear_worker,
    "bill": money.read_any_bill,
    "history": money.read_any_history,
    "items": money.read_items,
    "results": money.read_any_results,
    "hours": money.read_hours,
}
