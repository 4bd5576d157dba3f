"""A bucket and STS on moto, which keep to what was lent: a session reaches what its policy allows,
until it ends. (moto hands sessions out and asks for neither.)

Time may be made short: `scale` of every second that a session is asked for counts.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode

from moto.core.utils import utcnow
from moto.sts.models import sts_backends

from spotd.demo import s3
from spotd.demo.bucket import Bucket
from tests.providers.evaluate import aws_allows

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PROFILE = "lending"
ROLE = "arn:aws:iam::123456789012:role/spotd-node-d0"
_SIGNED = re.compile(r"Credential=([^/]+)/[^/]+/[^/]+/([^/]+)/")
_ACTIONS = {"GET": "GetObject", "HEAD": "GetObject", "DELETE": "DeleteObject"}


@dataclass
class Rules:
    """What the stand-in does, and what it was asked: `asked` are the calls of STS, `denied` what it
    refused. `longest_s` is the role's MaxSessionDuration; `down` is the text of an error that it
    answers all calls of STS with."""

    longest_s: int = 43_200
    scale: float = 1.0
    down: str = ""
    role_policy: Mapping[str, Any] = field(default_factory=dict)  # of a session without its own
    distrust: Callable[[str], str] = lambda _token: "No OpenIDConnect provider found"
    asked: list[dict[str, str]] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # sessions that S3 was asked with


class Sessions:
    """In front of moto."""

    def __init__(self, app: WSGIApplication, rules: Rules) -> None:
        self._app, self._rules = app, rules

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        signed = _SIGNED.search(environ.get("HTTP_AUTHORIZATION", ""))
        key, service = signed.groups() if signed else ("", "")
        refusal = ""
        if not signed and environ["REQUEST_METHOD"] == "POST":
            service = "sts"  # of who has nothing to sign with yet
        if service == "sts":
            refusal = self._sts(environ)
        elif service == "s3":
            refusal = self._s3(environ, key)
        if not refusal:
            return self._app(environ, start)
        status, code, text = refusal.split("|")
        start(f"{status} Refused", [("Content-Type", "text/xml")])
        error = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
        if service == "sts":
            error = f"<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>"
        return [error.encode()]

    def _sts(self, environ: WSGIEnvironment) -> str:
        body = {k: v[0] for k, v in parse_qs(_body(environ).decode()).items()}
        self._rules.asked.append(body)
        if self._rules.down:
            return self._rules.down
        if body["Action"] == "AssumeRoleWithWebIdentity":
            wrong = self._rules.distrust(body["WebIdentityToken"])
            if wrong:
                return f"400|InvalidIdentityToken|{wrong}"
        seconds = int(body.get("DurationSeconds", "3600"))
        if body["Action"] == "AssumeRole" and seconds > self._rules.longest_s:
            text = "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."
            return f"400|ValidationError|{text}"
        scaled = str(max(1, round(seconds * self._rules.scale)))
        data = urlencode({**body, "DurationSeconds": scaled}).encode()
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(data), str(len(data))
        return ""

    def _s3(self, environ: WSGIEnvironment, key: str) -> str:
        session = session_of(key)
        if session is None:
            return ""  # somebody's own keys
        self._rules.used.add(key)
        if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != session.session_token:
            return "403|InvalidToken|The provided token is malformed or otherwise invalid."
        if utcnow() >= session.expiration:
            self._rules.denied.append("expired")
            return "400|ExpiredToken|The provided token has expired."
        for action, resource, context in _wanted(environ):
            policy = json.loads(session.policy) if session.policy else self._rules.role_policy
            if not aws_allows(policy, action, resource, **context):
                self._rules.denied.append(f"{action} {resource}")
                return "403|AccessDenied|User is not authorized"
        return ""


def session_of(key: str) -> Any:
    """What moto handed out under that access key; None of a key that is none of a session."""
    for account in sts_backends.values():
        for backend in account.values():
            for session in backend.assumed_roles:
                if session.access_key_id == key:
                    return session
    return None


def _wanted(environ: WSGIEnvironment) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The actions, resources and condition keys of a request to S3."""
    name, _, key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    method, where = environ["REQUEST_METHOD"], f"arn:aws:s3:::{name}"
    if key:
        yield f"s3:{_ACTIONS.get(method, 'PutObject')}", f"{where}/{key}", {}
    elif "delete" in query:  # many at once; each counts
        for found in re.findall(r"<Key>([^<]+)</Key>", _body(environ).decode()):
            yield "s3:DeleteObject", f"{where}/{found}", {}
    else:
        yield "s3:ListBucket", where, {"s3__prefix": query.get("prefix", [""])[0]}


def _body(environ: WSGIEnvironment) -> bytes:
    """All of it, and moto reads it once more."""
    data: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(data)
    return data


@dataclass(frozen=True)
class Lending:
    """`environ` is what a process needs to find it by the profile."""

    bucket: Bucket
    rules: Rules
    environ: dict[str, str]


@contextmanager
def serving(folder: Path) -> Iterator[Lending]:
    """For the length of the block, with the box's own keys in `folder`."""
    rules = Rules()
    with s3.serving(wrap=lambda app: Sessions(app, rules)) as made:
        config, keys = folder / "aws-config", folder / "aws-credentials"
        config.write_text(f"[profile {PROFILE}]\nendpoint_url = {made.endpoint}\n")
        keys.write_text(f"[{PROFILE}]\naws_access_key_id = test\naws_secret_access_key = test\n")
        found = {
            "AWS_CONFIG_FILE": str(config),
            "AWS_SHARED_CREDENTIALS_FILE": str(keys),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield Lending(made, rules, found)
