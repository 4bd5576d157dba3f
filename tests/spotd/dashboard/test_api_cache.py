"""What was read is kept for a while, and a way that ended is opened anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotd.api_client.client import Client, Target
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.dashboard import api_cache
from spotd.dashboard.api_cache import MOST_EVENTS, ApiCache, PageData, Query
from spotd.domain.events import Event
from tests.spotd.api.rig import Rig, story


def counted(cache: ApiCache, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that it makes from now on."""
    made: list[str] = []
    call = Client.call

    def note(self: Client, endpoint: Endpoint, *args: Any, **options: Any) -> dict[str, Any]:
        made.append(endpoint.path)
        return call(self, endpoint, *args, **options)

    monkeypatch.setattr(Client, "call", note)
    return made


def test_an_answer_is_asked_for_once_while_it_is_fresh(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ApiCache(Target(socket=str(rig.socket)))
    made = counted(cache, monkeypatch)
    asks = (
        Query(routes.LIST_JOBS(), {}, 3600),
        Query(routes.LIST_JOBS(), {"all": 1}, 3600),
        Query(routes.HEALTH(), {}, 0),
    )
    for _ in range(3):
        cache.fetch(PageData(), *asks)
    assert (made.count("/v1/jobs"), made.count("/v1/health")) == (2, 3)
    cache.close()


def test_a_daemon_that_is_silent_is_not_asked_by_each_question(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ApiCache(Target(socket=str(rig.socket)), age_factor=0.0)
    cache.fetch(PageData(), Query(routes.LIST_JOBS()))
    rig.stop()
    cache.fetch(PageData(), Query(routes.LIST_JOBS()))
    made = counted(cache, monkeypatch)
    reading = PageData()
    answers = cache.fetch(reading, Query(routes.LIST_JOBS()), Query(routes.LIST_NODES()))
    assert made == []
    assert answers[0] is not None  # as it was
    assert answers[1] is None
    assert reading.away is not None
    monkeypatch.setattr(api_cache, "_RETRY_S", 0.0)
    rig.start()
    cache._retry_at_s = 0.0
    reading = PageData()
    assert cache.fetch(reading, Query(routes.LIST_NODES()))[0] is not None
    assert (reading.away, made) == (None, ["/v1/nodes"])
    cache.close()


def test_a_refusal_is_told_and_no_reason_to_show_what_was(rig: Rig) -> None:
    cache, reading = ApiCache(Target(socket=str(rig.socket))), PageData()
    assert cache.fetch(reading, Query(routes.SHOW_JOB(job="none"))) == [None]
    assert "no job" in reading.refused[0][0]
    assert reading.away is None
    cache.close()


def test_events_are_the_newest_and_not_without_end(rig: Rig) -> None:
    cache = ApiCache(Target(socket=str(rig.socket)), age_factor=0.0)
    job_id = story(rig)
    before = len(cache.events(PageData()))
    for number in range(MOST_EVENTS):
        rig.store.events.add(job_id, Event("note", f"n{number}"), rig.ago(0))
    found = cache.events(PageData())
    assert 0 < before < MOST_EVENTS == len(found)
    assert found[-1]["text"] == f"n{MOST_EVENTS - 1}"
    ids = [one["id"] for one in found]
    assert ids == sorted(set(ids))
    assert {one["job_id"] for one in cache.events(PageData(), job_id)} == {job_id}
    cache.close()


def test_an_ssh_that_ended_is_started_anew(
    rig: Rig, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ApiCache(Target(host="me@box", socket=str(rig.socket)), age_factor=0.0)
    assert cache.fetch(PageData(), Query(routes.HEALTH()))[0] is not None
    assert ssh.read_text().count("'-L'") == 1
    rig.stop()  # what a tunnel leads to is gone: the answer is as if the tunnel was
    reading = PageData()
    cache.fetch(reading, Query(routes.HEALTH()))
    assert reading.away is not None
    rig.start()
    cache._retry_at_s = 0.0
    reading = PageData()
    assert cache.fetch(reading, Query(routes.HEALTH()))[0] is not None
    assert reading.away is None
    assert ssh.read_text().count("'-L'") == 2
    cache.close()
