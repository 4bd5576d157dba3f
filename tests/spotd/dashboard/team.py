"""A team's dashboard over the API of a rig, and a browser's requests to it, by hand."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode, urlsplit

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.config.dashboard import DashboardSection
from spotd.dashboard.team_server import TeamServer, start_team_server
from tests.fixtures.ports import free_port
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.api.rig import Rig
from tests.spotd.dashboard.reading import Reply


class Team:
    """A running dashboard; its address is `url`."""

    def __init__(self, rig: Rig, client_secret: str = "", **settings: Any) -> None:
        port = free_port()
        self.rig = rig
        self.url = settings.pop("url", f"http://127.0.0.1:{port}")
        self.port = port
        address = settings.pop("address", "127.0.0.1")
        self.section = DashboardSection(listen=f"{address}:{port}", url=self.url, **settings)
        self.server: TeamServer = start_team_server(
            self.section, client_secret, rig.store, rig.clock, rig.socket
        )

    def token(self, name: str, role: str = "") -> str:
        """A token as `spotctl user token` makes it."""
        data = Client(self.rig.socket).call(routes.MAKE_TOKEN(name=name), {"role": role})
        return str(data["token"])

    def visit(self) -> Visit:
        return Visit(self)

    def login(self, name: str, role: str) -> Visit:
        """Somebody who has logged in."""
        visit = self.visit()
        assert visit.login(self.token(name, role)).status == 303
        return visit

    def stop(self) -> None:
        self.server.stop()


class Visit:
    """Requests as of one browser, with its cookies and its `Origin`."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.cookies: dict[str, str] = {}

    def get(self, path: str = "/", **headers: str) -> Reply:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Reply:
        given = {"Origin": self.team.url, **headers}
        return self._ask("POST", path, urlencode(form), given)

    def login(self, token: str, **headers: str) -> Reply:
        return self.post("/login", {"token": token}, **headers)

    def csrf(self) -> str:
        """The token that the forms of this session carry."""
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.get("/").text)
        assert found
        return found[1]

    def _ask(self, verb: str, path: str, body: str | None, headers: Mapping[str, str]) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.team.port, timeout=LIMIT_S)
        given = {
            "Host": urlsplit(self.team.url).netloc,
            **{name.replace("_", "-"): value for name, value in headers.items() if value},
        }
        if self.cookies:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(verb, path, body, given)
            reply = connection.getresponse()
            for name, value in reply.getheaders():
                if name.lower() == "set-cookie":
                    self._keep(SimpleCookie(value))
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, found, reply.read().decode())
        finally:
            connection.close()

    def _keep(self, cookies: SimpleCookie) -> None:
        for name, morsel in cookies.items():
            if morsel["max-age"] == "0":
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = morsel.value
