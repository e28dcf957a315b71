"""The scheduler without torch: a Hypothesis model of arrivals, aborts and ends in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.scheduler import DecodeRound, PrefillPiece, Scheduler

MAX_WAITING, MAX_RUNNING = 4, 2


def test_first_come_first_served_and_decode_between_pieces() -> None:
    scheduler = Scheduler(8, 2)
    assert scheduler.next() is None
    assert all(scheduler.arrive(name) for name in "abc")
    assert scheduler.next() == PrefillPiece("a")
    scheduler.prefilled("a")
    assert scheduler.next() == DecodeRound(("a",))
    assert scheduler.next() == PrefillPiece("b")
    assert scheduler.next() == DecodeRound(("a",))
    assert scheduler.next() == PrefillPiece("b")
    scheduler.prefilled("b")
    assert scheduler.next() == DecodeRound(("a", "b"))
    assert scheduler.next() == DecodeRound(("a", "b"))  # c waits for a place
    scheduler.end("a")
    assert PrefillPiece("c") in (scheduler.next(), scheduler.next())


class SchedulerMachine(RuleBasedStateMachine):
    """Against a plain record of who is where."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(MAX_WAITING, MAX_RUNNING)
        self.arrived = 0
        self.alive: list[str] = []
        self.decoding: set[str] = set()
        self.pieces_since_round = 0

    @rule()
    def arrive(self) -> None:
        name = f"r{self.arrived}"
        self.arrived += 1
        room = self.scheduler.waiting < MAX_WAITING
        assert self.scheduler.arrive(name) is room
        if room:
            self.alive.append(name)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end_any(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.alive))
        self.scheduler.end(name)
        self.alive.remove(name)
        self.decoding.discard(name)

    @rule()
    def end_unknown(self) -> None:
        before = (self.scheduler.waiting, self.scheduler.running)
        self.scheduler.end("nobody")
        assert before == (self.scheduler.waiting, self.scheduler.running)

    @rule(finishes=st.booleans())
    def step(self, finishes: bool) -> None:
        match self.scheduler.next():
            case None:
                assert not self.alive
            case PrefillPiece(name):
                assert name in self.alive and name not in self.decoding
                older = [
                    other for other in self.alive[: self.alive.index(name)] if other not in self.decoding
                ]
                assert not older
                self.pieces_since_round += 1
                assert self.pieces_since_round <= 1 or not self.decoding
                if finishes:
                    self.scheduler.prefilled(name)
                    self.decoding.add(name)
                    self.pieces_since_round = 1
            case DecodeRound(names):
                assert set(names) == self.decoding
                self.pieces_since_round = 0

    @invariant()
    def counts_add_up(self) -> None:
        assert self.scheduler.waiting + self.scheduler.running == len(self.alive)
        assert self.scheduler.running <= MAX_RUNNING


TestScheduler = SchedulerMachine.TestCase
