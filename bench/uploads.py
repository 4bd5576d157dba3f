"""What an upload costs the node in CPU: the saver's own path into a bucket, and the bare client.

Both send the same bytes from the same memory, in the same process, whose CPU seconds are counted;
who takes them is another process (`bench.sink`), whose are not."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import obstore
import xxhash
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from obstore.store import S3Store

from bench import sink
from providers.stores.base import ObjectStore
from providers.stores.bucket import PART_BYTES
from providers.stores.s3 import open_s3
from trainer.saver.rank_upload import MAX_CONCURRENCY, RankUpload, SnapshotLabel
from trainer.saver.streams import FillingSlot

PLAIN, TLS = "http", "https"
UPLOAD, BARE = "upload", "bare put"
SEND = "bare send"  # of the same bytes by this system, over plain TCP: what no client goes below
SENDFILE = "bare sendfile"  # the same without a copy of the bytes, which no client of buckets does
DIGESTS = "digests"  # which "upload" has in it
_KEYS = {"access_key_id": "bench", "secret_access_key": "bench", "region": "us-east-1"}
Measured = dict[str, dict[str, float]]  # name -> what -> seconds, of CPU and of the clock, per GB


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, its own issuer, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    paths = folder / "sink.crt", folder / "sink.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


class Uploads:
    """Of `size_bytes` of `memory`, page-aligned, over plain HTTP and over TLS; they are in the file
    `fd` from byte `start` on."""

    def __init__(
        self, memory: memoryview, size_bytes: int, urls: dict[str, str], fd: int, start: int
    ) -> None:
        self._memory, self._size = memory, size_bytes
        self._fd, self._start = fd, start
        self._pool = ThreadPoolExecutor(MAX_CONCURRENCY)
        self._stores = {scheme: _store(url) for scheme, url in urls.items()}
        self._bare = {scheme: _bare(url) for scheme, url in urls.items()}
        self._port = int(urls[PLAIN].rpartition(":")[2])
        self._number = 0

    def measure(self) -> Measured:
        """One of each."""
        found: Measured = {}
        for scheme, store in self._stores.items():
            found[f"{UPLOAD}, {scheme}"] = self._count(lambda store=store: self._ours(store))
            bare = self._bare[scheme]
            found[f"{BARE}, {scheme}"] = self._count(lambda bare=bare: self._plain(bare))
        found[SEND] = self._count(lambda: self._send(self._send_view))
        found[SENDFILE] = self._count(lambda: self._send(self._send_file))
        found[DIGESTS] = self._count(self._digest)
        return found

    def close(self) -> None:
        self._pool.shutdown()

    def _count(self, work: Callable[[], None]) -> dict[str, float]:
        cpu_s, began_s = time.process_time(), time.perf_counter()
        work()
        size_gb = self._size / 1e9
        return {
            "cpu_s_per_gb": (time.process_time() - cpu_s) / size_gb,
            "s_per_gb": (time.perf_counter() - began_s) / size_gb,
        }

    def _ours(self, store: ObjectStore) -> None:
        self._number += 1
        label = SnapshotLabel(f"jobs/bench/g00000001/s{self._number:012d}-b", 1, self._number, 1, 0)
        filling = FillingSlot(self._memory, lambda: self._size, lambda: False)
        going = RankUpload(label, 0, self._size, (), filling, None)
        going.put(store, self._pool, MAX_CONCURRENCY)
        going.publish(store)  # its digests are there
        going.join(60.0)

    def _send(self, body: Callable[[socket.socket, int, int], None]) -> None:
        """As many connections as the saver has, each with nothing but what `body` does."""

        def one(parts: list[tuple[int, int]]) -> None:
            with socket.create_connection(("127.0.0.1", self._port)) as line:
                for at, end in parts:
                    line.sendall(b"PUT /sent HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (end - at))
                    body(line, at, end)
                    line.recv(65536)

        parts = self._parts()
        list(
            self._pool.map(
                one, [parts[number::MAX_CONCURRENCY] for number in range(MAX_CONCURRENCY)]
            )
        )

    def _send_view(self, line: socket.socket, at: int, end: int) -> None:
        line.sendall(self._memory[at:end])

    def _send_file(self, line: socket.socket, at: int, end: int) -> None:
        while at < end:
            at += os.sendfile(line.fileno(), self._fd, self._start + at, end - at)

    def _digest(self) -> None:
        for at, end in self._parts():
            xxhash.xxh3_128_hexdigest(self._memory[at:end])

    def _parts(self) -> list[tuple[int, int]]:
        return [(at, min(at + PART_BYTES, self._size)) for at in range(0, self._size, PART_BYTES)]

    def _plain(self, store: Any) -> None:
        """What the client takes at least: single requests of the size of a part, unsigned."""
        for done in [
            self._pool.submit(
                obstore.put, store, f"bare/{at}", self._memory[at:end], use_multipart=False
            )
            for at, end in self._parts()
        ]:
            done.result()


@contextmanager
def sinks(folder: Path) -> Iterator[dict[str, str]]:
    """Where to upload to, by scheme. From now on clients of this process trust that certificate."""
    certificate, key = make_certificate(folder)
    os.environ["SSL_CERT_FILE"] = str(certificate)
    with sink.serving() as plain, sink.serving(certificate, key) as secure:
        yield {PLAIN: f"http://127.0.0.1:{plain}", TLS: f"https://127.0.0.1:{secure}"}


def bucket_env(url: str) -> dict[str, str]:
    """What tells a saver to upload there."""
    options = {**_KEYS, "endpoint": url, "allow_http": "true"}
    return {"SPOTD_STORE_URL": "s3://bench", "SPOTD_STORE_OPTIONS": json.dumps(options)}


def _store(url: str) -> ObjectStore:
    return open_s3("bench", "", {**_KEYS, "endpoint": url, "allow_http": "true"})


def _bare(url: str) -> Any:
    return S3Store(
        "bench",
        endpoint=url,
        unsigned_payload=True,
        client_options={"allow_http": True},
        **_KEYS,
    )
