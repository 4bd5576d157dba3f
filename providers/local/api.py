"""The local cloud's HTTP API: `/v1/<personality>/` for spotd, `/control/` for the cloud's owner."""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from providers.base import CapacityType, LaunchRequest
from providers.local.access import HEADER, is_authorized
from providers.local.api_errors import STATUS, GarbledReply, LostReply, NotVisible, Refusal
from providers.local.blocking_http import BlockingHandler, BlockingServer
from providers.local.cloud_state import CloudState
from providers.local.control_api import ControlApi
from providers.local.preemption import Preemptor
from providers.local.process_pool import ProcessPoolError
from providers.local.scenario import PERSONALITIES
from providers.local.scenario_fields import ScenarioError

_BODY_MAX_BYTES = 1_000_000
_UNAUTHORIZED = (
    "the token is missing or not this cloud's: give the token_file that `spotctl cloud up` names"
)


class Api:
    """Routes requests. Returns JSON values; raises the errors of CloudState and ControlApi."""

    def __init__(self, cloud: CloudState, preemptor: Preemptor) -> None:
        self._cloud = cloud
        self._preemptor = preemptor
        self._control = ControlApi(cloud, preemptor)
        self.visibility_s = cloud.market.scenario.visibility_s

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, object]
    ) -> object:
        """Handle one request."""
        match path.strip("/").split("/"):
            case ["v1", personality, verb] if personality in PERSONALITIES:
                return self._serve(method, personality, verb, query, body)
            case ["v1", personality, _]:
                have = ", ".join(PERSONALITIES)
                raise Refusal("not_found", f"no personality {personality!r}; there are {have}")
            case ["control", verb]:
                return self._control.answer(method, verb, body)
        raise Refusal("not_found", f"no such path: {path}")

    def _serve(
        self,
        method: str,
        personality: str,
        verb: str,
        query: Mapping[str, str],
        body: Mapping[str, object],
    ) -> object:
        match method, verb:
            case "POST", "launch":
                return self._cloud.launch(personality, parse_launch_request(body))
            case "POST", "terminate":
                self._cloud.terminate(personality, str(body.get("instance_id", "")))
                return {}
            case "POST", "renew":
                expires_at_s = body.get("expires_at_s")
                if not isinstance(expires_at_s, int) or isinstance(expires_at_s, bool):
                    raise Refusal("rejected", f"expires_at_s is {expires_at_s!r}: unix seconds")
                ident = str(body.get("instance_id", ""))
                self._cloud.renew(personality, ident, expires_at_s)
                return {}
            case "GET", "leftovers":
                return {"leftovers": self._cloud.list_leftovers(personality, _deployment(query))}
            case "POST", "discard":
                self._cloud.discard(personality, str(body.get("leftover_id", "")))
                return {}
            case "GET", "offers":
                return {"offers": self._cloud.offers(personality)}
            case "GET", "instances":
                return {"instances": self._cloud.list(personality, _deployment(query))}
            case "GET", "notices":
                after = query.get("after", "0")
                if not after.isdecimal():
                    raise Refusal("rejected", f"after is {after!r}; it must be a number")
                rows = self._preemptor.queued_notices(personality, _deployment(query), int(after))
                return {"notices": rows, "queue": self._preemptor.queue_id}
        raise Refusal("not_found", f"no such call: {method} {verb}")


def _deployment(query: Mapping[str, str]) -> str:
    if not query.get("deployment"):
        raise Refusal("rejected", "the query must name a deployment")
    return query["deployment"]


_OPTIONAL = frozenset({"reservation", "interconnect", "gang"})  # added after the first API version


def parse_launch_request(body: Mapping[str, object]) -> LaunchRequest:
    """Parse a launch request. A field that an older spotd does not send gets its default. Raises
    Refusal, which names the invalid field."""
    fields = LaunchRequest.__dataclass_fields__
    if unknown := sorted(set(body) - set(fields)):
        raise Refusal("rejected", f"unknown field {unknown[0]!r}")
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in _OPTIONAL and name not in body:
            continue
        value = body.get(name)
        if name == "tags":
            valid = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        elif name == "capacity_type":
            valid = value in ("spot", "on_demand")
            value = CapacityType(value) if valid else value
        else:
            valid = isinstance(value, str if field.type == "str" else int)
        if not valid:
            raise Refusal("rejected", f"field {name!r} is missing or not a {field.type}")
        values[name] = value
    return LaunchRequest(**values)  # type: ignore[arg-type]  # checked above, field by field


class Server(BlockingServer):
    """The HTTP server; requests need `token`."""

    def __init__(self, bound: socket.socket, api: Api, token: str) -> None:
        self.api = api
        self.token = token
        super().__init__(bound, _Handler)


class _Handler(BlockingHandler):
    server: Server

    def _serve(self) -> None:
        try:
            status, document = 200, self._answer()
        except NotVisible:
            status, document = 200, {"instances": [], "leftovers": []}
        except Refusal as refusal:
            status, document = STATUS[refusal.code], refusal.to_data()
        except ScenarioError as error:
            status, document = 400, Refusal("rejected", "; ".join(error.mistakes)).to_data()
        except ProcessPoolError as error:
            status, document = 500, Refusal("internal", str(error)).to_data()
        except LostReply:
            self.close_connection = True
            return
        except GarbledReply:
            self._send(200, b"<html>\xff this is not JSON")
            return
        except Exception as error:  # noqa: BLE001  one failed call must not stop the cloud
            traceback.print_exc(file=sys.stderr)
            status, document = 500, Refusal("internal", repr(error)).to_data()
        self._send(status, json.dumps(document).encode())

    def _answer(self) -> object:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if length > _BODY_MAX_BYTES:
            self.close_connection = True
            raise Refusal("rejected", f"the body has more than {_BODY_MAX_BYTES} bytes")
        raw = self.rfile.read(length)
        if not is_authorized(self.server.token, self.headers.get(HEADER)):
            raise Refusal("unauthorized", _UNAUTHORIZED)
        try:
            body = json.loads(raw) if raw else {}
        except ValueError as error:
            raise Refusal("rejected", f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refusal("rejected", "the body is not a JSON object")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        return self.server.api.answer(self.command, url.path, query, body)

    def _send(self, status: int, body: bytes) -> None:
        headers = {
            "Content-Type": "application/json",
            "X-Local-Cloud": "true",
            "X-Visibility-S": str(self.server.api.visibility_s),
        }
        self.send(status, headers, body)

    do_GET = do_POST = _serve  # noqa: N815  the base class's names
