"""Alerts by the library apprise, to a server of this machine."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from spotd.alert_sinks import apprise
from spotd.alert_sinks.apprise import AppriseSink
from spotd.alert_sinks.base import AlertSinkError
from spotd.alert_sinks.registry import AnyAlertRoute
from spotd.base.log import redactor
from spotd.base.validation import problems_of
from spotd.config.file import ConfigFile
from spotd.reaper import config as reaper_config
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.alert_sinks import samples

# The library's own, at its import.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

TOKEN = "canaryXXcanaryXX"
_ROUTES: TypeAdapter[AnyAlertRoute] = TypeAdapter(AnyAlertRoute)


class Service:
    """What a service of apprise was sent; it answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.location = ""
        self.got: list[dict[str, Any]] = []
        self.port = 0
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"json://ada:{TOKEN}@127.0.0.1:{self.port}/hook/{TOKEN}"


@contextmanager
def serving() -> Iterator[Service]:
    service = Service()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            service.got.append(json.loads(body))
            service.hold.wait(LIMIT_S)
            self.send_response(service.status)
            if service.location:
                self.send_header("Location", service.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as found:
        yield found


def sink(*services: Service, **keys: Any) -> AppriseSink:
    section = {"kind": "apprise", "urls_env": "URLS", **keys}
    urls = "\n".join(service.url for service in services)
    built = _ROUTES.validate_python(section).build({"URLS": urls})
    assert isinstance(built, AppriseSink)
    return built


def test_a_message_has_the_error_the_command_and_the_page(service: Service) -> None:
    of_kind = {alert.event.kind: alert for alert in samples.samples()}
    sink(service).send([of_kind["failed"]])
    (got,) = service.got
    assert got["title"] == "Error: gpt: failed"
    assert got["type"] == "failure"
    assert got["message"].splitlines() == [
        f"gpt: {of_kind['failed'].event.text} (alert 7)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "To do: Read spotctl logs gpt, correct the cause, and run it again.",
        "More: spotctl why gpt",
        "https://spotd.example.org/job/gpt",
    ]


def test_a_digest_has_the_failed_job_first(service: Service) -> None:
    sink(service).send([*samples.digest(), *samples.samples()])
    (got,) = service.got
    count = sum(alert.repeats for alert in [*samples.digest(), *samples.samples()])
    assert got["title"] == f"Error: {count} alerts of spotd"
    assert got["message"].startswith("gpt: gpt failed")
    assert got["message"].endswith(" more: spotctl events")


def test_words_of_a_job_mention_nobody(service: Service) -> None:
    sink(service).send_text("step @everyone <@U123>")
    assert "@everyone" not in service.got[0]["message"]
    assert "everyone" in service.got[0]["message"]


def test_a_text_that_is_too_long_for_a_service_comes_in_parts(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discord refuses more than 2,000 characters."""
    monkeypatch.setattr("apprise.plugins.custom_json.NotifyJSON.body_maxlen", 100)
    sink(service).send_text("word " * 100)
    assert len(service.got) > 3
    assert all(len(got["message"]) <= 100 for got in service.got)


def test_who_took_it_does_not_get_it_again(service: Service) -> None:
    with serving() as broken:
        built = sink(service, broken)
        broken.status = 500
        alerts = [replace(samples.samples()[0], rows=(7,))]
        with pytest.raises(AlertSinkError, match="URL 2 of 2") as caught:
            built.send(alerts)
        assert TOKEN not in str(caught.value)
        broken.status = 200
        built.send(alerts)
        assert len(service.got) == 1
        assert len(broken.got) == 2
        built.send(alerts)
        assert len(service.got) == 2, "the next message is one of its own"


def test_a_row_that_is_folded_with_another_one_later_is_not_sent_again(service: Service) -> None:
    with serving() as broken:
        built = sink(service, broken)
        broken.status = 500
        first, second = (replace(samples.samples()[0], rows=(row,)) for row in (7, 8))
        for alert in (first, second):
            with pytest.raises(AlertSinkError) as caught:
                built.send([alert])
            assert caught.value.partly
        assert len(service.got) == 2
        broken.status = 200
        built.send([replace(first, rows=(7, 8), repeats=2)])
        assert len(service.got) == 2
        assert "2 times" in broken.got[-1]["message"]


def test_a_url_in_its_pause_is_left_out_of_new_messages(service: Service) -> None:
    with serving() as broken:
        built = sink(service, broken)
        broken.status = 500
        for row in range(3):
            with pytest.raises(AlertSinkError, match="URL 2 of 2"):
                built.send([replace(samples.samples()[0], rows=(row,))])
        assert (len(service.got), len(broken.got)) == (3, 1)
        with pytest.raises(AlertSinkError, match="URL 2 of 2"):
            built.send([replace(samples.samples()[0], rows=(0,))])
        assert (len(service.got), len(broken.got)) == (3, 2), "what it missed is for it alone"


def test_a_url_that_hangs_holds_up_no_other_and_is_not_asked_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apprise, "LIMIT_S", 0.2)
    with serving() as slow:
        slow.hold.clear()
        built = sink(slow, service)
        alert = replace(samples.samples()[0], rows=(7,))
        with pytest.raises(AlertSinkError, match="URL 1 of 2"):
            built.send([alert])
        assert len(service.got) == 1
        with pytest.raises(AlertSinkError, match="URL 1 of 2"):
            built.send([alert])
        slow.hold.set()
        until(lambda: 7 in built._addresses[0].taken)
        built.send([alert])
        assert (len(service.got), len(slow.got)) == (1, 1)


def test_one_that_does_not_answer_has_not_taken_it() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = Service()
        nobody.port = held.getsockname()[1]
        with pytest.raises(AlertSinkError, match="URL 1 of 1"):
            sink(nobody).send_text("x")


def test_no_redirect_is_followed(service: Service) -> None:
    with serving() as thief:
        service.status, service.location = 307, f"http://127.0.0.1:{thief.port}/"
        with pytest.raises(AlertSinkError):
            sink(service).send_text("x")
        assert thief.got == []


def test_the_urls_are_secrets(service: Service, tmp_path: Path) -> None:
    built = sink(service)
    assert TOKEN not in repr(built)
    assert TOKEN not in redactor.clean(f"posting to {service.url}: {TOKEN}")
    assert "127.0.0.1" in redactor.clean("listens on 127.0.0.1"), "a host is no secret"
    with pytest.raises(ValidationError) as caught:
        ConfigFile.model_validate(
            {"alerts": {"routes": {"a": {"kind": "apprise", "urls": [service.url]}}}}
        )
    ((_, problem),) = problems_of(caught.value, ConfigFile)
    assert "urls_file" in problem.fix
    assert TOKEN not in str(problem)
    file = tmp_path / "urls"
    file.write_text(service.url + "\n")
    route = _ROUTES.validate_python({"kind": "apprise", "urls_file": str(file)})
    assert route.build({}) == built


@pytest.mark.parametrize("urls", ["nonsense://x", f"json://127.0.0.1/\nnothing/{TOKEN}"])
def test_a_url_that_apprise_does_not_know(urls: str) -> None:
    route = _ROUTES.validate_python({"kind": "apprise", "urls_env": "URLS"})
    with pytest.raises(ValueError, match=r"URL \d is none that apprise knows; write") as caught:
        route.build({"URLS": urls})
    assert TOKEN not in str(caught.value)


def test_the_urls_in_the_documentation_are_known() -> None:
    page = (samples.PAGE.parent / "alerts.md").read_text(encoding="utf-8")
    urls = re.findall(r"^\| .* \| `(\w+://\S+)` \|$", page, re.MULTILINE)
    assert len(urls) == 5
    route = _ROUTES.validate_python({"kind": "apprise", "urls_env": "URLS"})
    assert route.build({"URLS": "\n".join(urls)}) == AppriseSink(tuple(urls))


def test_without_urls_or_the_library_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    route = _ROUTES.validate_python({"kind": "apprise", "urls_env": "URLS"})
    with pytest.raises(ValueError, match="URLS is not set"):
        route.build({})
    with pytest.raises(ValueError, match="has no URLs; set urls_file"):
        _ROUTES.validate_python({"kind": "apprise"}).build({})
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ValueError, match="needs the library apprise; install it"):
        route.build({"URLS": "json://127.0.0.1/"})


def test_the_reaper_sends_by_it_too(service: Service, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "urls").write_text(service.url)
    path = tmp_path / "reaper.toml"
    path.write_text(
        'deployment = "0123456789ab"\n[providers.aws]\nkind = "local"\n'
        'url = "http://127.0.0.1:8700"\npersonality = "aws"\n'
        f'token_file = "{tmp_path}/token"\n'
        f'[page.routes.team]\nkind = "apprise"\nurls_file = "{tmp_path}/urls"\n'
    )
    (built,) = reaper_config.load(path, {}).sinks
    built.send_text("2 machines were ended")
    assert service.got[0]["message"] == "2 machines were ended"
    assert service.got[0]["title"] == "spot-reaper"


def test_nothing_of_it_is_imported_without_such_a_route() -> None:
    program = "import sys, spotd.alert_sinks.registry; sys.exit('apprise' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
