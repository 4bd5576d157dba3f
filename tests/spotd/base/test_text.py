from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spotd.base.text import clean, money, place, places, size, span, spent
from spotd.cli.cost import _stored_checkpoints
from spotd.cli.log_text import Streams, safe_line
from spotd.cli.offers import offer_row, sparkline


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\x1b[2Jb", "a\u00b7[2Jb"),
        ("two\nlines", "two lines"),
        ("bell\x07 \x9b31m", "bell\u00b7 \u00b731m"),
        ("right\u202eleft", "right\u00b7left"),
        ("na\u00efve \u6f22", "na\u00efve \u6f22"),
    ],
)
def test_clean_lets_nothing_steer_the_terminal(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-1, "0s"), (59.9, "59s"), (61, "1m1s"), (3599, "59m"), (3660, "1h1m")]
    + [(200_000, "2d7h")],
)
def test_span(seconds: float | None, shown: str) -> None:
    assert span(seconds) == shown


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (None, "-"),
        (0.0, "$0.00"),
        (0.00416, "$0.0042"),
        (0.00004, "<$0.0001"),
        (1.234, "$1.23"),
        (12345.6, "$12,345.60"),
    ],
)
def test_money(usd: float | None, shown: str) -> None:
    assert money(usd) == shown


@pytest.mark.parametrize(
    ("usd", "cap_usd", "shown"),
    [
        (1.5, None, "$1.50 so far"),
        (1.5, 2.0, "$1.50 so far; it is stopped at $2.00"),
        (
            0.0238,
            0.02,
            "$0.0238 so far: stopped at $0.0200, saving and giving back cost $0.0038 more",
        ),
    ],
)
def test_a_budget_is_where_the_job_is_stopped_not_the_most_it_costs(
    usd: float, cap_usd: float | None, shown: str
) -> None:
    assert spent(usd, cap_usd, " so far") == shown


def test_size() -> None:
    assert [size(n) for n in (12, 2048, 5 << 20, 3 << 30, 5 << 40)] == [
        "12 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "5120.0 GiB",
    ]


def test_places_say_what_is_local() -> None:
    cloud = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a", "local": False}
    here = {"provider": "toy", "region": "r", "zone": "", "local": True}
    assert place(cloud) == "aws/us-east-1a"
    assert places([cloud, cloud, here]) == "aws/us-east-1a x2, toy/r (local)"
    assert places([]) == "-"


def test_safe_line_keeps_colours_and_drops_the_rest() -> None:
    assert safe_line("\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m\x1b[0m"
    assert safe_line("a\x1b[2Jb\x1b]0;title\x07c\x1b[1Ad") == "abcd"
    assert safe_line("tab\there") == "tab    here"
    assert "\x1b" not in safe_line("\x1bcreset \x1b")


def chunk(text: str, generation: int = 1, rank: int = 0) -> dict[str, object]:
    return {"generation": generation, "rank": rank, "stream": "rank0", "offset": 0, "text": text}


Captured = pytest.CaptureFixture[bytes]


def test_streams_join_pieces_into_lines(capsysbinary: Captured) -> None:
    streams = Streams({}, show_rank=True, safe=False)
    streams.feed(chunk("he", rank=0))
    streams.feed(chunk("wor", rank=1))
    streams.feed(chunk("llo\nsecond", rank=0))
    streams.feed(chunk("ld\n", rank=1))
    streams.caught_up()
    assert capsysbinary.readouterr().out == b"[0] hello\n[1] world\n"
    streams.close()
    assert capsysbinary.readouterr().out == b"[0] second"


def test_a_pipe_gets_every_byte(capsysbinary: Captured) -> None:
    data = bytes(range(256)) * 3
    streams = Streams({}, show_rank=False, safe=False)
    for start in range(0, len(data), 7):
        streams.feed(chunk(data[start : start + 7].decode("latin-1")))
    streams.close()
    assert capsysbinary.readouterr().out == data


def test_tail_and_change_of_machine(capsysbinary: Captured) -> None:
    node = {"provider": "gcp", "region": "r", "zone": "z", "local": False}
    streams = Streams({2: node}, show_rank=False, safe=True)
    streams.tail(2)
    streams.feed(chunk("1\n2\n3\n"))
    streams.caught_up()
    streams.feed(chunk("4\n", generation=2))
    streams.close()
    captured = capsysbinary.readouterr()
    assert captured.out == b"2\n3\n4\n"
    assert captured.err == b"--- generation 2 on gcp/z ---\n"


@pytest.mark.parametrize(
    ("points", "bars"),
    [
        ([], "    "),
        ([(0.0, 5.0)], "▁▁▁▁"),
        ([(0.0, 1.0), (20.0, 2.0)], "▁███"),
        ([(15.0, 1.0), (25.0, 8.0), (35.0, 4.5)], " ▁█▅"),
    ],
)
def test_a_sparkline_is_the_price_in_force_at_the_end_of_each_part(
    points: list[tuple[float, float]], bars: str
) -> None:
    assert sparkline(points, 0.0, 40.0, 4) == bars


def test_an_offer_of_a_reservation_says_prepaid_and_when_it_ends() -> None:
    facts = {"provider": "aws", "region": "r", "zone": "z", "local": False, "instance_type": "p5"}
    facts |= {"accelerator": "H100", "accelerator_count": 8, "capacity_type": "block"}
    facts |= {"price_usd_per_h": 0.0, "no_discount": False, "discount": 1.0, "excluded": ""}
    item = facts | {"silent": "", "price_source": "prepaid"}
    end = datetime.now(UTC) + timedelta(hours=26, seconds=30)
    row = offer_row(item | {"ends_at": end.isoformat()}, ends=True)
    assert [str(cell) for cell in row[3:8]] == ["block", "prepaid", "-", "-", "1d2h"]
    plain = item | {"price_source": "configured", "price_usd_per_h": 16.0, "ends_at": None}
    assert [str(cell) for cell in offer_row(plain, ends=True)[4:8]] == ["$16.00", "$2.00", "-", "-"]
    assert len(offer_row(plain, ends=False)) == len(row) - 1
    scored = offer_row(plain | {"placement_score": 7}, ends=True, scored=True)
    assert [str(cell) for cell in scored[6:8]] == ["-", "7"]
    assert len(scored) == len(row) + 1
    assert str(offer_row(plain, ends=False, scored=True)[7]) == "-"
    shares = [
        offer_row(plain | {"evicted_pct": n}, ends=False, evicted=True) for n in (5, 100, None)
    ]
    assert [str(cells[7]) for cells in shares] == ["<5%", "20%+", "-"]


def test_what_is_kept_is_told_where_its_price_is_known() -> None:
    kept = {"checkpoints": 2, "bytes": 6 << 30, "usd_per_month": 0.138, "price_of": "S3, r, day"}
    assert (
        _stored_checkpoints(kept)
        == "2 checkpoints, 6.0 GiB: about $0.1380 a month on top, by list (S3, r, day)"
    )
    assert _stored_checkpoints(kept | {"usd_per_month": None}) == ""
    assert _stored_checkpoints({}) == ""
