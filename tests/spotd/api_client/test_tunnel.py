"""--host: the daemon's socket over the user's own ssh."""

from __future__ import annotations

import http.server
import socketserver
import threading
from pathlib import Path

import pytest

from spotd.api_client.client import Client
from spotd.api_client.tunnel import check_host, forward
from spotd.api_routes import routes
from spotd.base.errors import UnreachableError, UserError


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"kind": "Health"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


def test_forwards_while_the_block_runs(folder: Path, ssh: Path) -> None:
    remote = folder / "daemon.sock"
    with socketserver.ThreadingUnixStreamServer(str(remote), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with forward("me@box", str(remote)) as local:
                assert local.parent.stat().st_mode & 0o777 == 0o700
                assert Client(local).call(routes.HEALTH()) == {"kind": "Health"}
            assert not local.parent.exists()
        finally:
            server.shutdown()
            thread.join()
    assert "'-N'" in ssh.read_text()
    assert "'--', 'me@box'" in ssh.read_text()


def test_missing_daemon_behind_the_tunnel_is_unreachable(folder: Path, ssh: Path) -> None:
    with forward("me@box", str(folder / "none.sock")) as local:
        client = Client(local, "me@box:/none.sock")
        with pytest.raises(UnreachableError, match=r"no daemon answers on me@box:/none\.sock"):
            client.call(routes.HEALTH())


def test_output_of_ssh_is_in_the_error(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SSH_FAILS", "1")
    denied = pytest.raises(UnreachableError, match="Permission denied")
    with denied as caught, forward("me@box", "/run/spotd/spotd.sock"):
        pytest.fail("there is no tunnel")
    assert "ssh me@box true" in caught.value.try_


@pytest.mark.parametrize("host", ["", "-oProxyCommand=evil", "two words"])
def test_host_cannot_be_an_ssh_option(host: str) -> None:
    with pytest.raises(UserError, match="is not a host"):
        check_host(host)
