"""Where pins and quotas are kept: on a disk that fails, in a file that is anything, beside other services."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store.residency import wishes as module
from store.residency.wishes import MOST, Wishes, WishesFull, bounded
from store.residency.wishes_file import Pin, Saved, Unreadable, WishesFile, lines, parse
from tests.store.samples import Clock, key_of
from tests.store.stand import Stand, in_threads

NOW = 1000.0


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "wishes.json"


def opened(file: Path) -> Wishes:
    return Wishes(file, Clock(NOW))


def written(file: Path, text: str | bytes) -> Wishes:
    """Wishes over a file that says `text`."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return opened(file)


GARBAGE = {
    "cut": b'{"pins": [',
    "empty": b"",
    "deeply nested": b"[" * 3_000_000,
    "deeply nested pins": b'{"pins": ' + b'{"a": ' * 200_000,
    "not an object": b"[1, 2]",
    "null": b"null",
    "pins of another kind": b'{"pins": 5, "quotas": {}}',
    "no quotas": b'{"pins": {}}',
    "not text": bytes(range(256)) * 50,
    "a long number": b'{"pins": {}, "quotas": ' + b"9" * 100_000 + b"}",
}


class TestAnything:
    @pytest.mark.parametrize("kind", GARBAGE)
    def test_h4_garbage_stops_no_start_and_is_kept_aside(self, file: Path, kind: str) -> None:
        wishes = written(file, GARBAGE[kind])
        assert wishes.problems == (
            "pins and quotas in wishes.json cannot be read; none of them are in force",
        )
        assert wishes.quotas == {}
        wishes.pin(digest(1), None)
        wishes.save()
        assert opened(file).pinned(digest(1), NOW) == Pin(None)
        assert file.with_name("wishes.json.aside").read_bytes() == GARBAGE[kind]
        assert wishes.problems and opened(file).problems == ()

    def test_h4_a_huge_file_is_not_read(self, file: Path) -> None:
        file.parent.mkdir()
        with file.open("wb") as stream:
            stream.truncate(1 << 40)
        wishes = opened(file)
        assert "cannot be read" in wishes.problems[0]

    @pytest.mark.parametrize("kind", ["folder", "pipe", "link to nowhere", "endless device"])
    def test_h4_what_is_no_file_is_not_read_either(self, file: Path, kind: str) -> None:
        file.parent.mkdir()
        make: dict[str, Callable[[], object]] = {
            "folder": file.mkdir,
            "pipe": lambda: os.mkfifo(file),
            "link to nowhere": lambda: file.symlink_to("nowhere"),
            "endless device": lambda: file.symlink_to("/dev/zero"),
        }
        make[kind]()
        wishes = opened(file)
        assert bool(wishes.problems) == (kind != "link to nowhere")
        wishes.set_quota("acme", 5)
        wishes.save()
        assert opened(file).quotas == {"acme": 5}

    def test_a_pipe_in_the_way_is_not_waited_at(self, file: Path) -> None:
        wishes = opened(file)
        file.parent.mkdir()
        os.mkfifo(file.with_suffix(".new"))
        wishes.set_quota("acme", 5)
        wishes.save()
        assert opened(file).quotas == {"acme": 5} and wishes.problems == ()

    def test_what_makes_no_sense_is_left_out_and_counted(self, file: Path) -> None:
        good, bad = digest(1).hex(), digest(2).hex()
        pins = [f'"{good}": 5000', f'"{bad}": "soon"', f'"{bad[:-2]}": 5000', '"zz": null', f'"{bad}1": 7']
        more = [f'"{digest(n).hex()}": {value}' for n, value in enumerate(("NaN", "1e999", "true", "[]"), 3)]
        huge = f'"{digest(9).hex()}": 1{"0" * 400}'
        quotas = '{"acme": 10, "b": -1, "c": 1.5, "d": "1", "e": true, "f": 1e3, "\\ud800": 4, "g": null}'
        wishes = written(file, f'{{"pins": {{{", ".join([*pins, *more, huge])}}}, "quotas": {quotas}}}')
        assert wishes.pinned(digest(1), NOW) == Pin(5000.0)
        assert wishes.quotas == {"acme": 10}
        assert wishes.problems == ("pins and quotas in wishes.json: 16 cannot be read and are not in force",)
        before = file.read_bytes()
        wishes.set_quota("z", 1)
        wishes.save()
        assert parse(file.read_bytes()) == Saved({digest(1): Pin(5000.0)}, {"acme": 10, "z": 1})
        assert file.with_name("wishes.json.aside").read_bytes() == before

    def test_a_file_that_becomes_garbage_takes_nothing_out_of_force(self, file: Path) -> None:
        wishes = opened(file)
        wishes.pin(digest(1), None)
        wishes.set_quota("acme", 5)
        wishes.save()
        file.write_text("garbage")
        wishes.save()
        assert wishes.pinned(digest(1), NOW) and wishes.quotas == {"acme": 5}
        assert "became unreadable" in wishes.problems[0]
        assert opened(file).quotas == {"acme": 5} and opened(file).pinned(digest(1), NOW)

    def test_a_store_opens_over_any_of_it(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "wishes.json").write_bytes(b"[" * 100_000)
        stand = Stand(tmp_path / "store")
        assert stand.outcome(1) == ("miss", None)
        assert any("pins and quotas" in problem for problem in stand.admin.stats().degraded)
        stand.close()

    def test_what_is_written_is_read(self) -> None:
        saved = Saved(
            {digest(n): Pin(None if n % 3 else n + 0.1) for n in range(9)}, {'a "b"': 0, "ü": 1 << 60}
        )
        assert parse("".join(lines(saved)).encode()) == saved
        assert json.loads("".join(lines(saved)))["quotas"] == saved.quotas
        assert parse("".join(lines(Saved())).encode()) == Saved()

    def test_noise_is_read_or_refused(self) -> None:
        chance = random.Random(3)
        whole = "".join(lines(Saved({digest(n): Pin(5.0) for n in range(4)}, {"acme": 7}))).encode()
        for _ in range(300):
            noisy = bytearray(whole)
            noisy[chance.randrange(len(noisy))] ^= 1 << chance.randrange(8)
            try:
                assert all(len(key) == 32 and pin.until for key, pin in parse(bytes(noisy)).pins.items())
            except Unreadable:
                continue


class TestBounds:
    def test_m1_many_pins_that_ended_cost_one_start(self, file: Path) -> None:
        ended = ", ".join(f'"{digest(n).hex()}": {n % 900}' for n in range(50_000))
        wishes = written(file, f'{{"pins": {{{ended}, "{digest(1 << 40).hex()}": 9000}}, "quotas": {{}}}}')
        wishes.save()
        assert parse(file.read_bytes()).pins == {digest(1 << 40): Pin(9000.0)}
        for number in range(100):
            wishes.pin(digest(number), NOW + 5)
        wishes.save()
        assert len(parse(file.read_bytes()).pins) == 101

    def test_m1_pins_that_ended_leave_the_file(self, file: Path) -> None:
        clock = Clock(NOW)
        wishes = Wishes(file, clock)
        for number in range(50):
            wishes.pin(digest(number), NOW + number + 1)
        wishes.save()
        clock.now += 30
        wishes.set_quota("acme", 1)
        wishes.save()
        assert set(parse(file.read_bytes()).pins) == {digest(number) for number in range(30, 50)}

    def test_pins_are_bounded_and_the_next_to_end_go_first(self, file: Path) -> None:
        wishes = opened(file)
        wishes.pin(digest(0), None)
        wishes.pin(digest(1), NOW - 1)
        for number in range(2, MOST + 200):
            wishes.pin(digest(number), NOW + number)
        wishes.save()
        kept = parse(file.read_bytes()).pins
        assert MOST - MOST // 8 <= len(kept) <= MOST
        assert digest(0) in kept and digest(1) not in kept and digest(2) not in kept
        assert digest(MOST + 199) in kept

    def test_no_hard_pin_goes_for_another(self, file: Path) -> None:
        wishes = opened(file)
        for number in range(MOST):
            wishes.pin(digest(number), None)
        for until in (None, NOW + 5):
            with pytest.raises(WishesFull):
                wishes.pin(digest(MOST), until)
        wishes.pin(digest(3), NOW + 5)
        wishes.pin(digest(3), None)
        assert all(wishes.pinned(digest(number), NOW) for number in range(MOST))
        assert wishes.unpin(digest(7))
        wishes.pin(digest(MOST), None)

    def test_quotas_are_bounded(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MOST", 3)
        wishes = opened(file)
        for tenant in "abc":
            wishes.set_quota(tenant, 1)
        with pytest.raises(WishesFull):
            wishes.set_quota("d", 1)
        wishes.set_quota("a", 2)
        wishes.set_quota("b", None)
        wishes.set_quota("d", 1)
        assert wishes.quotas == {"a": 2, "c": 1, "d": 1}

    def test_a_file_of_too_many_is_cut_down(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MOST", 4)
        pins = {digest(n): Pin(None if n < 3 else NOW + n) for n in range(9)}
        wishes = written(file, "".join(lines(Saved(pins, {str(n): n for n in range(9)}))))
        wishes.save()
        assert set(parse(file.read_bytes()).pins) == {digest(0), digest(1), digest(2), digest(8)}
        assert len(wishes.quotas) == 4

    def test_bounded_keeps_what_holds(self) -> None:
        pins = {b"a": Pin(None), b"b": Pin(NOW + 1), b"c": Pin(NOW), b"d": Pin(NOW + 9)}
        assert set(bounded(pins, NOW, 9)) == {b"a", b"b", b"d"}
        assert set(bounded(pins, NOW, 2)) == {b"a", b"d"}
        assert set(bounded(pins, NOW, 0)) == {b"a"}


class TestFullDisk:
    @pytest.fixture
    def wishes(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> Wishes:
        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(WishesFile, "write", no_room)
        return opened(file)

    def test_l_what_cannot_be_saved_is_in_force_and_said(self, wishes: Wishes) -> None:
        wishes.pin(digest(1), None)
        wishes.set_quota("acme", 5)
        wishes.save()
        assert wishes.pinned(digest(1), NOW) and wishes.quota("acme") == 5
        assert "No space left on device; those set since are in force" in wishes.problems[0]

    def test_the_log_says_so_once(self, wishes: Wishes, caplog: pytest.LogCaptureFixture) -> None:
        wishes.pin(digest(1), None)
        for _ in range(5):
            wishes.save()
        assert caplog.text.count("wishes.json cannot be read or written") == 1

    def test_it_is_saved_when_there_is_room_again(
        self, wishes: Wishes, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wishes.pin(digest(1), None)
        wishes.save()
        assert not file.exists()
        monkeypatch.undo()
        wishes.save()
        assert wishes.problems == ()
        assert opened(file).pinned(digest(1), NOW)

    def test_a_store_answers_and_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        stand = Stand(tmp_path / "store")
        stand.outcome(1)
        stand.entries.flush(10)
        (stand.path / "wishes.new").mkdir()
        assert stand.admin.pin(key_of(1).hex, None)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.pinned == "hard"
        assert any("those set since are in force" in problem for problem in stand.admin.stats().degraded)
        (stand.path / "wishes.new").rmdir()
        stand.entries.flush(10)
        assert stand.admin.stats().degraded == ()
        stand.close()


class TestTwoServices:
    def test_l_pins_and_quotas_of_both_are_kept(self, file: Path) -> None:
        ours, theirs = opened(file), opened(file)
        ours.pin(digest(1), None)
        ours.set_quota("acme", 1)
        theirs.pin(digest(2), NOW + 5)
        theirs.set_quota("rival", 2)
        for wishes in (ours, theirs, ours):
            wishes.save()
        for wishes in (ours, theirs, opened(file)):
            assert wishes.pinned(digest(1), NOW) == Pin(None)
            assert wishes.pinned(digest(2), NOW) == Pin(NOW + 5)
            assert wishes.quotas == {"acme": 1, "rival": 2}

    def test_what_one_takes_back_is_taken_back(self, file: Path) -> None:
        ours, theirs = opened(file), opened(file)
        ours.pin(digest(1), None)
        ours.set_quota("acme", 1)
        ours.save()
        theirs.save()
        assert theirs.unpin(digest(1))
        theirs.set_quota("acme", None)
        theirs.save()
        ours.save()
        assert ours.pinned(digest(1), NOW) is None and ours.quotas == {}

    def test_the_later_word_on_one_pin_holds(self, file: Path) -> None:
        ours, theirs = opened(file), opened(file)
        ours.pin(digest(1), NOW + 1)
        ours.save()
        theirs.pin(digest(1), NOW + 9)
        theirs.save()
        ours.save()
        assert ours.pinned(digest(1), NOW) == Pin(NOW + 9)

    def test_what_is_set_while_it_is_saved_is_not_lost(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wishes = opened(file)
        write = WishesFile.write

        def slow(self: WishesFile, saved: Saved) -> None:
            write(self, saved)
            monkeypatch.undo()
            wishes.pin(digest(2), None)
            wishes.unpin(digest(1))
            wishes.set_quota("acme", 9)

        monkeypatch.setattr(WishesFile, "write", slow)
        wishes.pin(digest(1), None)
        wishes.set_quota("acme", 8)
        wishes.save()
        assert wishes.pinned(digest(2), NOW) and not wishes.pinned(digest(1), NOW)
        wishes.save()
        assert parse(file.read_bytes()) == Saved({digest(2): Pin(None)}, {"acme": 9})

    def test_a_service_that_holds_the_lock_is_not_waited_for(self, file: Path) -> None:
        wishes = opened(file)
        wishes.pin(digest(1), None)
        with WishesFile(file).locked():
            wishes.save()
            assert not file.exists() and wishes.problems == ()
        wishes.save()
        assert opened(file).pinned(digest(1), NOW)

    def test_many_at_once_lose_nothing(self, file: Path) -> None:
        services = [opened(file) for _ in range(4)]

        def work(mine: int) -> None:
            for turn in range(20):
                services[mine].pin(digest(100 * mine + turn), None)
                services[mine].save()

        assert in_threads(4, work) == [None] * 4
        for wishes in services:
            wishes.save()
        assert len(parse(file.read_bytes()).pins) == 80

    def test_a_file_that_is_deleted_is_written_again(self, file: Path) -> None:
        wishes = opened(file)
        wishes.pin(digest(1), None)
        wishes.save()
        file.unlink()
        wishes.save()
        assert opened(file).pinned(digest(1), NOW)

    def test_nothing_to_keep_makes_no_file(self, file: Path) -> None:
        wishes = opened(file)
        wishes.save()
        wishes.set_quota("acme", None)
        wishes.save()
        assert not file.exists()

    def test_nothing_new_is_not_written(self, file: Path) -> None:
        wishes = opened(file)
        wishes.pin(digest(1), None)
        wishes.save()
        before = file.stat().st_ino
        wishes.pin(digest(1), None)
        wishes.save()
        assert file.stat().st_ino == before


def test_saving_does_not_keep_other_threads_waiting(file: Path) -> None:
    """The interpreter's lock is given up in between: as many pins as there may be are encoded bit by bit."""
    assert sum(1 for _ in lines(Saved({digest(n): Pin(None) for n in range(1000)}))) > 1000


def test_a_wish_is_private(file: Path) -> None:
    wishes = opened(file)
    wishes.set_quota("acme", 5)
    wishes.save()
    assert file.parent.stat().st_mode & 0o077 == 0
