"""The start document is sent as one flat object, whatever parts its record has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import StartDocument, WireError, encode, parse_start
from spotd.wire.parts import fields_of, is_required, parts_of, value_of

# Sent by a daemon whose document had no parts; no field has its default.
SENT: dict[str, Any] = json.loads(Path(__file__).with_name("start.json").read_text())
FIELDS = fields_of(StartDocument)
OPTIONAL = [name for name, item in FIELDS.items() if not is_required(item)]
WITH = {name: item.metadata["with"] for name, item in FIELDS.items() if "with" in item.metadata}


def test_a_document_is_sent_as_before_it_had_parts() -> None:
    found = parse_start(SENT)
    assert encode(found.to_data()) == encode(SENT)
    assert FIELDS.keys() == SENT.keys()
    assert not parts_of(StartDocument).keys() & SENT.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_only_a_field_with_a_default_may_be_missing(name: str) -> None:
    """An older daemon does not send it."""
    less = {key: item for key, item in SENT.items() if key != name}
    if is_required(FIELDS[name]) or name in WITH:
        with pytest.raises(WireError, match=f"'{name}'"):
            parse_start(less)
    else:
        assert value_of(parse_start(less), name) != value_of(parse_start(SENT), name)


def test_an_older_daemon_sends_none_of_them() -> None:
    older = parse_start({key: item for key, item in SENT.items() if key not in OPTIONAL})
    for name in OPTIONAL:
        item = FIELDS[name]
        assert value_of(older, name) == ({} if name == "printed_steps" else item.default)


def test_what_came_into_the_document_together_is_missing_together() -> None:
    assert {
        "shards_url": "shard_stores",
        **dict.fromkeys(("mtbf_s", "gb_costs_s", "put_costs_s"), "auto"),
    } == WITH
    older = {key: item for key, item in SENT.items() if key not in {*WITH, *WITH.values()}}
    assert not parse_start(older).checkpoint.auto
    assert parse_start(older).storage.near.url == SENT["store_url"]


def test_an_unknown_field_is_of_a_newer_daemon() -> None:
    assert parse_start(SENT | {"colour": "blue"}) == parse_start(SENT)


def test_no_secret_is_in_the_text_of_a_document() -> None:
    document = parse_start(SENT | {"secrets": {"TOKEN": "hush"}, "store_options": {"key": "hush"}})
    assert "hush" not in repr(document)


def test_the_store_in_the_region_of_the_machine() -> None:
    storage = parse_start(SENT).storage
    assert (storage.near.url, storage.others) == ("s3://near", {"s3://near": {"key": "n"}})
    own = parse_start(SENT | {"shards_url": ""}).storage
    assert (own.near.url, own.near.options) == ("s3://b", {"region": "r"})
