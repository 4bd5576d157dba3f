"""Test that untrusted input from nodes and stores either parses or raises WireError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from spotd import wire
from spotd.wire.parts import build

REF = wire.HeadRef(1, 10, "m1", "sha256:0")
MANIFEST = wire.Manifest(
    job="j1",
    generation=1,
    step=10,
    created_at_us=1,
    world_size=1,
    streams=(wire.Stream((wire.Shard("k", 4, 4, ("0",)),)),),
    tensors=(wire.TensorLayout("w", "float32", (1,), (wire.Block((0,), (1,), 0, 0),)),),
    state={"lr": 0.1},
)
FIRST_MANIFEST = {
    "job": "j1",
    "generation": 1,
    "step": 10,
    "created_at_us": 1,
    "world_size": 1,
    "shards": [{"key": "k", "size": 4, "digest": "xxh3:0"}],
    "tensors": [
        {"name": "w", "dtype": "float32", "shape": [1], "shard": 0, "offset": 0, "nbytes": 4}
    ],
    "state": {"lr": 0.1},
    "final": False,
}
START = build(
    wire.StartDocument,
    {
        "job_name": "gpt",
        "num_nodes": 1,
        "node_ips": ("10.0.0.1",),
        "accelerators_per_node": 8,
        "setup": "",
        "run": "python train.py",
        "envs": {"LR": "1"},
        "secrets": {"TOKEN": "x"},
        "packages": (wire.Package("0" * 64, ""),),
        "store_url": "s3://bucket",
        "store_options": {"region": "r"},
        "engine": "none",
        "claim": "now",
        "claim_deadline_s": 0.0,
        "head_generation": 0,
        "every_steps": 10,
        "every_s": 60.0,
        "keep": 3,
        "stop_grace_s": 5.0,
        "progress_every_s": 1.0,
    },
)
CONFIG = wire.AgentConfig("d0", "j1", 1, 0, "t-1", "none", power_off=("off", "now"))


def lines(parse: Callable[[bytes], object]) -> Callable[[Any], object]:
    return lambda value: parse(json.dumps(value).encode())


# A good document, and what reads it.
DOCUMENTS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "journal": (
        json.loads(wire.JournalEntry(1, 1, 1, wire.HELLO, {"wire": 1}).to_line()),
        lines(wire.parse_line),
    ),
    "heartbeat": (json.loads(wire.Heartbeat(1, 1, 1, 1).to_line()), lines(wire.parse_line)),
    "log": (json.loads(wire.LogChunk(1, "rank0", 0, "x").to_line()), lines(wire.parse_line)),
    "log end": (
        json.loads(wire.LogEnd(1, "rank0", 9, begin=2, end=9).to_line()),
        lines(wire.parse_line),
    ),
    "command": (json.loads(wire.Command(wire.SAVE, 1).to_line()), lines(wire.parse_command)),
    "reply": (json.loads(wire.Reply(True).to_line()), lines(wire.parse_reply)),
    "head": (
        json.loads(wire.Head("j1", 1, 1, "n", "o", REF, (REF,)).to_bytes()),
        lines(wire.parse_head),
    ),
    "manifest": (json.loads(MANIFEST.to_bytes()), lines(wire.parse_manifest)),
    "manifest of version 1": (
        {"manifest": FIRST_MANIFEST, "version": 1},
        lines(wire.parse_manifest),
    ),
    "start": (json.loads(json.dumps(START.to_data())), wire.parse_start),
    "here": (json.loads(wire.DaemonPresence(60.0).to_line()), lines(wire.parse_presence)),
    "config": (json.loads(json.dumps(CONFIG.to_data())), wire.parse_agent_config),
}
SURPRISES = (None, True, -1, 10**400, 1e308, float("nan"), "", "x", [], [1], [[]], {}, {"a": 1})


def changed(value: Any) -> Iterator[Any]:
    """Yield `value` with each of its parts in turn replaced by each surprise."""
    yield from SURPRISES
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in changed(part))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in changed(part))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_good_document_parses(name: str) -> None:
    value, parse = DOCUMENTS[name]
    assert parse(value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_surprise_is_a_wire_error(name: str) -> None:
    value, parse = DOCUMENTS[name]
    refused = 0
    for other in changed(value):
        try:
            parse(other)
        except wire.WireError:
            refused += 1
    assert refused > len(SURPRISES)


def test_a_manifest_of_version_1_is_what_it_would_be_now() -> None:
    data = json.dumps({"manifest": FIRST_MANIFEST, "version": 1}).encode()
    assert wire.parse_manifest(data) == MANIFEST


@pytest.mark.parametrize(
    "shard",
    [{"chunk": 0}, {"chunk": 3}, {"digests": []}, {"digests": ["0", "0"]}, {"size": 5}],
)
def test_digests_cover_their_shard(shard: dict[str, Any]) -> None:
    value = json.loads(MANIFEST.to_bytes())
    value["manifest"]["streams"][0]["shards"][0].update(shard)
    with pytest.raises(wire.WireError, match="digests for its bytes"):
        wire.parse_manifest(json.dumps(value).encode())


@pytest.mark.parametrize("member", ["streams", "tensors"])
def test_a_member_that_is_no_object_is_told(member: str) -> None:
    value = {"manifest": {**DOCUMENTS["manifest"][0]["manifest"], member: [1]}}
    with pytest.raises(wire.WireError, match=r"1 is not an object with a field"):
        wire.parse_manifest(json.dumps(value).encode())


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 10**400])
def test_what_counts_something_is_a_count(number: int) -> None:
    """A larger one would not fit into the database, and would never be reached by a comparison."""
    head = {**DOCUMENTS["head"][0]["head"], "generation": number}
    with pytest.raises(wire.WireError, match="generation"):
        wire.parse_head(json.dumps({"head": head}).encode())


def test_an_error_shows_the_beginning_of_what_is_wrong() -> None:
    """Also of a deeply nested value: the message is built with little stack left."""
    deep = "[" * 900 + "]" * 900
    with pytest.raises(wire.WireError) as caught:
        wire.parse_reply(f'{{"reply": {{"ok": {deep}}}}}'.encode())
    assert len(str(caught.value)) < 300


def test_a_box_that_gives_no_time_is_understood() -> None:
    """A daemon of an older version does not limit the lifetime of its machines."""
    data = CONFIG.to_data()
    for name in ("unattended_s", "left_s", "life_s", "power_off", "wipe"):
        del data[name]
    assert wire.parse_agent_config(data).unattended_s == 0


def test_a_box_that_does_not_say_where_a_preparation_ends_knows_of_none() -> None:
    data = json.loads(json.dumps(replace(CONFIG, prepared_file="/run/x").to_data()))
    assert wire.parse_agent_config(data) == replace(CONFIG, prepared_file="/run/x")
    del data["prepared_file"]
    assert wire.parse_agent_config(data) == CONFIG


def test_a_box_that_does_not_say_how_long_to_keep_what_failed_is_understood() -> None:
    data = json.loads(json.dumps(replace(CONFIG, unattended_s=60.0).to_data()))
    del data["keep_s"]
    assert wire.parse_agent_config(data) == replace(CONFIG, unattended_s=60.0, keep_s=0.0)
