"""Logs: one line of JSON or of words, and no secret in either."""

import io
import json
import logging
import os
import pty
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog

from spotd.alert_sinks.base import Alert
from spotd.alert_sinks.log import LogSink
from spotd.base import log
from spotd.base.log import FLOOD_LINES, FLOOD_S, Redactor, Sampler
from spotd.domain.events import Event
from tests.fixtures.waiting import LIMIT_S

WEBHOOK = "https://hooks.slack.com/services/T0AAAAAAA/B0BBBBBBB/cccccccccccccccccccccccc"
PEM = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    "b3BlbnNzaC1r\nZXktdjEAAAAA\n"
    "-----END OPENSSH PRIVATE KEY-----"
)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines_of(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def configure(form: str = "json", level: str = "info") -> tuple[io.StringIO, Redactor]:
    out, hide = io.StringIO(), Redactor()
    log.configure(level=level, form=form, stream=out, environ={}, hide=hide)
    return out, hide


def test_json_lines_carry_time_level_logger_and_the_given_fields() -> None:
    out, _ = configure()
    structlog.get_logger("spotd.test").info("launched %s", "a node", job="j1", price=3)
    [line] = lines_of(out)
    assert line.pop("timestamp", "").endswith("Z")  # type: ignore[attr-defined]
    assert line == {
        "event": "launched a node",
        "level": "info",
        "logger": "spotd.test",
        "job": "j1",
        "price": 3,
    }


def test_the_standard_library_is_routed_through_the_same_door() -> None:
    out, hide = configure()
    hide.register("hunter2-hunter2")
    logging.getLogger("some.library").warning("token %s refused", "hunter2-hunter2")
    [line] = lines_of(out)
    assert line["event"] == "token [hidden] refused"
    assert line["logger"] == "some.library"


def test_chatty_libraries_are_heard_from_warning_on() -> None:
    out, _ = configure(level="debug")
    for name in ("paramiko.sftp", "uvicorn.access", "apscheduler.executors", "urllib3"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble")
    logging.getLogger("apscheduler.scheduler").warning("a turn was missed")
    logging.getLogger("paramiko.transport").error("the peer went away")
    structlog.get_logger("spotd").debug("own detail")
    events = [line["event"] for line in lines_of(out)]
    assert events == ["trouble"] * 4 + ["own detail"]


def test_the_level_is_kept() -> None:
    out, _ = configure(level="warning")
    structlog.get_logger("spotd").info("no")
    structlog.get_logger("spotd").warning("yes")
    assert [line["event"] for line in lines_of(out)] == ["yes"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"posting to {WEBHOOK} failed", "cccc"),
        ("key AKIAIOSFODNN7EXAMPLE used", "ODNN7EXAMPLE"),
        ("Authorization: Bearer abcdef.123456-XYZ", "abcdef.123456"),
        ("GET /c?sv=2024&sig=Zm9vYmFy%2Bx%3D&se=1", "Zm9vYmFy"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=deadbeef00", "deadbeef00"),
        ("postgresql+psycopg://spotd:s3cr3t-pw@db/spotd", "s3cr3t-pw"),
        (PEM, "b3BlbnNzaC1r"),
        (PEM.replace("\n", "\\n"), "ZXktdjEAAAAA"),
        ("-----BEGIN RSA PRIVATE KEY-----\ncut off here MIIEow", "MIIEow"),
        ("xoxb-123456789012-abcdefABCDEF", "abcdefABCDEF"),
        ("hf_abcdefghijklmnop", "ijklmnop"),
        ("a push with ghr_abcdefghijklmnop", "ijklmnop"),
        ("a push with github_pat_11ABCDEFG0abcd_efghijklmnop", "efghijklmnop"),
        ("AccountName=a;AccountKey=c2VjcmV0c2VjcmV0Cg==;EndpointSuffix=b", "c2VjcmV0"),
        ("SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0c2VjcmV0Cg==", "c2VjcmV0"),
        ("https://a.blob.core.windows.net/c?SV=2024&Sig=c2VjcmV0%3D", "c2VjcmV0"),
        ("https://b/k?X-Amz-Security-Token=c2VjcmV0c2VjcmV0&x=1", "c2VjcmV0"),
        ("refused IQoJb3JpZ2luX2VjEHoaCXVzLXdlc3QtMiJ: it has expired", "X2VjEHoaCXVzLXdl"),
        ("refused FwoGZXIvYXdzEHoaDPqPnQ1kcSecretSecret==", "EHoaDPqPnQ1kcSecret"),
        ('aws_session_token = "c2VjcmV0c2VjcmV0Cg/+"', "c2VjcmV0"),
        ('{"aws_secret_access_key": "wJalrXUtnFEMI/K7MDENG"}', "K7MDENG"),
    ],
)
@pytest.mark.parametrize("form", ["json", "human"])
def test_what_looks_like_a_secret_is_hidden_wherever_it_stands(
    text: str, left: str, form: str
) -> None:
    out, _ = configure(form)
    logger = structlog.get_logger("spotd")
    logger.info(text)
    logger.info("event", field=text)
    logger.info("event", nested={"list": [text, {"deep": (text,)}], text: 1})
    logger.info("event", data=text.encode())
    logger.info("event", object=ValueError(text))
    logging.getLogger("library").warning("said %r", {"x": text})
    try:
        raise RuntimeError(text)
    except RuntimeError:
        logger.exception("failed")
    assert out.getvalue().count("event") >= 4
    assert left not in out.getvalue()


def test_ordinary_text_is_left_as_it_is() -> None:
    text = (
        "signal 15, design=big, https://docs.slack.dev/x, significant=1, 10.0.0.1:22 as root@host"
    )
    assert Redactor().clean(text) == text


def test_a_token_that_has_a_known_secret_in_it_is_hidden_whole() -> None:
    hide = Redactor()
    hide.register("canary")
    assert hide.clean("ghr_canaryCANARY99!") == "ghr_[hidden]!"
    assert hide.clean("Bearer abcanary.CANARY99") == "Bearer [hidden]"
    assert hide.clean("refused IQoJb3JpZ2luX2VjEcanaryXVzLXdlc3Qt=:") == (
        "refused IQoJb3JpZ2lu[hidden]:"
    )


def test_a_registered_secret_is_hidden_line_by_line_longest_first() -> None:
    hide = Redactor()
    hide.register("abcdef")
    hide.register("abcdefghij\nsecond-line\n")
    assert hide.clean("x abcdefghij y") == "x [hidden] y"
    assert hide.clean("echo second-line") == "echo [hidden]"


def test_a_short_secret_does_not_blank_the_log() -> None:
    hide = Redactor()
    hide.register("1")
    hide.register("")
    assert hide.clean("1 of 10") == "1 of 10"


def test_an_object_is_logged_as_text_and_redacted() -> None:
    @dataclass
    class Thing:
        url: str

    out, _ = configure()
    structlog.get_logger("spotd").info("event", thing=Thing(WEBHOOK))
    assert "Thing(url=" in out.getvalue()
    assert "cccc" not in out.getvalue()


def test_local_variables_of_a_traceback_are_not_shown() -> None:
    for form in ("json", "human"):
        out, _ = configure(form)
        local_value = "not-for-the-log"
        try:
            raise RuntimeError("failed" + local_value[:0])
        except RuntimeError:
            structlog.get_logger("spotd").exception("oh")
        assert "RuntimeError: failed" in out.getvalue()
        assert local_value not in out.getvalue()


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    out, _ = configure("human")
    structlog.get_logger("spotd").info("job says", text="\x1b[2Jgone\rover\x9b")
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()
    assert "\\x1b[2Jgone\\x0dover\\x9b" in out.getvalue()


def test_auto_is_words_on_a_terminal_and_json_under_systemd() -> None:
    parent, child = pty.openpty()
    with os.fdopen(parent, "rb", buffering=0) as reader, os.fdopen(child, "w") as terminal:
        for environ in ({"NO_COLOR": "1"}, {"JOURNAL_STREAM": "8:1"}, {"INVOCATION_ID": "x"}):
            log.configure(stream=terminal, environ=environ, hide=Redactor())
            structlog.get_logger("spotd").info("hello")
            terminal.flush()
            text = reader.read(4096)
            assert text.startswith(b"{") is ("NO_COLOR" not in environ)
            assert b"hello" in text
            assert b"\x1b" not in text
    out, _ = configure("auto")
    structlog.get_logger("spotd").info("into a pipe")
    assert lines_of(out)[0]["event"] == "into a pipe"


def test_python_warnings_become_log_lines() -> None:
    out, _ = configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert "old call" in str(lines_of(out)[0]["event"])


# --- floods


def sampled(now: list[float]) -> tuple[logging.Logger, Sampler, list[str]]:
    """A logger that goes through a sampler whose clock is `now[0]`, and what came out."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    sampler = Sampler(Lines(), lambda: now[0])
    logger = logging.Logger("flood")  # noqa: LOG001 - of this test alone
    logger.addHandler(sampler)
    return logger, sampler, lines


def test_a_flood_of_one_kind_is_cut_off_and_counted() -> None:
    now = [0.0]
    logger, _, lines = sampled(now)
    for number in range(FLOOD_LINES + 25):
        logger.warning("node %d does not answer", number)
        logger.info("job %s is placed", "x" * (number % 2))
    assert len([line for line in lines if line.startswith("node")]) == FLOOD_LINES
    assert lines[-1] != "node 74 does not answer"
    now[0] = FLOOD_S
    logger.warning("node %d does not answer", 99)
    assert "25 more were left out of: node %d does not answer" in lines
    assert lines[-1] == "node 99 does not answer", "and another window begins"


def test_what_differs_in_more_than_numbers_is_another_kind() -> None:
    logger, _, lines = sampled([0.0])
    for number in range(FLOOD_LINES):
        logger.info(f"pass {number} of j0{number:08x}")  # noqa: G004 - as an event is given
    logger.info("pass 51 of j0deadbeef")
    assert len(lines) == FLOOD_LINES
    logger.warning("pass 52 of j0deadbeef")
    logger.info("something else")
    assert lines[FLOOD_LINES:] == ["pass 52 of j0deadbeef", "something else"]


def test_alerts_that_go_by_the_log_are_all_there() -> None:
    """A hundred jobs lose their machines at once, and the log is the only route."""
    out, _ = configure()
    alerts = [
        Alert(number, 1, f"j{number}", "", Event("lost", "it is gone"))
        for number in range(2 * FLOOD_LINES)
    ]
    LogSink().send(alerts)
    assert [line["number"] for line in lines_of(out)] == list(range(2 * FLOOD_LINES))


def test_at_the_end_all_is_told() -> None:
    logger, sampler, lines = sampled([0.0])
    for _ in range(FLOOD_LINES + 3):
        logger.error("the store is away")
    sampler.close()
    assert lines[-1] == "3 more were left out of: the store is away"


def test_another_configuration_forgets_no_count() -> None:
    out, _ = configure()
    for _ in range(FLOOD_LINES + 3):
        structlog.get_logger("spotd.test").error("the store is away")
    configure()
    assert lines_of(out)[-1]["event"] == "3 more were left out of: the store is away"


def test_kinds_without_number_take_no_memory_without_end() -> None:
    logger, sampler, lines = sampled([0.0])
    for number in range(5000):
        logger.error(f"{'x' * (number % 100)} {'y' * (number // 100)}")  # noqa: G004
    assert len(sampler._kinds) <= 1000
    assert len(lines) > 4000


def test_a_real_process_that_floods_its_log_writes_little() -> None:
    code = (
        "import structlog\n"
        "from spotd.base import log\n"
        "log.configure(form='json')\n"
        "said = structlog.get_logger('spotd.flood')\n"
        "for number in range(20_000): said.warning('a cloud does not answer', job=f'j{number}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=LIMIT_S
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["job"] for line in lines[:-1]] == [f"j{number}" for number in range(FLOOD_LINES)]
    left_out = f"{20_000 - FLOOD_LINES} more were left out of: a cloud does not answer"
    assert (lines[-1]["event"], lines[-1]["level"]) == (left_out, "warning")
