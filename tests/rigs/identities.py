"""Machines of the three clouds that say who they are, and those who believe them or not: AWS's STS,
Google's token service with its IAM, and Entra, at one address.

Each checks what the real one would: a signature of AWS by AWS's own SDK, a token by its key.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from google.auth import crypt, jwt

from providers.local.documents import Ask, Reply
from tests.rigs.metadata import serve_script

GCP_PATH = "/computeMetadata/v1/instance/service-accounts/default/identity"
AZURE_PATH = "/metadata/identity/oauth2/token"
AWS_PATH = "/latest/meta-data/iam/security-credentials/"
AUDIENCE = "api://spotd d0"
SUBJECT = "the machine's account"
ROLE = "arn:aws:iam::123456789012:role/spotd-node-d0"
SECRETS = ("an AWS machine's secret key", "an AWS machine's session/token+==")
POOL = "projects/1234/locations/global/workloadIdentityPools/spotd-d0"
ACCOUNT = "spotd-node-d0@lab.iam.gserviceaccount.com"
ENTRA = "api://AzureADTokenExchange"
TENANT, APPLICATION = "00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000c"


@dataclass
class Issuer:
    """A cloud: its metadata services, its key, and who trusts what of it. `roles` are the names
    that a machine of AWS has."""

    url: str = ""
    subject: str = SUBJECT
    status: int = 200
    roles: str = "spotd-node-d0"

    def __post_init__(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._signer = crypt.RSASigner.from_string(private)
        self._public = key.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )

    def token(self, audience: str, **more: object) -> str:
        now = int(time.time())
        claims = {"aud": audience, "sub": self.subject, "iat": now, "exp": now + 3600}
        return jwt.encode(self._signer, {**claims, **more}).decode()

    def reply(self, ask: Ask) -> Reply:
        if self.status != 200:
            return Reply(self.status, b"unwell")
        if ask.path == GCP_PATH and ask.headers.get("metadata-flavor") == "Google":
            assert ask.query["format"] == "full"
            return Reply(200, self.token(ask.query["audience"]).encode())
        if ask.path == AZURE_PATH and ask.headers.get("metadata") == "true":
            assert ask.query["api-version"] == "2018-02-01"
            body = {"access_token": self.token(ask.query["resource"]), "expires_in": "86399"}
            return Reply(200, json.dumps(body).encode(), "application/json")
        if ask.path.startswith("/latest/"):
            return self._aws(ask)
        return Reply(200, b"<html>a proxy's page") if ask.path == "/" else Reply(403)

    def _aws(self, ask: Ask) -> Reply:
        if (ask.method, ask.path) == ("PUT", "/latest/api/token"):
            assert 0 < int(ask.headers["x-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
            return Reply(200, b"imds-session")
        if ask.headers.get("x-aws-ec2-metadata-token") != "imds-session":
            return Reply(401)
        keys = {"Code": "Success", "AccessKeyId": "ASIAMACHINE", "SecretAccessKey": SECRETS[0]}
        documents = {
            AWS_PATH: self.roles,
            AWS_PATH + "spotd-node-d0": json.dumps({**keys, "Token": SECRETS[1]}),
            "/latest/meta-data/placement/region": "eu-west-1",
        }
        found = documents.get(ask.path, "")
        return Reply(200, found.encode()) if found else Reply(404, b"<html>")

    def distrust(self, token: str, audience: str = AUDIENCE) -> str:
        """As the role's trust policy: this issuer, this audience, this machine."""
        try:
            claims = jwt.decode(token, certs=self._public, audience=audience)
        except ValueError as error:
            return str(error)
        return "" if claims["sub"] in {SUBJECT, ROLE} else "Not authorized"


@dataclass
class Believers:
    """`trusts` is the session of a role that Google's provider and Entra know; `down` a status that
    all of them answer with; `asked` their requests by path, without what is secret; `lasts_s` how
    long a token is good that Google's account or Entra makes."""

    issuer: Issuer
    url: str = ""
    trusts: str = "arn:aws:sts::123456789012:assumed-role/spotd-node-d0/i-1"
    down: int = 0
    enabled: bool = True
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lasts_s: int = 3600
    made: dict[str, tuple[float, str]] = field(default_factory=dict)  # token -> (end, scope)
    used: list[str] = field(default_factory=list)  # Google's tokens, as its store saw them
    denied: list[str] = field(default_factory=list)

    def guard(self, token: str, method: str, *_: object) -> str:
        """Of Google's store (tests.rigs.gcs): what its tokens are good for, and how long."""
        self.used.append(token)
        ends, scope = self.made.get(token, (0.0, ""))
        if time.time() >= ends:
            self.denied.append(token)
            return "401 AuthenticationRequired"
        reads = scope.endswith(".read_only") and method not in {"GET", "HEAD"}
        return "403 InsufficientScope" if reads else ""

    def sts(self, url: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        """AWS: who asks is who signed."""
        form = dict(parse_qsl(urlsplit(url).query)) | dict(parse_qsl(body.decode()))
        if not is_signed(url, headers, body):
            return 403, xml_error("SignatureDoesNotMatch", "The request signature does not match")
        self.asked.append((form["Action"], form))
        if form["Action"] == "GetCallerIdentity":
            arn = "arn:aws:sts::123456789012:assumed-role/spotd-node-d0/i-1"
            return 200, f"<GetCallerIdentityResult><Arn>{arn}</Arn></GetCallerIdentityResult>"
        if not self.enabled:
            said = "Outbound web identity federation is not enabled"
            return 403, xml_error("OutboundWebIdentityFederationDisabledException", said)
        token = self.issuer.token(form["Audience.member.1"], sub=ROLE)
        return 200, f"<WebIdentityToken>{token}</WebIdentityToken><Expiration>x</Expiration>"

    def google(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        provider = form["audience"].rpartition("/")[2]
        known = f"//iam.googleapis.com/{POOL}/providers/{provider}"
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
        kind = form["subject_token_type"]
        wrong = "" if form["audience"] == known else "no such provider"
        if provider == "spotd-azure":
            assert kind == "urn:ietf:params:oauth:token-type:jwt"
            wrong = wrong or self.issuer.distrust(form["subject_token"])
        else:
            assert (provider, kind) == (
                "spotd-aws",
                "urn:ietf:params:aws:token-type:aws4_request",
            )
            wrong = wrong or self._asks_aws(form["subject_token"], known)
        if wrong:
            return 400, {"error": "invalid_grant", "error_description": wrong}
        self.asked.append(("token", form))
        return 200, {"access_token": "federated-1", "expires_in": 3600, "token_type": "Bearer"}

    def _asks_aws(self, token: str, known: str) -> str:
        """Google sends the machine's question as it is, and reads whose it was."""
        question = json.loads(unquote(token))
        assert question["method"] == "POST"
        headers = {row["key"].lower(): row["value"] for row in question["headers"]}
        if headers.get("x-goog-cloud-target-resource") != known:
            return "the signed target is another provider"
        status, said = self.sts(question["url"], headers, b"")
        if status != 200:
            return f"AWS says {status}"
        return "" if f"<Arn>{self.trusts}</Arn>" in said else "The given credential is rejected"

    def account(self, path: str, token: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wanted = f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
        if token != "Bearer federated-1" or path != wanted:
            said = {"status": "PERMISSION_DENIED", "message": "iam.serviceAccounts.getAccessToken"}
            return 403, {"error": {"code": 403, **said}}
        [scope] = asked["scope"]
        root = "https://www.googleapis.com/auth/devstorage"
        assert scope in {f"{root}.read_write", f"{root}.read_only"}
        lasts_s = min(int(asked["lifetime"].rstrip("s")), self.lasts_s)
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lasts_s)
        self.asked.append(("account", asked))
        made = f"ya29.account-{len(self.made)}"
        self.made[made] = until.timestamp(), scope
        return 200, {"accessToken": made, "expireTime": until.strftime("%Y-%m-%dT%XZ")}

    def entra(self, tenant: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        assert form["grant_type"] == "client_credentials"
        assert form["scope"] == "https://storage.azure.com/.default"
        assert form["client_assertion_type"].endswith(":client-assertion-type:jwt-bearer")
        wrong = self.issuer.distrust(form["client_assertion"], ENTRA)
        if (tenant, form["client_id"]) != (TENANT, APPLICATION):
            wrong = "AADSTS700016: Application was not found"
        if wrong:
            said = f"AADSTS700213: No matching federated identity record: {wrong}\r\nTrace ID: 1"
            return 401, {"error": "invalid_client", "error_description": said}
        self.asked.append(("entra", form))
        issuer = f"https://sts.windows.net/{TENANT}/"
        now = int(time.time())
        times = {"nbf": now - 9, "exp": now + self.lasts_s}
        token = self.issuer.token("https://storage.azure.com", iss=issuer, **times)
        self.made[token] = times["exp"], form["scope"]
        lasts_s = self.lasts_s - 1
        return 200, {"access_token": token, "expires_in": lasts_s, "token_type": "Bearer"}


def is_signed(url: str, headers: dict[str, str], body: bytes) -> bool:
    """By the machine's keys, as AWS's SDK would have signed the same."""
    line = headers.get("authorization", "")
    names = line.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    kept = {name: headers[name] for name in names if name in headers}
    if not {"host", "x-amz-date", "x-amz-security-token"} <= kept.keys():
        return False
    request = AWSRequest("POST", url, kept, body)
    request.context["timestamp"] = kept["x-amz-date"]
    signer = SigV4Auth(Credentials("ASIAMACHINE", SECRETS[0], SECRETS[1]), "sts", "eu-west-1")
    wanted = signer.signature(
        signer.string_to_sign(request, signer.canonical_request(request)), request
    )
    right = kept["x-amz-security-token"] == SECRETS[1]
    return right and line.endswith(f"Signature={wanted}")


def xml_error(code: str, text: str) -> str:
    said = f"<Code>{code}</Code><Message>{text}</Message>"
    return f"<ErrorResponse><Error>{said}</Error></ErrorResponse>"


class _Handler(BaseHTTPRequestHandler):
    believers: Believers

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        believers = self.believers
        answer: Any = ""
        if believers.down:
            status = believers.down
        elif self.path == "/v1/token":
            status, answer = believers.google(dict(parse_qsl(body.decode())))
        elif self.path.endswith(":generateAccessToken"):
            token = headers.get("authorization", "")
            status, answer = believers.account(self.path, token, json.loads(body))
        elif self.path.endswith("/oauth2/v2.0/token"):
            status, answer = believers.entra(
                self.path.split("/")[1], dict(parse_qsl(body.decode()))
            )
        else:
            status, answer = believers.sts(believers.url + self.path, headers, body)
        said = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


@contextmanager
def believing() -> Iterator[Believers]:
    """A machine's cloud, and the others, for the length of the block."""
    issuer = Issuer()
    made = Believers(issuer)
    handler = type("Handler", (_Handler,), {"believers": made})
    answer: Callable[[Ask], Reply] = issuer.reply
    with (
        serve_script(answer) as (url, _),
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
    ):
        issuer.url = url
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def google_options(others: Believers, cloud: str) -> dict[str, str]:
    """Of a store of Google's, for a machine of `cloud`."""
    who = {"identity": cloud, "service_account": ACCOUNT, "pool": POOL, "audience": AUDIENCE}
    where = {"metadata": others.issuer.url, "sts": others.url, "iam": others.url}
    return {**who, **where, "tokens": f"{others.url}/v1/token", "session": "spotd-j1"}


def entra_options(others: Believers, cloud: str) -> dict[str, str]:
    """Of a store of Azure's."""
    who = {"identity": cloud, "tenant": TENANT, "application": APPLICATION, "audience": ENTRA}
    where = {"metadata": others.issuer.url, "sts": others.url, "tokens": others.url}
    return {**who, **where, "session": "spotd-j1"}
