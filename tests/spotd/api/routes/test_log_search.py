"""The whole stored output is searched, in parts, and each reply says how far."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.api.routes import log_search
from spotd.base.errors import UserError
from spotd.domain.node import Node
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import OFFERS, SPOT, Rig


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "SEARCH_BYTES", 1000)
    monkeypatch.setattr(log_search, "LINE_BYTES", 100)


def pages(client: PathClient, text: str) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = []
    before = ""
    while not replies or before:
        replies.append(client.get(f"/v1/jobs/gpt/logs/search?text={text}&before={before}"))
        before = replies[-1]["next"]
    return replies


def found(replies: list[dict[str, Any]]) -> list[str]:
    return [
        line["text"]
        for reply in replies
        for item in reply["items"]
        for line in reversed(item["lines"])
    ]


def launched(rig: Rig) -> Node:
    return rig.launch(rig.submit(), SPOT, ago_s=100)


def test_each_line_is_found_once_the_newest_first(
    rig: Rig, client: PathClient, small: None
) -> None:
    node = launched(rig)
    lines = [f"step {n} loss {n / 7:.5f}" for n in range(1000)]
    data = "\n".join(lines).encode()
    for cut in range(0, len(data), 777):  # pieces end anywhere
        rig.log(node, "rank0", cut, data[cut : cut + 777])
    replies = pages(client, "STEP")
    assert found(replies) == lines[::-1]
    assert all(reply["searched_bytes"] <= 1000 for reply in replies)
    assert sum(reply["searched_bytes"] for reply in replies) == len(data)
    left = len(data)
    for reply in replies:
        left -= reply["searched_bytes"]
        assert reply["left_bytes"] == left
    offsets = [line["offset"] for line in replies[0]["items"][0]["lines"]]
    assert [data[at:].split(b"\n")[0].decode() for at in offsets] == [
        line["text"] for line in replies[0]["items"][0]["lines"]
    ]


def test_generations_and_streams_follow_each_other(rig: Rig, client: PathClient) -> None:
    first = launched(rig)
    rig.log(first, "setup", 0, b"Error: one\n")
    rig.log(first, "rank0", 0, b"Error: two\nfine\n")
    second = rig.launch(first.job_id, OFFERS[2], ago_s=50)
    rig.log(second, "rank0", 0, b"fine\nerror: three")
    (reply,) = pages(client, "error")
    assert found([reply]) == ["error: three", "Error: two", "Error: one"]
    assert [item["generation"] for item in reply["items"]] == [2, 1, 1]
    assert (reply["left_bytes"], reply["next"]) == (0, None)


def test_more_matches_than_a_reply_has_are_in_the_next(
    rig: Rig, client: PathClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "MOST_MATCHES", 3)
    rig.log(launched(rig), "rank0", 0, b"".join(b"x%d\n" % n for n in range(10)))
    replies = pages(client, "x")
    assert found(replies) == [f"x{n}" for n in range(9, -1, -1)]
    assert [len(item["lines"]) for reply in replies for item in reply["items"]] == [3, 3, 3, 1]


def test_a_line_longer_than_a_request_reads_and_bytes_that_never_came(
    rig: Rig, client: PathClient, small: None
) -> None:
    node = launched(rig)
    rig.log(node, "rank0", 0, b"needle" + b"-" * 5000)
    rig.log(node, "rank0", 9000, b"needle at the end\n")
    assert len(found(pages(client, "needle"))) == 2


@pytest.mark.parametrize("query", ["text=", "text=x&before=no", "text=x&before=9/0/rank0:5"])
def test_what_cannot_be_searched_is_refused(rig: Rig, client: PathClient, query: str) -> None:
    rig.log(launched(rig), "rank0", 0, b"x\n")
    with pytest.raises(UserError):
        client.get(f"/v1/jobs/gpt/logs/search?{query}")
