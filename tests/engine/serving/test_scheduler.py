"""The scheduler without torch: order, admission, and a Hypothesis model of arrivals, aborts and ends in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.serving.scheduler import Arrival, DecodeRound, PrefillPiece, Scheduler
from engine.settings import Limits

BYTES = 10
LIMITS = Limits(waiting=4, running=3, bytes=BYTES)


def arrival(
    name: str, account: str = "t", size: int = 1, priority: int = 0, deadline: float | None = None
) -> Arrival:
    return Arrival(name, account, size, priority, deadline)


def admitted(scheduler: Scheduler, count: int) -> list[str]:
    """Names in the order in which they get their turn, each ending before the next."""
    order = []
    for _ in range(count):
        instruction = scheduler.next()
        assert isinstance(instruction, PrefillPiece)
        order.append(instruction.request)
        scheduler.end(instruction.request)
    return order


def test_decode_rounds_come_between_prefill_pieces() -> None:
    scheduler = Scheduler(LIMITS)
    assert scheduler.next() is None
    assert scheduler.arrive(arrival("a")) and scheduler.arrive(arrival("b"))
    assert scheduler.next() == PrefillPiece("a")
    assert scheduler.next() == PrefillPiece("a")  # nobody decodes yet
    scheduler.prefilled("a")
    assert scheduler.next() == DecodeRound(("a",))
    assert scheduler.next() == PrefillPiece("b")
    assert scheduler.next() == DecodeRound(("a",))
    assert scheduler.next() == PrefillPiece("b")
    scheduler.prefilled("b")
    assert [scheduler.next() for _ in range(2)] == [DecodeRound(("a", "b"))] * 2


def test_accounts_take_turns_and_priority_goes_first() -> None:
    scheduler = Scheduler(Limits(waiting=9, running=1, bytes=10))
    for name in ("x1", "x2", "x3", "y1", "y2"):
        scheduler.arrive(arrival(name, account=name[0]))
    scheduler.arrive(arrival("late", account="x", priority=-1))
    assert admitted(scheduler, 6) == ["late", "y1", "x1", "y2", "x2", "x3"]


def test_long_answers_of_one_account_do_not_shut_out_another() -> None:
    """A few places more than the limit, for accounts that have none, and no more than those."""
    scheduler = Scheduler(Limits(waiting=9, running=4, bytes=100))
    for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1"):
        scheduler.arrive(arrival(name, account=name[0]))
    running = []
    while isinstance(instruction := scheduler.next(), PrefillPiece):
        running.append(instruction.request)
        scheduler.prefilled(instruction.request)
        scheduler.next()
    assert scheduler.running == 4 and len(running) == 4
    scheduler.arrive(arrival("d1", account="d"))
    scheduler.arrive(arrival("e1", account="e"))
    assert scheduler.next() == PrefillPiece("d1")
    scheduler.prefilled("d1")
    assert isinstance(scheduler.next(), DecodeRound)
    assert isinstance(scheduler.next(), DecodeRound), "the places beyond the limit are few"
    assert scheduler.running == 5


def test_newcomers_do_not_overtake_those_who_wait() -> None:
    """A fresh account each turn (another salt, say) must not starve an old one."""
    scheduler = Scheduler(Limits(waiting=9, running=1, bytes=10))
    for name in ("a1", "a2", "a3"):
        scheduler.arrive(arrival(name, account="a"))
    order = []
    for turn in range(6):
        scheduler.arrive(arrival(f"new{turn}", account=f"new{turn}"))
        order += admitted(scheduler, 1)
    assert order == ["a1", "new0", "a2", "new1", "new2", "a3"]


def test_priority_goes_before_turns() -> None:
    scheduler = Scheduler(Limits(waiting=9, running=1, bytes=10))
    for name in ("x1", "x2", "y1"):
        scheduler.arrive(arrival(name, account=name[0]))
    assert admitted(scheduler, 1) == ["x1"]
    scheduler.arrive(arrival("urgent", account="x", priority=-1))
    assert admitted(scheduler, 3) == ["urgent", "y1", "x2"]


def test_where_places_are_few_there_is_one_more_for_who_has_none() -> None:
    scheduler = Scheduler(Limits(waiting=9, running=2, bytes=10))
    for name in ("x1", "x2", "x3"):
        scheduler.arrive(arrival(name, account="x"))
    for name in ("x1", "x2"):
        while scheduler.next() != PrefillPiece(name):
            pass
        scheduler.prefilled(name)
    assert [scheduler.next() for _ in range(2)] == [DecodeRound(("x1", "x2"))] * 2
    scheduler.arrive(arrival("y1", account="y"))
    assert PrefillPiece("y1") in [scheduler.next() for _ in range(2)]


def test_who_waits_already_loses_no_turn_by_asking_again() -> None:
    scheduler = Scheduler(Limits(waiting=9, running=1, bytes=10))
    for name in ("x1", "x2", "y1"):
        scheduler.arrive(arrival(name, account=name[0]))
    assert admitted(scheduler, 1) == ["x1"]
    scheduler.arrive(arrival("y2", account="y"))
    assert admitted(scheduler, 3) == ["y1", "x2", "y2"]


def test_only_the_request_in_prefill_goes_on_to_decode_and_nothing_of_it_is_left() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.arrive(arrival("a"))
    assert scheduler.next() == PrefillPiece("a")
    scheduler.prefilled("somebody else", 7)
    assert scheduler.next() == PrefillPiece("a")
    scheduler.prefilled("a", 7)
    assert scheduler.next() == DecodeRound(("a",))
    scheduler.end("a")
    assert (scheduler.running, scheduler._refining, scheduler._served) == (0, {}, {})


def test_bytes_are_admitted_up_to_the_limit_and_nobody_overtakes() -> None:
    scheduler = Scheduler(LIMITS)
    for name, size in (("a", 6), ("big", 8), ("small", 1)):
        scheduler.arrive(arrival(name, size=size))
    assert scheduler.next() == PrefillPiece("a")
    scheduler.prefilled("a")
    assert [scheduler.next() for _ in range(3)] == [DecodeRound(("a",))] * 3
    assert scheduler.bytes == 6 and scheduler.waiting == 2
    scheduler.end("a")
    assert scheduler.next() == PrefillPiece("big")
    assert scheduler.fits(arrival("x", size=10)) and not scheduler.fits(arrival("x", size=11))


def test_overdue_names_waiting_and_running_requests() -> None:
    scheduler = Scheduler(Limits(running=1))
    for name, deadline in (("a", 5.0), ("b", 7.0), ("c", None)):
        scheduler.arrive(arrival(name, deadline=deadline))
    scheduler.next()
    assert scheduler.overdue(4.9) == ()
    assert set(scheduler.overdue(7.0)) == {"a", "b"}


class SchedulerMachine(RuleBasedStateMachine):
    """Against a plain record of who is where."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(LIMITS)
        self.arrived = 0
        self.alive: dict[str, Arrival] = {}
        self.started: set[str] = set()
        self.decoding: set[str] = set()
        self.pieces_since_round = 0

    @rule(account=st.sampled_from("xyz"), size=st.integers(1, 4), priority=st.integers(-1, 1))
    def arrive(self, account: str, size: int, priority: int) -> None:
        self.arrived += 1
        new = arrival(f"r{self.arrived}", account, size, priority)
        room = self.scheduler.waiting < LIMITS.waiting
        assert self.scheduler.arrive(new) is room
        if room:
            self.alive[new.request] = new

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end_any(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.scheduler.end(name)
        del self.alive[name]
        self.started.discard(name)
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
                self._piece(name, finishes)
            case DecodeRound(names):
                assert set(names) == self.decoding
                self.pieces_since_round = 0

    def _piece(self, name: str, finishes: bool) -> None:
        assert name in self.alive and name not in self.decoding
        if name not in self.started:
            waiting = [a for a in self.alive.values() if a.request not in self.started and self._has_place(a)]
            assert self.alive[name].priority == min(a.priority for a in waiting)
            same = [a.request for a in waiting if a.account == self.alive[name].account]
            assert name == next(n for n in same if self.alive[n].priority == self.alive[name].priority)
            self.started.add(name)
        self.pieces_since_round += 1
        assert self.pieces_since_round <= 1 or not self.decoding
        if finishes:
            self.scheduler.prefilled(name)
            self.decoding.add(name)
            self.pieces_since_round = 1

    def _has_place(self, waiting: Arrival) -> bool:
        """One place more than the limit is for an account that has none."""
        theirs = [name for name in self.started if self.alive[name].account == waiting.account]
        return len(self.started) < LIMITS.running + (not theirs)

    @invariant()
    def counts_and_bytes_add_up(self) -> None:
        scheduler = self.scheduler
        assert scheduler.waiting + scheduler.running == len(self.alive)
        assert scheduler.running == len(self.started) <= LIMITS.running + 1
        assert scheduler.bytes == sum(self.alive[name].bytes for name in self.started) <= BYTES


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, deadline=None)


def test_a_round_computes_no_more_prompt_rows_than_it_may() -> None:
    """Requests keep the rows that they refine with each token; those that do not fit come first in the next round."""
    scheduler = Scheduler(Limits(waiting=9, running=5, refined_rows=100))
    for name, rows in (("a", 60), ("b", 60), ("c", 40), ("plain", 0), ("large", 300)):
        scheduler.arrive(arrival(name))
        while scheduler.next() != PrefillPiece(name):
            pass
        scheduler.prefilled(name, rows)
    rounds = [scheduler.next() for _ in range(4)]
    assert all(isinstance(found, DecodeRound) for found in rounds)
    asked = [found.requests for found in rounds if isinstance(found, DecodeRound)]
    assert all("plain" in names for names in asked)
    sizes = {"a": 60, "b": 60, "c": 40, "plain": 0, "large": 300}
    for names in asked:
        assert sum(sizes[n] for n in names) <= 100 or [n for n in names if sizes[n]] == ["large"]
    assert {name for names in asked[:3] for name in names} == set(sizes)
    for name in sizes:
        scheduler.refines(name, 0)
    every = scheduler.next()
    assert isinstance(every, DecodeRound) and set(every.requests) == set(sizes)


def test_answers_take_places_and_nobody_overtakes_who_needs_several() -> None:
    scheduler = Scheduler(Limits(waiting=9, running=4))
    for name, answers in (("a", 2), ("b", 3), ("c", 1)):
        assert scheduler.arrive(Arrival(name, "one", 1, answers=answers))
    assert scheduler.next() == PrefillPiece("a")
    scheduler.prefilled("a")
    assert scheduler.next() == DecodeRound(("a",))
    assert scheduler.next() == DecodeRound(("a",)), "b needs three of two places, and c came later"
    scheduler.end("a")
    assert scheduler.next() == PrefillPiece("b")
    scheduler.prefilled("b")
    scheduler.next()
    assert scheduler.next() == PrefillPiece("c")


def test_more_answers_than_places_run_alone() -> None:
    scheduler = Scheduler(Limits(waiting=9, running=2))
    assert scheduler.arrive(Arrival("many", "one", 1, answers=8))
    assert scheduler.next() == PrefillPiece("many")
