"""Authentication of the stand-in's callers: one service account, by tokens that it signs itself.

Its key belongs to another universe domain, which Google also sells. So the SDK does not look up the
account elsewhere (in Google's own universe it checks where the account may be used), and addresses
that it makes up end in a name that cannot exist.
"""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from google.auth import jwt

ACCOUNT = "spotd@lab.iam.gserviceaccount.com"
UNIVERSE = "standin.test"


class Identity:
    """`revoked` makes every token of the account invalid."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key()
        self._public = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.revoked = False

    def write_key(self, path: Path, endpoint: str) -> None:
        """Write the account's key in Google's format."""
        private = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        facts = {
            "type": "service_account",
            "project_id": "lab",
            "private_key_id": "1",
            "private_key": private.decode(),
            "client_email": ACCOUNT,
            "client_id": "1",
            "token_uri": f"{endpoint}/token",
            "universe_domain": UNIVERSE,
        }
        path.write_text(json.dumps(facts))

    def write_stranger(self, path: Path, endpoint: str) -> None:
        """Write a key of an account that has to request a token, and gets none."""
        subject = path.with_suffix(".subject")
        subject.write_text("nobody")
        facts = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/"
            "providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{endpoint}/token",
            "credential_source": {"file": str(subject)},
            "universe_domain": UNIVERSE,
        }
        path.write_text(json.dumps(facts))

    def refuse(self) -> tuple[int, bytes]:
        """Answer a token request with a refusal."""
        wrong = {"error": "invalid_grant", "error_description": "The given credential is rejected."}
        return 400, json.dumps(wrong).encode()

    def knows(self, header: str) -> bool:
        """Whether the caller is authenticated."""
        try:
            claims = jwt.decode(header.removeprefix("Bearer "), certs=self._public)
            return not self.revoked and bool(claims["iss"] == ACCOUNT)
        except (ValueError, KeyError):
            return False
