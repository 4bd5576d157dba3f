"""An HTTP receiver that answers as Slack's incoming webhooks do: plain text, limits and all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "/services/T00000000/B11111111/canaryXXcanaryXXcanary"

MAX_BLOCKS = 50
MAX_SECTION_CHARS = 3000
MAX_MESSAGE_CHARS = 13_200

Answer = tuple[int, str, dict[str, str]]
OK: Answer = (200, "ok", {})


def judge(body: bytes) -> Answer:
    """What Slack says to a request body."""
    try:
        message = json.loads(body)
    except ValueError:
        return 400, "invalid_payload", {}
    blocks = message.get("blocks", [])
    if not message.get("text"):
        return 400, "no_text", {}
    if len(blocks) > MAX_BLOCKS:
        return 400, "invalid_blocks", {}
    texts = [block["text"]["text"] for block in blocks if block["type"] == "section"]
    if any(not 0 < len(text) <= MAX_SECTION_CHARS for text in texts):
        return 400, "invalid_blocks", {}
    if len(json.dumps(blocks, ensure_ascii=False)) > MAX_MESSAGE_CHARS:
        return 400, "msg_blocks_too_long", {}
    return OK


class Slack:
    """`script` holds answers to be given before judging by the rules; `messages` what was taken."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.requests: list[bytes] = []
        self.messages: list[dict[str, Any]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{SECRET}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, path: str, body: bytes) -> Answer:
        self.requests.append(body)
        if path != SECRET:
            return 404, "no_team", {}
        answer = self.script.pop(0) if self.script else judge(body)
        if answer[0] == 200:
            self.messages.append(json.loads(body))
        self.before_answer()
        return answer


@contextmanager
def serving() -> Iterator[Slack]:
    """A receiver on a port of its own, until the block ends."""
    slack = Slack()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, text, headers = slack.answer(self.path, body)
            data = text.encode()
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the sender has given up or was killed

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    slack.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield slack
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
