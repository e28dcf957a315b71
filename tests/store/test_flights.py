"""One load or compile per key at a time."""

from __future__ import annotations

import threading

import pytest

from tests.store.samples import (
    Blob,
    decoded_of,
    entry_of,
    key_of,
    unused,
)
from tests.store.stand import Stand, in_threads


class TestOneLoadPerKey:
    def test_f12_many_requests_compile_once(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        def request(number: int) -> str:
            with stand.fetch(1, compile=slow) as fetched:
                assert bytes(fetched.entry.data) == decoded_of(1)
                return fetched.outcome

        opener = threading.Thread(target=lambda: (entered.wait(), wait_for_joined(stand, 7), gate.set()))
        opener.start()
        outcomes = in_threads(8, request)
        opener.join()
        assert sorted(outcomes) == ["hit"] * 7 + ["miss"]
        stats = stand.admin.stats()
        assert (stats.compiles, stats.joined, stats.leases) == (1, 7, 0)

    @pytest.mark.parametrize("death", [RuntimeError, KeyboardInterrupt])
    def test_f12_followers_survive_the_leaders_failure(
        self, stand: Stand, death: type[BaseException]
    ) -> None:
        gate, entered = threading.Event(), threading.Event()
        calls: list[int] = []

        def compile() -> Blob:
            calls.append(1)
            if len(calls) == 1:
                entered.set()
                gate.wait()
                raise death
            return entry_of(1)

        def request(number: int) -> str:
            with stand.fetch(1, compile=compile) as fetched:
                return fetched.outcome

        opener = threading.Thread(target=lambda: (entered.wait(), wait_for_joined(stand, 5), gate.set()))
        opener.start()
        results = in_threads(6, request)
        opener.join()
        assert sum(isinstance(result, death) for result in results) == 1
        assert sorted(result for result in results if isinstance(result, str)) == ["hit"] * 4 + ["miss"]
        assert len(calls) == 2
        assert stand.admin.stats().leases == 0

    def test_c11_a_request_during_the_load_waits_for_it(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.disk.read_gate.clear()
        opener = threading.Thread(target=lambda: (wait_for_joined(stand, 1), stand.disk.read_gate.set()))
        opener.start()
        outcomes = in_threads(2, lambda _: stand.outcome(1))
        opener.join()
        assert outcomes == [("hit", "lmdb")] * 2
        assert stand.disk.reads == 1

    def test_c11_a_request_during_the_write_sees_whole_data(self, stand: Stand) -> None:
        stand.disk.write_gate.clear()
        stand.outcome(1)
        assert stand.outcome(1) == ("hit", "decoded")
        stand.disk.write_gate.set()

    def test_a_follower_stores_what_a_read_only_leader_does_not(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        leader = threading.Thread(target=lambda: stand.fetch(1, "read", slow).release())
        leader.start()
        entered.wait()
        opener = threading.Thread(target=lambda: (wait_for_joined(stand, 1), gate.set()))
        opener.start()
        with stand.fetch(1, compile=unused) as fetched:
            assert fetched.outcome == "hit"
        leader.join()
        opener.join()
        stand.entries.flush(10)
        assert stand.admin.entry(key_of(1).hex) is not None

    def test_what_landed_between_the_look_and_the_join_is_not_computed_again(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flights = stand.entries._flights
        join = flights.join

        def late(digest: bytes) -> object:
            monkeypatch.undo()
            assert stand.outcome(1) == ("miss", None)
            return join(digest)

        monkeypatch.setattr(flights, "join", late)
        with stand.fetch(1, compile=unused) as fetched:
            assert (fetched.outcome, fetched.tier) == ("hit", "decoded")

    def test_a_rewrite_wins_over_a_load_that_began_before_it(self, stand: Stand) -> None:
        """The load finds the old record, and must not put it in the place of the new one."""
        stand.outcome(1)
        stand.reopen()
        stand.disk.read_gate.clear()
        stand.disk.write_gate.clear()
        loader = threading.Thread(target=lambda: stand.fetch(1, compile=unused).release())
        loader.start()
        pause = threading.Event()
        while not stand.disk.reads:
            pause.wait(0.002)
        stand.fetch(1, "rewrite", lambda: entry_of(2)).release()
        stand.disk.read_gate.set()
        loader.join()
        with stand.fetch(1, compile=unused) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(2)
        stand.disk.write_gate.set()
        stand.forget_decoded()
        with stand.fetch(1, compile=unused) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(2)


def wait_for_joined(stand: Stand, count: int) -> None:
    pause = threading.Event()
    while stand.entries._flights.joined < count:
        pause.wait(0.002)
