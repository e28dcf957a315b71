"""A line that lets bytes through, but too few: given up within the time-out, whatever comes meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from store.errors import TierError, TierUnavailable
from store.open import assemble
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.redis.breaker import Breaker
from store.tiers.redis.patience import Patience, PatientSocket
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server
from tests.store.samples import BlobCodec, Clock, content, decoded_of, entry_of, key_of, read, record_of
from tests.store.throttle import SlowLine

NOW = 2000.0
TIMEOUT = 0.3
# Ten times the time-out: a busy machine is slow too. Without a deadline each call below takes a minute or more.
BOUND = 3.0
SPEEDS = {"32 KiB/s": (1024, 1 / 32), "a byte now and then": (1, 0.2), "bursts": (1 << 16, 0.25)}


@pytest.fixture
def line(server: Server) -> Iterator[SlowLine]:
    with SlowLine(server.port) as line:
        yield line


@pytest.fixture
def slow(line: SlowLine) -> Iterator[RedisTier]:
    tier = RedisTier(line.url, timeout=TIMEOUT)
    yield tier
    tier.close()


@contextmanager
def unhurried(tier: RedisTier) -> Iterator[None]:
    """Where the line is good and only this machine may be busy."""
    patience = tier._link._patience
    patience._seconds = 30.0
    yield
    patience._seconds = TIMEOUT


def seconds_of(call: Callable[[], object]) -> float:
    started = time.monotonic()
    with pytest.raises(TierError):
        call()
    return time.monotonic() - started


@pytest.mark.parametrize("speed", SPEEDS)
def test_h7_a_lookup_over_a_slow_line_is_given_up_within_the_time_out(
    server: Server, tier: RedisTier, line: SlowLine, slow: RedisTier, speed: str
) -> None:
    record = record_of(1, 6 * PIECE_BYTES)
    tier.put(record, NOW, never_held)
    with unhurried(slow):
        slow.contains(record.digest)
    line.chunk, line.pause = SPEEDS[speed]
    assert seconds_of(lambda: read(slow, record.digest)) < BOUND
    line.chunk, line.pause = 1 << 16, 0.0
    slow._link._breaker.worked()
    with unhurried(slow):
        found = read(slow, record.digest)
    assert found is not None and content(found) == content(record)


def test_h7_connecting_over_a_slow_line_is_given_up_within_the_time_out(
    line: SlowLine, slow: RedisTier
) -> None:
    line.chunk, line.pause = SPEEDS["a byte now and then"]
    assert seconds_of(lambda: slow.contains(key_of(1).digest)) < BOUND


def test_h7_writing_over_a_slow_line_is_given_up_within_the_time_out(line: SlowLine, slow: RedisTier) -> None:
    with unhurried(slow):
        slow.contains(key_of(1).digest)
    line.chunk, line.pause = SPEEDS["32 KiB/s"]
    assert seconds_of(lambda: slow.put(record_of(1, 6 * PIECE_BYTES), NOW, never_held)) < 2 * BOUND


def test_h7_after_three_lookups_that_took_too_long_the_server_is_left_alone(
    tier: RedisTier, line: SlowLine, slow: RedisTier
) -> None:
    """Small answers come through such a line in time; they do not make it a good one."""
    for number in range(4):
        tier.put(record_of(number, 6 * PIECE_BYTES), NOW, never_held)
    with unhurried(slow):
        slow.contains(key_of(0).digest)
    line.chunk, line.pause = 1 << 14, 0.02
    slow._link._breaker = Breaker(3, 5.0, Clock(0.0))
    reasons = []
    for number in range(4):
        with pytest.raises(TierUnavailable) as caught:
            read(slow, key_of(number).digest)
        reasons.append(caught.value.reason)
        if slow._link.available:
            with unhurried(slow):
                assert slow.contains(key_of(number).digest)
    assert reasons == ["timeout"] * 3 + ["breaker_open"]


def test_h7_a_request_is_answered_beside_a_slow_line(
    tier: RedisTier, line: SlowLine, slow: RedisTier
) -> None:
    tier.put(record_of(1, 6 * PIECE_BYTES), NOW, never_held)
    line.chunk, line.pause = SPEEDS["a byte now and then"]
    store = assemble([slow], BlobCodec(), 0)
    started = time.monotonic()
    with store.entries.fetch(key_of(1), lambda: entry_of(1, 6 * PIECE_BYTES), "read") as fetched:
        assert fetched.outcome == "miss" and "timeout" in fetched.reason
        assert bytes(fetched.entry.data) == decoded_of(1, 6 * PIECE_BYTES)
    assert time.monotonic() - started < BOUND
    store.entries.close()


def test_h7_a_name_server_that_hangs_is_not_waited_for(
    server: Server, slow: RedisTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, look_up = threading.Event(), socket.getaddrinfo

    def hanging(*arguments: object, **options: object) -> object:
        hangs.wait(30)
        return look_up(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    assert seconds_of(lambda: slow.contains(key_of(1).digest)) < BOUND
    hangs.set()
    with unhurried(slow):
        assert not slow.contains(key_of(1).digest)


def test_another_thread_that_connects_is_not_waited_for_longer(line: SlowLine, slow: RedisTier) -> None:
    line.chunk, line.pause = 1, 0.2
    took: list[float] = []
    threads = [
        threading.Thread(target=lambda: took.append(seconds_of(lambda: slow.contains(key_of(1).digest))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(took) == 6 and max(took) < BOUND


class Line:
    """A socket on a clock: each `recv` takes `seconds` and brings `nbytes`."""

    def __init__(self, clock: Clock, seconds: float, nbytes: int) -> None:
        self.clock = clock
        self.seconds = seconds
        self.nbytes = nbytes
        self.timeouts: list[float | None] = []

    def settimeout(self, seconds: float | None) -> None:
        self.timeouts.append(seconds)

    def recv(self, size: int) -> bytes:
        limit = self.timeouts[-1]
        self.clock.now += self.seconds if limit is None else min(self.seconds, limit)
        if limit is not None and self.seconds > limit:
            raise TimeoutError
        return bytes(self.nbytes)

    def sendall(self, data: bytes) -> None:
        self.recv(0)


class TestPatience:
    def wait(self, seconds: float, nbytes: int, most: int = 1000) -> tuple[float, int]:
        """Seconds and calls until patience of one second at 100 bytes a second ends."""
        clock = Clock(0.0)
        sock = PatientSocket(Line(clock, seconds, nbytes), Patience(1.0, 100.0, clock))
        calls = 0
        try:
            while calls < most:
                sock.recv(10)
                calls += 1
        except TimeoutError:
            pass
        return clock.now, calls

    def test_silence_ends_it_after_the_time_out(self) -> None:
        assert self.wait(5.0, 10) == (1.0, 0)

    def test_bytes_below_the_rate_prolong_it_by_what_they_are_worth(self) -> None:
        waited, calls = self.wait(0.25, 10)
        assert calls == 6 and waited == pytest.approx(1.0 + 6 * 0.1)

    def test_a_byte_now_and_then_does_not(self) -> None:
        waited, _ = self.wait(0.2, 1)
        assert waited < 1.1

    def test_bytes_at_the_rate_are_waited_for_as_long_as_they_come(self) -> None:
        assert self.wait(0.1, 10)[1] == 1000

    def test_nothing_is_saved_up(self) -> None:
        clock = Clock(0.0)
        line = Line(clock, 0.0, 10_000)
        sock = PatientSocket(line, Patience(1.0, 100.0, clock))
        sock.recv(10_000)
        line.seconds = 50.0
        with pytest.raises(TimeoutError):
            sock.recv(10)
        assert clock.now == 1.0

    def test_sending_may_take_what_its_bytes_are_worth(self) -> None:
        clock = Clock(0.0)
        sock = PatientSocket(Line(clock, 2.5, 0), Patience(1.0, 100.0, clock))
        sock.sendall(bytes(200))
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(150))

    def test_it_is_new_for_every_call_and_of_each_thread(self) -> None:
        clock = Clock(0.0)
        patience = Patience(1.0, 100.0, clock)
        line = Line(clock, 0.7, 0)
        sock = PatientSocket(line, patience)
        sock.recv(1)
        other = threading.Thread(target=lambda: sock.recv(1))
        other.start()
        other.join()
        assert clock.now == pytest.approx(1.4)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        patience.renew()
        sock.recv(1)

    def test_a_look_whether_there_is_anything_does_not_wait(self) -> None:
        clock = Clock(0.0)
        line = Line(clock, 0.0, 1)
        sock = PatientSocket(line, Patience(0.0, 100.0, clock))
        sock.settimeout(0)
        assert sock.recv(1) == b"\0"
        assert line.timeouts == [0]
