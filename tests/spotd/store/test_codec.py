"""A job's spec is stored as one flat object, whatever parts its record has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotd.domain.job import JobProgram, JobSpec
from spotd.store.codec import CodecError, decode, encode
from spotd.wire.parts import fields_of, is_required, parts_of, value_of
from tests.spotd.store.build import spec

# Written by a spotd whose spec had no parts; no field has its default.
STORED: dict[str, Any] = json.loads(Path(__file__).with_name("spec.json").read_text())


def text_of(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def test_a_spec_is_stored_as_before_it_had_parts() -> None:
    found = decode(JobSpec, text_of(STORED))
    assert encode(found) == text_of(STORED)
    for name, item in fields_of(JobSpec).items():
        assert is_required(item) or value_of(found, name) != item.default, name


def test_a_part_is_no_key_of_what_is_stored() -> None:
    assert not parts_of(JobSpec).keys() & STORED.keys()
    with pytest.raises(CodecError, match="JobSpec: unknown field program"):
        decode(JobSpec, text_of(STORED | {"program": {"run": "true"}}))
    with pytest.raises(CodecError, match="JobSpec: missing field run"):
        decode(JobSpec, text_of({key: item for key, item in STORED.items() if key != "run"}))
    with pytest.raises(CodecError, match=r"JobSpec\.num_nodes: True is not a int"):
        decode(JobSpec, text_of(STORED | {"num_nodes": True}))


def test_a_field_of_a_part_takes_its_default_and_is_left_out_at_it() -> None:
    """A row of an older spotd lacks it, and an older spotd reads no row that has it."""
    plain = spec()
    stored = json.loads(encode(plain))
    assert not {"bake", "caches", "wishes", "project", "elastic"} & stored.keys()
    assert (
        decode(
            JobSpec,
            text_of({key: stored[key] for key in ("name", "run", "alternatives", "checkpoint")}),
        )
        == plain
    )
    baked = spec(bake="torch-2")
    assert json.loads(encode(baked)) == stored | {"bake": "torch-2"}
    assert baked.program == JobProgram("python train.py", bake="torch-2")


def test_preferences_have_an_older_key() -> None:
    found = decode(JobSpec, text_of(STORED))
    assert STORED["wishes"]["residency"] == list(found.preferences.residency) == ["DE"]
    with pytest.raises(CodecError, match="unknown field preferences"):
        decode(JobSpec, text_of(STORED | {"preferences": {}}))
