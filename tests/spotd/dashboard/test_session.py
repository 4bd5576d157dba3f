"""Sessions, and the limits of attempts by address and by person."""

from __future__ import annotations

from spotd.api_routes.person import Person
from spotd.dashboard.session import ATTEMPTS, WINDOW_S, LoginLimit, Logins
from spotd.store.logins import UserToken
from tests.spotd.api.rig import Rig, StoppedClock


class Clock(StoppedClock):
    """Its monotonic time goes on with it."""

    def monotonic_s(self) -> float:
        return self.now_us() / 1e6


def test_what_is_a_minute_ago_no_longer_counts() -> None:
    clock = Clock()
    limit = LoginLimit(clock)
    for _ in range(ATTEMPTS):
        assert limit.wait_s("203.0.113.9") == 0
        limit.add("203.0.113.9")
    assert round(limit.wait_s("203.0.113.9"), 3) == WINDOW_S
    assert limit.wait_s("203.0.113.10") == 0
    clock.go_on(WINDOW_S - 1)
    assert round(limit.wait_s("203.0.113.9"), 3) == 1
    clock.go_on(1)
    assert limit.wait_s("203.0.113.9") == 0


def test_an_ipv4_address_counts_as_one_in_each_spelling() -> None:
    limit = LoginLimit(Clock())
    for _ in range(ATTEMPTS):
        limit.add("::ffff:203.0.113.9")
    assert limit.wait_s("203.0.113.9") > 0
    assert limit.wait_s("::ffff:198.51.100.1") == 0


def test_the_addresses_of_one_subscriber_count_together() -> None:
    limit = LoginLimit(Clock(), most=2)
    limit.add("2001:db8::1")
    limit.add("2001:db8::2")
    assert limit.wait_s("2001:db8::3") > 0
    assert limit.wait_s("2001:db8:0:1::3") == 0


def test_the_person_of_a_session_has_the_token_of_the_login(rig: Rig) -> None:
    now_us = rig.clock.now_us()
    token = UserToken("t1", "eve@x", False, "admin", "d", now_us, "ada", now_us + 10**12)
    rig.store.logins.add_token(token)
    logins = Logins(rig.store, rig.clock, rig.socket, session_h=1)
    for given, token_id in ((token, "t1"), (None, "")):
        secret = logins.begin(Person("eve@x", role="admin"), given, "203.0.113.9")
        assert secret
        assert logins.person(secret) == Person("eve@x", role="admin", token_id=token_id)
