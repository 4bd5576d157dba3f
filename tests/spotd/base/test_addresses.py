"""The address and port of a server of ours."""

from __future__ import annotations

import pytest

from spotd.base.addresses import split_listen


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
    ],
)
def test_an_address_and_a_port(listen: str, found: tuple[str, int]) -> None:
    assert split_listen(listen, example="x") == found


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("box:80", "is not an address and port"),
        ("127.0.0.1", "is not an address and port"),
        ("127.0.0.1:", "has no port"),
        ("127.0.0.1:0", "has no port"),
        ("127.0.0.1:65536", "has no port"),
        ("127.0.0.1:-1", "has no port"),
    ],
)
def test_what_is_none_gets_an_example(listen: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"{told}.*; write '127.0.0.1:9464'"):
        split_listen(listen, example="127.0.0.1:9464")
